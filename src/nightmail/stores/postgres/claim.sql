-- A claim uses two indexes. One has what can be claimed on its own: messages without an ordering key, and messages that
-- hold their key because they were claimed before. The other has messages that wait for their key. Of those only the
-- first of each key can be next, so a claim asks for the first of each key and never scans the line behind it.
--
-- In all statements: sub-selects with a limit instead of `exists`, ids in an array instead of a join, `id + 0` instead
-- of `id`. With statistics from an empty table the planner would hash the first, reverse the second, look up the third
-- in the primary key, and each time scan all messages. `offset 0` keeps it from evaluating a sub-select once per row,
-- and `is not distinct from` keeps it from looking for an id in an index on ordering keys.

-- name: claim
-- Lease up to :limit available messages of at most :max_bytes in total, scanning the ranges in the given order and no
-- further than needed. Unless the claim is `full`, also return when the next message of these queues is due or the next
-- lease ends.
--
-- Queues take turns, each with the ranges `first` to `last` of the arrays. A range is a priority level with a start
-- (inclusive) and an end (exclusive), each a due time and an id. The first ten are the levels of the queue, and also
-- supply its share of the oldest messages of all levels. A turn starts only if the turns before it found too little.
-- Only the rows that are claimed are locked, except where :max_bytes ends the claim.
--
-- Of the first :window messages in a range that wait for an ordering key, a claim takes those that are the first of a
-- free key; each splits the rest of the range. If the window ends before there is enough, the claim ends and returns
-- `cut`, because a message that waits behind the window might have to go first. With :has_extra the claim goes on, and
-- :extra_ids are first messages found by `firsts`.
--
-- A paused queue has no turn, and a paused ordering key is passed over: `paused` has the keys of a queue, the empty one
-- for the queue itself, and is null where nothing is paused. If a pause is `over` while :heeding, nothing is claimed:
-- first it is ended, or a probe is taken. While :probing, a pause of the queue itself does not count.
--
-- The type of a parameter is given where it comes first: drivers keep no statement prepared that is longer than 15 KB.
--
-- The end of a range is checked on the rows that a scan of `nightmail_waiting` returns, not in the scan: a row
-- comparison ends the scan only where the first column differs, and a whole line may be due at the same moment.
with controls as materialized (
    -- In the order of the queues: a lateral join keeps it, and sorting would cost more than all the rest of this.
    select array_agg(of_queue.paused) as paused, sum(of_queue.pauses) as pauses, min(of_queue.ends) as ends,
           coalesce(bool_or(of_queue.over), false) and :heeding::boolean as over
    from unnest(:queues::text[]) as q(queue),
    lateral (
        select jsonb_object_agg(c.ordering_key, true) as paused, count(*)::integer as pauses,
               min(c.until) filter (where c.until > coalesce(:now::timestamptz, statement_timestamp())) as ends,
               bool_or(c.until <= coalesce(:now, statement_timestamp())) as over
        from nightmail_controls as c
        where c.queue = q.queue and (c.ordering_key <> '' or not :probing::boolean)
    ) as of_queue
), picked as materialized (
    select found.id, found.body_bytes, found.header_bytes
    from unnest(:queues, :shares::integer[], :firsts::integer[], :lasts::integer[],
                (select paused from controls)) with ordinality
        as turn(queue, share, first, last, paused, place),
    lateral (
        -- Where only one level has anything due, its oldest come first anyway.
        select case when turn.share > 0 and 1 < (
            select count(*)
            from generate_series(turn.first, turn.first + 9) as r(i)
            where (
                select m.id
                from nightmail_messages as m
                where m.priority >= 0 and (m.ordering_key is null or m.head_key is not null)
                  and m.queue = turn.queue and m.priority = (:levels::smallint[])[r.i]
                  and (m.due_at, m.id) >= ((:from_at::timestamptz[])[r.i], (:from_id::bigint[])[r.i])
                  and m.due_at <= coalesce(:now, statement_timestamp())
                order by m.due_at, m.id
                limit 1
            ) is not null or (
                select b.id
                from nightmail_messages as b
                where b.priority >= 0 and b.ordering_key is not null and b.head_key is null
                  and b.queue = turn.queue and b.priority = (:levels)[r.i]
                  and (b.due_at, b.id) >= ((:from_at)[r.i], (:from_id)[r.i])
                  and b.due_at <= coalesce(:now, statement_timestamp())
                order by b.due_at, b.id
                limit 1
            ) is not null
        ) then array(
            select oldest.id
            from generate_series(turn.first, turn.first + 9) as r(i),
            lateral (
                select free.id, free.due_at
                from (
                    select m.id, m.due_at
                    from nightmail_messages as m
                    where m.priority >= 0 and (m.ordering_key is null or m.head_key is not null)
                      and m.queue = turn.queue and m.priority = (:levels)[r.i]
                      and (m.due_at, m.id) >= ((:from_at)[r.i], (:from_id)[r.i])
                      and m.due_at <= coalesce(:now, statement_timestamp())
                      and (m.token is null or m.lease_until <= coalesce(:now, statement_timestamp()))
                      and (turn.paused ? m.ordering_key) is not true
                    order by m.due_at, m.id
                    limit turn.share
                ) as free
                union all
                select heads.id, heads.due_at
                from (
                    select b.id, b.due_at
                    from (
                        select b.id, b.due_at, b.ordering_key
                        from nightmail_messages as b
                        where b.priority >= 0 and b.ordering_key is not null and b.head_key is null
                          and b.queue = turn.queue and b.priority = (:levels)[r.i]
                          and (b.due_at, b.id) >= ((:from_at)[r.i], (:from_id)[r.i])
                          and b.due_at <= coalesce(:now, statement_timestamp())
                        order by b.due_at, b.id
                        limit :window::integer
                    ) as b
                    where (b.due_at, b.id) < ((:to_at::timestamptz[])[r.i], (:to_id::bigint[])[r.i])
                      and (turn.paused ? b.ordering_key) is not true
                      and (select h.id from nightmail_messages as h
                           where h.queue = turn.queue and h.head_key = b.ordering_key limit 1) is null
                      and (select s.id from nightmail_messages as s
                           where s.queue = turn.queue and s.ordering_key = b.ordering_key
                             and s.due_at <= coalesce(:now, statement_timestamp())
                           order by s.id + 0 limit 1) = b.id
                    limit turn.share
                ) as heads
            ) as oldest
            order by oldest.due_at, oldest.id
            limit turn.share
        ) else '{}'::bigint[] end as ids
        offset 0
    ) as share,
    lateral (
        select shared.id, shared.body_bytes, shared.header_bytes
        from (
            select m.id, octet_length(m.body) as body_bytes, octet_length(m.headers) as header_bytes
            from nightmail_messages as m
            where m.id = any(share.ids)
              and m.due_at <= coalesce(:now, statement_timestamp())
              and (m.token is null or m.lease_until <= coalesce(:now, statement_timestamp()))
              -- Unless it was replaced by one with another key, while we waited for its lock.
              and m.ordering_key is not distinct from (
                  select p.ordering_key from nightmail_messages as p where p.id = m.id)
            limit :limit::integer
            for update of m skip locked
        ) as shared
        union all
        select part.id, part.body_bytes, part.header_bytes
        from generate_series(turn.first, turn.last) as r(i),
        lateral (
            select coalesce((
                select (b.due_at, b.id) < ((:to_at)[r.i], (:to_id)[r.i])
                from nightmail_messages as b
                where b.priority >= 0 and b.ordering_key is not null and b.head_key is null
                  and b.queue = turn.queue and b.priority = (:levels)[r.i]
                  and (b.due_at, b.id) >= ((:from_at)[r.i], (:from_id)[r.i])
                  and b.due_at <= coalesce(:now, statement_timestamp())
                order by b.due_at, b.id
                limit 1
            ), false) as has_any
            offset 0
        ) as waiting,
        lateral (
            -- If nothing can be claimed on its own, do not ask again between every two first messages.
            select not (waiting.has_any or :has_extra::boolean) or (
                select m.id
                from nightmail_messages as m
                where m.priority >= 0 and (m.ordering_key is null or m.head_key is not null)
                  and m.queue = turn.queue and m.priority = (:levels)[r.i]
                  and (m.due_at, m.id) >= ((:from_at)[r.i], (:from_id)[r.i])
                  and (m.due_at, m.id) < ((:to_at)[r.i], (:to_id)[r.i])
                  and m.due_at <= coalesce(:now, statement_timestamp())
                  and (m.token is null or m.lease_until <= coalesce(:now, statement_timestamp()))
                order by m.due_at, m.id
                limit 1
            ) is not null as has_any
            offset 0
        ) as alone,
        lateral (
            select coalesce(array_agg(head.id order by head.due_at, head.id), '{}') as ids,
                   coalesce(array_agg(head.due_at order by head.due_at, head.id), '{}') as due_at
            from (
                select heads.id, heads.due_at
                from (
                    select b.id, b.due_at
                    from (
                        select b.id, b.due_at, b.ordering_key
                        from nightmail_messages as b
                        where b.priority >= 0 and b.ordering_key is not null and b.head_key is null
                          and b.queue = turn.queue and b.priority = (:levels)[r.i]
                          and (b.due_at, b.id) >= ((:from_at)[r.i], (:from_id)[r.i])
                          and b.due_at <= coalesce(:now, statement_timestamp())
                        order by b.due_at, b.id
                        limit :window::integer
                    ) as b
                    where (b.due_at, b.id) < ((:to_at)[r.i], (:to_id)[r.i])
                      and (turn.paused ? b.ordering_key) is not true
                      and (select h.id from nightmail_messages as h
                           where h.queue = turn.queue and h.head_key = b.ordering_key limit 1) is null
                      and (select s.id from nightmail_messages as s
                           where s.queue = turn.queue and s.ordering_key = b.ordering_key
                             and s.due_at <= coalesce(:now, statement_timestamp())
                           order by s.id + 0 limit 1) = b.id
                    limit :limit::integer
                ) as heads
                union
                select others.id, others.due_at
                from (
                    -- Read a moment ago: each must still be the first of its key.
                    select extra.id, extra.due_at
                    from unnest(:extra_queues::text[], :extra_levels::smallint[], :extra_at::timestamptz[],
                                :extra_ids::bigint[], :extra_keys::text[])
                        as extra(queue, level, due_at, id, ordering_key)
                    where extra.queue = turn.queue and extra.level = (:levels)[r.i]
                      and (extra.due_at, extra.id) >= ((:from_at)[r.i], (:from_id)[r.i])
                      and (extra.due_at, extra.id) < ((:to_at)[r.i], (:to_id)[r.i])
                      and (turn.paused ? extra.ordering_key) is not true
                      and (select p.due_at from nightmail_messages as p where p.id = extra.id) = extra.due_at
                      and (select h.id from nightmail_messages as h
                           where h.queue = turn.queue and h.head_key = extra.ordering_key limit 1) is null
                      and (select s.id from nightmail_messages as s
                           where s.queue = turn.queue and s.ordering_key = extra.ordering_key
                             and s.due_at <= coalesce(:now, statement_timestamp())
                           order by s.id + 0 limit 1) = extra.id
                    limit :limit::integer
                ) as others
            ) as head
            where waiting.has_any or :has_extra::boolean
            offset 0
        ) as line,
        generate_series(0, cardinality(line.ids)) as step(k),
        lateral (
            -- The end of the window. Nothing behind it may overtake a message that may wait there for a free key.
            select case when step.k = cardinality(line.ids) and waiting.has_any and not :has_extra::boolean then (
                select case when (b.due_at, b.id) < ((:to_at)[r.i], (:to_id)[r.i]) then b.id end
                from nightmail_messages as b
                where b.priority >= 0 and b.ordering_key is not null and b.head_key is null
                  and b.queue = turn.queue and b.priority = (:levels)[r.i]
                  and (b.due_at, b.id) >= ((:from_at)[r.i], (:from_id)[r.i])
                  and b.due_at <= coalesce(:now, statement_timestamp())
                order by b.due_at, b.id
                offset :window::integer limit 1
            ) end as id
            offset 0
        ) as edge,
        lateral (
            select free.id, free.body_bytes, free.header_bytes
            from (
                select m.id, octet_length(m.body) as body_bytes, octet_length(m.headers) as header_bytes
                from nightmail_messages as m
                where alone.has_any
                  and m.priority >= 0 and (m.ordering_key is null or m.head_key is not null)
                  and m.queue = turn.queue and m.priority = (:levels)[r.i]
                  and (m.due_at, m.id) >= (
                      coalesce(line.due_at[step.k], (:from_at)[r.i]),
                      coalesce(line.ids[step.k], (:from_id)[r.i]))
                  and (m.due_at, m.id) < (
                      coalesce(line.due_at[step.k + 1],
                               (select p.due_at from nightmail_messages as p where p.id = edge.id),
                               (:to_at)[r.i]),
                      coalesce(line.ids[step.k + 1], edge.id, (:to_id)[r.i]))
                  and m.due_at <= coalesce(:now, statement_timestamp())
                  and (m.token is null or m.lease_until <= coalesce(:now, statement_timestamp()))
                  and (turn.paused ? m.ordering_key) is not true
                  and m.id <> all(share.ids)
                order by m.due_at, m.id
                limit :limit::integer
                for update of m skip locked
            ) as free
            union all
            select head.id, head.body_bytes, head.header_bytes
            from (
                select m.id, octet_length(m.body) as body_bytes, octet_length(m.headers) as header_bytes
                from nightmail_messages as m
                where m.id = line.ids[step.k + 1]
                  and m.due_at <= coalesce(:now, statement_timestamp())
                  and (m.token is null or m.lease_until <= coalesce(:now, statement_timestamp()))
                  and m.ordering_key is not distinct from (
                      select p.ordering_key from nightmail_messages as p where p.id = m.id)
                  and m.id <> all(share.ids)
                limit 1
                for update of m skip locked
            ) as head
            union all
            select null, 0, 0 where edge.id is not null
        ) as part
    ) as found
    where (turn.paused ? '') is not true and not (select over from controls)
    order by turn.place
    limit :limit::integer
), sums as materialized (
    select count(*) as many,
           count(*) = count(id) and coalesce(sum(body_bytes + header_bytes), 0) <= :max_bytes::bigint
               and coalesce(max(body_bytes), 0) <= :max_body_bytes::integer
               and coalesce(max(header_bytes), 0) <= :max_header_bytes::integer as fit
    from picked
), counted as materialized (
    -- Evaluated only when not all of them fit. A message that is too large is left for `bury_large` and not counted.
    -- The first of the others always fits.
    select sized.id, sized.whole, sized.whole and sized.too_large as too_large,
           sized.whole and not sized.too_large and (sized.total <= :max_bytes::bigint or sized.many = 1) as fits
    from (
        select weighed.id, weighed.too_large,
               sum(weighed.bytes) filter (where not weighed.too_large) over run as total,
               count(weighed.id) filter (where not weighed.too_large) over run as many,
               -- Not behind the end of a window.
               count(*) over run = count(weighed.id) over run as whole
        from (
            select picked.id, picked.body_bytes + picked.header_bytes as bytes,
                   picked.body_bytes > :max_body_bytes::integer or picked.header_bytes > :max_header_bytes::integer
                       as too_large
            from picked
        ) as weighed
        window run as (rows unbounded preceding)
    ) as sized
), claimed as (
    update nightmail_messages as m
    set token = :token::uuid, claimed_at = coalesce(:now, clock_timestamp()),
        lease_until = (coalesce(:now, clock_timestamp()) at time zone 'UTC' + :lease::interval)
            at time zone 'UTC',
        deliveries = least(m.deliveries, 2147483646) + 1, head_key = m.ordering_key
    where m.id = any(case when (select fit from sums) then array(select picked.id from picked)
                          else array(select counted.id from counted where fits) end)
    returning m.id, m.queue, m.body, m.headers, m.timer_id, m.ordering_key, m.priority, m.due_at,
              m.published_at, m.claimed_at, m.expires_at, m.attempts, m.deliveries, m.first_attempt_at,
              m.last_attempt_at, m.superseded
), told as materialized (
    select sums.many >= :limit::integer as ended_by_limit, not sums.fit and fitting < whole as ended_by_bytes,
           large, not sums.fit and whole < sums.many as cut
    from sums,
    lateral (
        select count(*) filter (where whole) as whole, count(*) filter (where fits or too_large) as fitting,
               array_agg(id) filter (where too_large) as large
        from counted
        where not sums.fit
    ) as counts
), expected as materialized (
    select case when not ended_by_limit and not ended_by_bytes then least(
        (select min(coming.due_at)
         from unnest(:queues, (select paused from controls)) as q(queue, paused), generate_series(0, 9) as l(level),
         lateral (
             select free.due_at
             from (
                 select m.due_at from nightmail_messages as m
                 where m.priority >= 0 and (m.ordering_key is null or m.head_key is not null)
                   and m.queue = q.queue and m.priority = l.level
                   and m.due_at > coalesce(:now, statement_timestamp())
                 order by m.due_at, m.id
                 limit 1
             ) as free
             union all
             select waiting.due_at
             from (
                 select b.due_at from nightmail_messages as b
                 where b.priority >= 0 and b.ordering_key is not null and b.head_key is null
                   and b.queue = q.queue and b.priority = l.level
                   and b.due_at > coalesce(:now, statement_timestamp())
                 order by b.due_at, b.id
                 limit 1
             ) as waiting
         ) as coming
         where (q.paused ? '') is not true),
        (select min(running.lease_until)
         from unnest(:queues, :firsts, :lasts, (select paused from controls)) as turn(queue, first, last, paused),
         generate_series(turn.first, turn.last) as r(i),
         lateral (
             select m.lease_until from nightmail_messages as m
             where m.priority >= 0 and (m.ordering_key is null or m.head_key is not null)
               and m.queue = turn.queue and m.priority = (:levels)[r.i]
               and (m.due_at, m.id) >= ((:from_at)[r.i], (:from_id)[r.i])
               and (m.due_at, m.id) < ((:to_at)[r.i], (:to_id)[r.i])
               and m.due_at <= coalesce(:now, statement_timestamp())
               and m.lease_until > coalesce(:now, statement_timestamp())
             -- Enough to know how long to sleep, and a limit keeps the planner from scanning all messages.
             order by m.due_at, m.id
             limit 1000
         ) as running
         where (turn.paused ? '') is not true),
        (select ends from controls)
    ) - coalesce(:now, statement_timestamp()) end as next_in
    from told
)
-- First a row without a message: what the look found out. With every message it would be made and read every time.
select claimed.*, expected.next_in, told.ended_by_limit or told.ended_by_bytes as full, told.large, told.cut,
       coalesce(:now, statement_timestamp()) as looked_at,
       extract(epoch from clock_timestamp() - statement_timestamp())::float8 as seconds,
       controls.over, controls.pauses
