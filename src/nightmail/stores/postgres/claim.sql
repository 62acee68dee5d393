-- name: claim
-- Lease up to :limit available messages, looking through ranges in the order given and no further than needed; and
-- tell, only when that was fewer, when the next message of these queues is due or the next lease ends.
--
-- A range is a queue, a level, and from where (inclusive) to where (exclusive), each by due time and id. One without a
-- level stands for the queue's share of its oldest messages of all levels. Exactly the rows that are taken are locked.
-- Sub-selects with a limit instead of `exists`, ids in an array instead of a join, `id + 0` instead of `id`: with
-- statistics from an empty table the planner would hash the first, turn the second round, look for the third among all
-- ids, and each time walk through all messages.
with busy as materialized (
    -- Where only one level has anything due, its oldest come first anyway.
    select given.queue
    from unnest(
        :share_queues::text[], :share_levels::smallint[], :share_from_at::timestamptz[], :share_from_id::bigint[]
    ) as given(queue, level, from_at, from_id),
    lateral (
        select m.id
        from nightmail_messages as m
        where m.priority >= 0 and m.queue = given.queue and m.priority = given.level
          and (m.due_at, m.id) >= (given.from_at, given.from_id)
          and m.due_at <= coalesce(:now::timestamptz, statement_timestamp())
        order by m.due_at, m.id
        limit 1
    ) as first
), oldest as materialized (
    select ranked.queue, ranked.id
    from (
        select given.queue, given.share, found.id,
               row_number() over (partition by given.queue order by found.due_at, found.id) as place
        from unnest(
            :share_queues::text[], :share_levels::smallint[], :share_from_at::timestamptz[], :share_from_id::bigint[],
            :shares::integer[]
        ) as given(queue, level, from_at, from_id, share),
        lateral (
            select m.id, m.due_at
            from nightmail_messages as m
            where m.priority >= 0 and m.queue = given.queue and m.priority = given.level
              and (m.due_at, m.id) >= (given.from_at, given.from_id)
              and m.due_at <= coalesce(:now::timestamptz, statement_timestamp())
              and (m.token is null or m.lease_until <= coalesce(:now::timestamptz, statement_timestamp()))
              and (m.ordering_key is null or m.head_key is not null or (
                  (select h.id from nightmail_messages as h
                   where h.queue = m.queue and h.head_key = m.ordering_key limit 1) is null
                  and (select s.id from nightmail_messages as s
                       where s.queue = m.queue and s.ordering_key = m.ordering_key and s.id + 0 < m.id
                         and s.due_at <= coalesce(:now::timestamptz, statement_timestamp())
                       limit 1) is null))
            order by m.due_at, m.id
            limit given.share
        ) as found
        where (select count(*) from busy where busy.queue = given.queue) > 1
    ) as ranked
    where ranked.place <= ranked.share
), picked as materialized (
    select taken.id
    from unnest(
        :queues::text[], :levels::smallint[], :from_at::timestamptz[], :from_id::bigint[],
        :to_at::timestamptz[], :to_id::bigint[]
    ) with ordinality as given(queue, level, from_at, from_id, to_at, to_id, place),
    lateral (
        select shared.id
        from (
            select m.id
            from nightmail_messages as m
            where given.level is null
              and m.id = any(array(select oldest.id from oldest where oldest.queue = given.queue))
              and m.due_at <= coalesce(:now::timestamptz, statement_timestamp())
              and (m.token is null or m.lease_until <= coalesce(:now::timestamptz, statement_timestamp()))
            limit :limit::integer
            for update of m skip locked
        ) as shared
        union all
        select ranged.id
        from (
            select m.id
            from nightmail_messages as m
            where given.level is not null
              and m.priority >= 0 and m.queue = given.queue and m.priority = given.level
              and (m.due_at, m.id) >= (given.from_at, given.from_id)
              and (m.due_at, m.id) < (given.to_at, given.to_id)
              and m.due_at <= coalesce(:now::timestamptz, statement_timestamp())
              and (m.token is null or m.lease_until <= coalesce(:now::timestamptz, statement_timestamp()))
              and (m.ordering_key is null or m.head_key is not null or (
                  (select h.id from nightmail_messages as h
                   where h.queue = m.queue and h.head_key = m.ordering_key limit 1) is null
                  and (select s.id from nightmail_messages as s
                       where s.queue = m.queue and s.ordering_key = m.ordering_key and s.id + 0 < m.id
                         and s.due_at <= coalesce(:now::timestamptz, statement_timestamp())
                       limit 1) is null))
              and m.id <> all(array(select oldest.id from oldest where oldest.queue = given.queue))
            order by m.due_at, m.id
            limit :limit::integer
            for update of m skip locked
        ) as ranged
    ) as taken
    order by given.place
    limit :limit::integer
), claimed as (
    update nightmail_messages as m
    set token = :token::uuid, claimed_at = coalesce(:now::timestamptz, clock_timestamp()),
        lease_until = (coalesce(:now::timestamptz, clock_timestamp()) at time zone 'UTC' + :lease::interval)
            at time zone 'UTC',
        deliveries = m.deliveries + 1, head_key = m.ordering_key
    where m.id = any(array(select picked.id from picked))
    returning m.id, m.queue, m.body, m.headers, m.timer_id, m.ordering_key, m.priority, m.due_at,
              m.published_at, m.claimed_at, m.expires_at, m.attempts, m.deliveries, m.first_attempt_at,
              m.last_attempt_at, m.superseded
), expected as materialized (
    select case when (select count(*) from claimed) < :limit::integer then least(
        (select min(coming.due_at)
         from unnest(:wanted::text[]) as q(queue), generate_series(0, 9) as l(level),
         lateral (
             select m.due_at from nightmail_messages as m
             where m.priority >= 0 and m.queue = q.queue and m.priority = l.level
               and m.due_at > coalesce(:now::timestamptz, statement_timestamp())
             order by m.due_at, m.id
             limit 1
         ) as coming),
        (select min(running.lease_until)
         from unnest(:wanted::text[]) as q(queue), generate_series(0, 9) as l(level),
         lateral (
             select m.lease_until from nightmail_messages as m
             where m.priority >= 0 and m.queue = q.queue and m.priority = l.level
               and m.due_at <= coalesce(:now::timestamptz, statement_timestamp())
               and m.lease_until > coalesce(:now::timestamptz, statement_timestamp())
             -- Enough to sleep well, and a limit keeps the planner from turning this into a walk through all messages.
             order by m.due_at, m.id
             limit 1000
         ) as running)
    ) - coalesce(:now::timestamptz, statement_timestamp()) end as next_in
)
select claimed.*, expected.next_in
from expected left join claimed on true;

-- name: recall
-- What a claim under this token leased.
select m.id, m.queue, m.body, m.headers, m.timer_id, m.ordering_key, m.priority, m.due_at,
       m.published_at, m.claimed_at, m.expires_at, m.attempts, m.deliveries, m.first_attempt_at,
       m.last_attempt_at, m.superseded
from nightmail_messages as m
where m.priority >= 0 and m.queue = any(:queues::text[])
  and m.priority = any(array[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]::smallint[])
  and m.due_at <= coalesce(:now::timestamptz, statement_timestamp())
  and m.token = :token::uuid
order by m.priority desc, m.due_at, m.id;
