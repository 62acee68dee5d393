-- The tables of faststream-outbox are `old_outbox` and `old_dead` here; loading this puts in their true names.
-- An old lease has no end of its own: a row counts as held for :lease after `acquired_at`, and forever without one.

-- name: missing
-- Which of these columns the table does not have; all of them if there is no such table.
select given.name
from unnest(:columns::text[]) as given(name)
where not exists (
    select from pg_attribute as a
    where a.attrelid = to_regclass(:table::text) and a.attname = given.name and not a.attisdropped);

-- name: count
-- For each queue of the old table: what is not held, and how much of that has a timer id that is taken here.
select o.queue,
       count(*) filter (where o.free) as waiting,
       count(*) filter (where o.free and o.timer_id is not null and exists (
           select from nightmail_messages as m
           where m.queue = o.queue collate "C" and m.timer_key = o.timer_id collate "C")) as taken,
       count(*) filter (where not o.free) as leased
from (
    select queue, timer_id, acquired_token is null or coalesce(acquired_at < now() - :lease::interval, false) as free
    from old_outbox
) as o
group by o.queue
order by o.queue;

-- name: last
-- The newest row of the old table.
select max(id) as id from old_outbox;

-- name: take
-- Lock the next rows that are not held, as they will be published. What an old worker claims or an old publisher
-- cancels at this moment is skipped. Due times are capped at what a message may have.
select o.id, o.queue, o.payload, o.headers::text as headers, o.timer_id,
       least(greatest(o.next_attempt_at, timestamptz '0001-01-03 00:00:00+00'),
             now() + interval '199 years') as due_at
from old_outbox as o
where o.id > :after::bigint and o.id <= :last::bigint
  and (o.acquired_token is null or o.acquired_at < now() - :lease::interval)
order by o.id
limit :limit::integer
for update skip locked;

-- name: remove
-- Delete what was published.
delete from old_outbox where id = any(:ids::bigint[]) returning id;

-- name: count_dead
-- How many dead letters the old table has.
select count(*) as dead from old_dead;

-- name: last_dead
-- The newest of them.
select max(id) as id from old_dead;

-- name: move_dead
-- Move the next dead letters. The old table does not know how often the handler ran, only how often it was delivered.
with chosen as materialized (
    select d.id from old_dead as d
    where d.id > :after::bigint and d.id <= :last::bigint
    order by d.id
    limit :limit::integer
    for update skip locked
), gone as (
    delete from old_dead as d where d.id = any(array(select chosen.id from chosen)) returning d.*
), buried as (
    insert into nightmail_dead
        (message_id, died_at, due_at, published_at, attempts, deliveries, priority,
         queue, timer_id, reason, error, headers, body)
    select gone.original_id, gone.failed_at, gone.failed_at, gone.created_at,
           least(gone.deliveries_count, 2147483647), least(gone.deliveries_count, 2147483647), 0,
           gone.queue, gone.timer_id,
           case gone.failure_reason when 'retry_terminal' then 'retries_exhausted' else gone.failure_reason end,
           left(gone.last_exception, 8192),
           (case when jsonb_typeof(coalesce(gone.headers, '{}')) = 'object'
               then jsonb_build_object(
                   'correlation_id', gone.original_id::text, 'faststream-outbox-id', gone.original_id::text
               ) || coalesce(gone.headers, '{}')
               else gone.headers end)::text,
           gone.payload
    from gone
    order by gone.id
    returning id
)
select count(*) as chosen, max(chosen.id) as last,
       (select count(*) from gone) as gone, (select count(*) from buried) as buried
from chosen;