from told cross join expected cross join controls left join claimed on false
union all
select claimed.*, null, null, null, null, null, null, null, null
from claimed;

-- name: look_ahead
-- For each of these queues how long until a claim may find something, null if nothing is known: for idle workers, who
-- share this look. It takes nothing, and may be too early, but never too late: behind :window messages that run or wait in
-- line it does not look, and says now. It always begins at the beginning of each level.
select q.queue, least(
    case when (controls.paused ? '') is not true then (
        select min(coming.at)
        from generate_series(0, 9) as l(level),
        lateral (
            select case when count(*) = :window::integer then min(running.due_at)
                        else min(coalesce(running.lease_until, running.due_at))
                            filter (where (controls.paused ? running.ordering_key) is not true) end as at
            from (
                select m.due_at, m.lease_until, m.ordering_key
                from nightmail_messages as m
                where m.priority >= 0 and (m.ordering_key is null or m.head_key is not null)
                  and m.queue = q.queue and m.priority = l.level
                  and m.due_at <= coalesce(:now::timestamptz, statement_timestamp())
                order by m.due_at, m.id
                limit :window
            ) as running
            union all
            select case when count(*) = :window or bool_or(line.is_free) then min(line.due_at) end
            from (
                select b.due_at, (controls.paused ? b.ordering_key) is not true and (
                    select h.id from nightmail_messages as h
                    where h.queue = q.queue and h.head_key = b.ordering_key limit 1) is null as is_free
                from nightmail_messages as b
                where b.priority >= 0 and b.ordering_key is not null and b.head_key is null
                  and b.queue = q.queue and b.priority = l.level
                  and b.due_at <= coalesce(:now, statement_timestamp())
                order by b.due_at, b.id
                limit :window
            ) as line
            union all
            select next.due_at
            from (
                select m.due_at from nightmail_messages as m
                where m.priority >= 0 and (m.ordering_key is null or m.head_key is not null)
                  and m.queue = q.queue and m.priority = l.level
                  and m.due_at > coalesce(:now, statement_timestamp())
                order by m.due_at, m.id
                limit 1
            ) as next
            union all
            select next.due_at
            from (
                select b.due_at from nightmail_messages as b
                where b.priority >= 0 and b.ordering_key is not null and b.head_key is null
                  and b.queue = q.queue and b.priority = l.level
                  and b.due_at > coalesce(:now, statement_timestamp())
                order by b.due_at, b.id
                limit 1
            ) as next
        ) as coming
    ) end,
    controls.ends
) - coalesce(:now, statement_timestamp()) as next_in
from unnest(:queues::text[]) as q(queue),
lateral (
    select jsonb_object_agg(c.ordering_key, true) as paused, min(c.until) as ends
    from nightmail_controls as c
    where c.queue = q.queue
) as controls;

