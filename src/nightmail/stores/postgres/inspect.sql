-- Queries for operators. Nothing here locks a row.

-- name: peek
-- Waiting messages by due time: at most :limit of each queue and level, and of these the first :limit. Those that wait
-- for their ordering key are in an index of their own.
with recursive queues(queue) as (
    select least(
        (select m.queue from nightmail_messages as m
         where m.priority >= 0 and (m.ordering_key is null or m.head_key is not null)
           and (:queue::text is null or m.queue = :queue)
         order by m.queue limit 1),
        (select m.queue from nightmail_messages as m
         where m.priority >= 0 and m.ordering_key is not null and m.head_key is null
           and (:queue::text is null or m.queue = :queue)
         order by m.queue limit 1))
    union all
    select least(
        (select m.queue from nightmail_messages as m
         where m.priority >= 0 and (m.ordering_key is null or m.head_key is not null)
           and m.queue > queues.queue
         order by m.queue limit 1),
        (select m.queue from nightmail_messages as m
         where m.priority >= 0 and m.ordering_key is not null and m.head_key is null
           and m.queue > queues.queue
         order by m.queue limit 1))
    from queues
    where queues.queue is not null and :queue::text is null
)
select found.*
from queues, generate_series(0, 9) as l(level),
lateral (
    select free.*
    from (
        select m.id, m.queue, m.timer_id, m.ordering_key, m.priority, m.due_at, m.published_at, m.expires_at,
               m.attempts, m.body, m.headers
        from nightmail_messages as m
        where m.priority >= 0 and (m.ordering_key is null or m.head_key is not null)
          and m.queue = queues.queue and m.priority = l.level
          and m.due_at < coalesce(:due_before::timestamptz, 'infinity')
          and (m.due_at, m.id) > (coalesce(:after::timestamptz, '-infinity'), coalesce(:after_id::bigint, 0))
          and not m.superseded
          and (m.token is null or m.lease_until <= coalesce(:now::timestamptz, statement_timestamp()))
        order by m.due_at, m.id
        limit :limit::integer
    ) as free
    union all
    select waiting.*
    from (
        select m.id, m.queue, m.timer_id, m.ordering_key, m.priority, m.due_at, m.published_at, m.expires_at,
               m.attempts, m.body, m.headers
        from nightmail_messages as m
        where m.priority >= 0 and m.ordering_key is not null and m.head_key is null
          and m.queue = queues.queue and m.priority = l.level
          and m.due_at < coalesce(:due_before::timestamptz, 'infinity')
          and (m.due_at, m.id) > (coalesce(:after::timestamptz, '-infinity'), coalesce(:after_id::bigint, 0))
          and not m.superseded
          and (m.token is null or m.lease_until <= coalesce(:now::timestamptz, statement_timestamp()))
        order by m.due_at, m.id
        limit :limit::integer
    ) as waiting
) as found
order by found.due_at, found.id
limit :limit::integer;

-- name: peek_timer
-- The waiting messages that own a timer id.
select m.id, m.queue, m.timer_id, m.ordering_key, m.priority, m.due_at, m.published_at, m.expires_at,
       m.attempts, m.body, m.headers
from nightmail_messages as m
where m.timer_key = :timer_id and (:queue::text is null or m.queue = :queue)
  and m.due_at < coalesce(:due_before::timestamptz, 'infinity')
  and (m.due_at, m.id) > (coalesce(:after::timestamptz, '-infinity'), coalesce(:after_id::bigint, 0))
  and (m.token is null or m.lease_until <= coalesce(:now::timestamptz, statement_timestamp()))
order by m.due_at, m.id
limit :limit::integer;

-- name: find
-- The messages with these ids, whatever their state.
select m.id, m.queue, m.timer_id, m.ordering_key, m.priority, m.due_at, m.published_at, m.expires_at,
       m.attempts, m.body, m.headers, m.deliveries, m.superseded, m.claimed_at, m.lease_until,
       coalesce(m.lease_until > coalesce(:now::timestamptz, statement_timestamp()), false) as running,
       m.first_attempt_at, m.last_attempt_at, m.last_error
