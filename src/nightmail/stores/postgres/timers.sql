-- Statements on waiting messages, in a caller's transaction or in one of their own. A message that leaves the line of
-- its ordering key, claimed before or not, always rings: see settle.sql.

-- name: cancel
-- Delete the waiting message that owns a timer id, and its dedup window.
with meta as materialized (
    select identity = coalesce(:identity::uuid, identity) as ours from nightmail_meta limit 1
), gone as (
    delete from nightmail_messages as m
    where m.queue = :queue and m.timer_key = :timer_id and (select ours from meta)
      and (m.token is null or m.lease_until <= coalesce(:now::timestamptz, statement_timestamp()))
    returning m.ordering_key
), freed as (
    delete from nightmail_dedup as d
    where d.queue = :queue and d.timer_id = :timer_id and exists (select from gone)
)
select meta.ours, exists (select from gone) as removed,
       (select pg_notify(:channel, :queue)::text from gone where ordering_key is not null) as rung
from meta;

-- name: newest
-- The highest id there is now.
select coalesce(max(m.id), 0) as newest from nightmail_messages as m;

-- name: cancel_all
-- Delete the waiting messages of a queue, and their dedup windows: at most :limit, and none with an id above :newest.
-- Chosen first: a delete has no limit. One that was claimed meanwhile stays.
with meta as materialized (
    select identity = coalesce(:identity::uuid, identity) as ours from nightmail_meta limit 1
), free as (
    delete from nightmail_messages as m
    where m.id = any(array(
        select f.id from nightmail_messages as f
        where f.priority >= 0 and (f.ordering_key is null or f.head_key is not null) and f.queue = :queue
          and (:newest::bigint is null or f.id <= :newest)
          and (f.token is null or f.lease_until <= coalesce(:now::timestamptz, statement_timestamp()))
        limit :limit::bigint
    )) and (select ours from meta)
      and (m.token is null or m.lease_until <= coalesce(:now::timestamptz, statement_timestamp()))
    returning m.timer_key, m.ordering_key
), waiting as (
    delete from nightmail_messages as m
    where m.id = any(array(
        select w.id from nightmail_messages as w
        where w.priority >= 0 and w.ordering_key is not null and w.head_key is null and w.queue = :queue
          and (:newest::bigint is null or w.id <= :newest)
          and (w.token is null or w.lease_until <= coalesce(:now::timestamptz, statement_timestamp()))
        limit :limit::bigint - (select count(*) from free)
    )) and (select ours from meta)
      and (m.token is null or m.lease_until <= coalesce(:now::timestamptz, statement_timestamp()))
    returning m.timer_key, m.ordering_key
), gone as (
    select timer_key, ordering_key from free union all select timer_key, ordering_key from waiting
), freed as (
    delete from nightmail_dedup as d
    where d.queue = :queue and d.timer_id = any(array(select timer_key from gone where timer_key is not null))
)
select meta.ours, (select count(*) from gone) as removed,
       (select pg_notify(:channel, :queue)::text from gone where ordering_key is not null limit 1) as rung
from meta;

-- name: reschedule
-- Move the waiting message that owns a timer id to another due time. Clears an expired lease: its holder must not
-- settle a message that the caller was told will run later.
with meta as materialized (
    select identity = coalesce(:identity::uuid, identity) as ours, notice_horizon from nightmail_meta limit 1
), moment as materialized (
    select now, now at time zone 'UTC' as utc from (select coalesce(:now::timestamptz, clock_timestamp())) as t(now)
), moved as (
    update nightmail_messages as m
    set due_at = (select greatest(coalesce(:due_at::timestamptz, (utc + :delay::interval) at time zone 'UTC'), now)
                  from moment),
        token = null, lease_until = null, claimed_at = null
    where m.queue = :queue and m.timer_key = :timer_id and (select ours from meta)
      and (m.token is null or m.lease_until <= coalesce(:now::timestamptz, statement_timestamp()))
    returning m.due_at, m.ordering_key
)
select meta.ours, exists (select from moved) as moved,
       (select pg_notify(:channel, :queue)::text from moved, moment
        where due_at < now + meta.notice_horizon or ordering_key is not null) as rung
from meta;