-- name: moment
select coalesce(:now::timestamptz, statement_timestamp()) as looked_at;

-- name: firsts
-- The first message of each free ordering key, skipping from key to key: the cost depends on the number of keys, not on
-- how many messages wait for each. It starts at a key of each queue and reads :most keys there. A row without an id has
-- the `key` at which to continue, or null if there are no more. A paused queue has none.
with recursive line(queue, key, nth) as (
    select q.queue collate "C", case when :probing::boolean or (
        select c.queue from nightmail_controls as c where c.queue = q.queue and c.ordering_key = '' limit 1) is null
    then (
        select m.ordering_key from nightmail_messages as m
        where m.queue = q.queue and m.ordering_key is not null and m.ordering_key >= q.after
        order by m.ordering_key, m.id + 0 limit 1) end, 1
    from unnest(:queues::text[], :afters::text[]) as q(queue, after)
    union all
    select line.queue, (
        select m.ordering_key from nightmail_messages as m
        where m.queue = line.queue and m.ordering_key is not null and m.ordering_key > line.key
        order by m.ordering_key, m.id + 0 limit 1), line.nth + 1
    from line
    where line.key is not null and line.nth <= :most::integer
)
select line.queue, line.key, first.id, first.due_at, first.priority
from line
left join lateral (
    select s.id, s.due_at, s.priority
    from nightmail_messages as s
    where line.nth <= :most::integer and s.queue = line.queue and s.ordering_key = line.key
      and s.due_at <= coalesce(:now::timestamptz, statement_timestamp())
    order by s.id + 0
    limit 1
) as first on (
    select h.id from nightmail_messages as h where h.queue = line.queue and h.head_key = line.key limit 1) is null