from nightmail_messages as m
where m.id = any(:ids::bigint[])
order by m.id;

-- name: dead
-- Dead letters that match every given condition, newest first, at most :max_bytes in total. The first always fits.
with page as materialized (
    select d.id, octet_length(d.body) + octet_length(d.headers)::bigint as bytes
    from nightmail_dead as d
    where (:queue::text is null or d.queue = :queue)
      and (:reason::text is null or d.reason = :reason)
      and (:error::text is null or position(:error in d.error) > 0)
      and (:older_than::interval is null or d.died_at < (
          coalesce(:now::timestamptz, statement_timestamp()) at time zone 'UTC' - :older_than) at time zone 'UTC')
      and (:ids::bigint[] is null or d.id = any(:ids))
      and (:cursor::bigint is null or d.id < :cursor)
    order by d.id desc
    limit :limit::integer
), sized as materialized (
    select page.id, sum(page.bytes) over run as total, row_number() over run as place
    from page
    window run as (order by page.id desc)
)
select d.id, d.message_id, d.queue, d.reason, d.error, d.timer_id, d.ordering_key, d.priority, d.attempts,
       d.deliveries, d.published_at, d.first_attempt_at, d.last_attempt_at, d.died_at, d.body, d.headers
from nightmail_dead as d
where d.id = any(array(select sized.id from sized where sized.total <= :max_bytes::bigint or sized.place = 1))
order by d.id desc;

-- name: summarize_dead
-- Dead letters that match every given condition, counted by queue, reason and fingerprint (see `fingerprint` in
-- records.py), the largest group first.
select letters.queue, letters.reason, letters.fingerprint, count(*) as letters,
       min(letters.died_at) as first_died_at, max(letters.died_at) as last_died_at, max(letters.id) as newest,
       (sum(count(*)) over ())::bigint as total
from (
    select d.id, d.queue, d.reason, d.died_at,
           regexp_replace(left(split_part(d.error, chr(10), 1), 200),
               '[A-Za-z_-]*[0-9][A-Za-z0-9_-]*', '#', 'g') as fingerprint
    from nightmail_dead as d
    where (:queue::text is null or d.queue = :queue)
      and (:reason::text is null or d.reason = :reason)
      and (:error::text is null or position(:error in d.error) > 0)
      and (:older_than::interval is null or d.died_at < (
          coalesce(:now::timestamptz, statement_timestamp()) at time zone 'UTC' - :older_than) at time zone 'UTC')
      and (:ids::bigint[] is null or d.id = any(:ids))
) as letters
group by letters.queue, letters.reason, letters.fingerprint
order by count(*) desc, newest desc
limit :limit::integer;

-- name: stats
-- The counts of each queue that has messages or dead letters.
with alive as (
    select queue,
           count(*) filter (where not superseded and waiting and due_at <= asked) as ready,
           count(*) filter (where not superseded and waiting and due_at > asked) as scheduled,
           count(*) filter (where not superseded and not waiting) as running,
           count(*) filter (where superseded) as superseded,
           max(asked - due_at) filter (where not superseded and waiting and due_at <= asked) as oldest_due_age
    from (
        select m.queue, m.due_at, m.superseded, t.asked, m.token is null or m.lease_until <= t.asked as waiting
        from nightmail_messages as m, (select coalesce(:now::timestamptz, statement_timestamp())) as t(asked)
    ) as m
    group by queue
), buried as (
    select queue, count(*) as dead from nightmail_dead group by queue
)
select queue, coalesce(ready, 0) as ready, coalesce(scheduled, 0) as scheduled, coalesce(running, 0) as running,
       coalesce(superseded, 0) as superseded, coalesce(dead, 0) as dead, oldest_due_age
from alive full join buried using (queue)
order by queue;
