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

-- name: cancel_all
-- Delete every waiting message of a queue, and their dedup windows.
with meta as materialized (
    select identity = coalesce(:identity::uuid, identity) as ours from nightmail_meta limit 1
), free as (
    delete from nightmail_messages as m
    where m.priority >= 0 and (m.ordering_key is null or m.head_key is not null)
      and m.queue = :queue and (select ours from meta)
      and (m.token is null or m.lease_until <= coalesce(:now::timestamptz, statement_timestamp()))
    returning m.timer_key, m.ordering_key
), waiting as (
    delete from nightmail_messages as m
    where m.priority >= 0 and m.ordering_key is not null and m.head_key is null
      and m.queue = :queue and (select ours from meta)
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