and (
    select c.queue from nightmail_controls as c where c.queue = line.queue and c.ordering_key = line.key limit 1) is null
where first.id is not null or line.key is null or line.nth > :most::integer;

-- name: followers
-- The first due message of each of these ordering keys.
select k.queue, first.id, first.due_at, first.priority
from unnest(:queues::text[], :keys::text[]) as k(queue, key),
lateral (
    select s.id, s.due_at, s.priority
    from nightmail_messages as s
    where s.queue = k.queue and s.ordering_key = k.key
      and s.due_at <= coalesce(:now::timestamptz, statement_timestamp())
    order by s.id + 0
    limit 1
) as first;

-- name: bury_large
-- Make dead letters of messages whose body or headers are larger than the store allows, without reading them.
with gone as (
    delete from nightmail_messages as m
    where m.id = any(:ids::bigint[])
      and (octet_length(m.body) > :max_body_bytes::integer or octet_length(m.headers) > :max_header_bytes::integer)
      and (m.token is null or m.lease_until <= coalesce(:now::timestamptz, statement_timestamp()))
    returning m.*
), buried as (
    insert into nightmail_dead
        (message_id, died_at, published_at, first_attempt_at, last_attempt_at, attempts, deliveries,
         priority, queue, timer_id, ordering_key, reason, headers, body)
    select id, coalesce(:now::timestamptz, clock_timestamp()), published_at, first_attempt_at, last_attempt_at,
           attempts, deliveries, priority, queue, timer_id, ordering_key, :reason::text, headers, body
    from gone
    returning queue
)
select array(
    select pg_notify(:channel, awake.queue)::text from (select distinct buried.queue from buried) as awake
) as rung;

-- name: recall
-- Release what a claim under this token leased, as `Release` does, and ring for it. A claim takes the first messages by
-- due time, so at most :most waiting messages are passed over in each level. Future messages count too: the clock may
-- have been set back since.
with edges as materialized (
    select q.queue, l.level, edge.due_at, edge.id
    from unnest(:queues::text[]) as q(queue) cross join generate_series(0, 9) as l(level)
    left join lateral (
        select m.due_at, m.id from nightmail_messages as m
        where m.priority >= 0 and (m.ordering_key is null or m.head_key is not null)
          and m.queue = q.queue and m.priority = l.level and m.token is null
        order by m.due_at, m.id
        offset :most::integer limit 1
    ) as edge on true
), leased as materialized (
    select found.id
    from edges,
    lateral (
        select m.id from nightmail_messages as m
        where m.priority >= 0 and (m.ordering_key is null or m.head_key is not null)
          and m.queue = edges.queue and m.priority = edges.level
          and (m.due_at, m.id) < (coalesce(edges.due_at, 'infinity'), coalesce(edges.id, 0))
          and m.token = :token::uuid
        order by m.due_at, m.id
        limit 1000000
    ) as found
), chosen as materialized (
    select m.id from nightmail_messages as m
    where m.id = any(array(select leased.id from leased)) and m.token = :token::uuid
    order by m.id
    for update skip locked
), back as (
    update nightmail_messages as m
    set token = null, lease_until = null, claimed_at = null, deliveries = greatest(m.deliveries - 1, 0)
    where m.id = any(array(select chosen.id from chosen))
    returning m.queue
)
select (select count(*) from back) as many,
       array(select pg_notify(:channel, awake.queue)::text from (select distinct queue from back) as awake) as rung;
