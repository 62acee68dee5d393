-- Statements under a lease: each is fenced by id and token only. Ids come sorted and unique, so that width_bucket finds
-- a row's place in the arrays. No joins: with statistics from an empty table the planner reverses a join and scans all
-- messages.
--
-- Releasing an ordering key always rings. A message that waits for it may commit after our snapshot and before our
-- commit: it is not seen here, and its own ring came too early.

-- name: settle_done
-- End these deliveries as done, and ring for the ordering keys this frees.
with gone as (
    delete from nightmail_messages as m
    where m.id = any(:ids::bigint[]) and m.token = (:tokens::uuid[])[width_bucket(m.id, :ids::bigint[])]
    returning m.id, m.queue, m.head_key
)
select array(select id from gone) as ids,
       array(
           select pg_notify(:channel, released.queue)::text
           from (select distinct gone.queue from gone where gone.head_key is not null) as released
       ) as rung;

-- name: settle
-- End some deliveries (those with a reason become dead letters, the others are done), and bring others back.
with moment as materialized (
    select now, now at time zone 'UTC' as utc from (select coalesce(:now::timestamptz, clock_timestamp())) as t(now)
), gone as (
    delete from nightmail_messages as m
    where m.id = any(:ids::bigint[]) and m.token = (:tokens::uuid[])[width_bucket(m.id, :ids::bigint[])]
    returning m.*, (:reasons::text[])[width_bucket(m.id, :ids::bigint[])] as reason,
              (:errors::text[])[width_bucket(m.id, :ids::bigint[])] as error,
              (:ran::boolean[])[width_bucket(m.id, :ids::bigint[])] as ran
), buried as (
    insert into nightmail_dead
        (message_id, died_at, due_at, published_at, first_attempt_at, last_attempt_at, attempts, deliveries,
         priority, queue, timer_id, ordering_key, reason, error, headers, body)
    select id, now, now, published_at,
           case when ran then coalesce(first_attempt_at, claimed_at) else first_attempt_at end,
           case when ran then claimed_at else last_attempt_at end,
           case when ran then least(attempts, 2147483646) + 1 else attempts end,
           deliveries, priority, queue, timer_id, ordering_key, reason, error, headers, body
    from gone, moment
    where reason is not null
    returning queue
), kept as (
    insert into nightmail_delivered
        (message_id, published_at, due_at, delivered_at, attempts, deliveries, priority,
         queue, timer_id, ordering_key, headers, body)
    select id, published_at, due_at, now, attempts, deliveries, priority,
           queue, timer_id, ordering_key, headers, body
    from gone, moment
    where reason is null and :keep::boolean
), back as (
    update nightmail_messages as m
    set token = null, lease_until = null, claimed_at = null,
        attempts = case (:back_kinds::text[])[width_bucket(m.id, :back_ids::bigint[])]
            when 'retry' then least(m.attempts, 2147483646) + 1 when 'postpone' then 0 else m.attempts end,
        deliveries = case (:back_kinds::text[])[width_bucket(m.id, :back_ids::bigint[])]
            when 'release' then greatest(m.deliveries - 1, 0) else 0 end,
        first_attempt_at = case (:back_kinds::text[])[width_bucket(m.id, :back_ids::bigint[])]
            when 'retry' then coalesce(m.first_attempt_at, m.claimed_at) when 'release' then m.first_attempt_at end,
        last_attempt_at = case (:back_kinds::text[])[width_bucket(m.id, :back_ids::bigint[])]
            when 'retry' then m.claimed_at when 'release' then m.last_attempt_at end,
        last_error = case (:back_kinds::text[])[width_bucket(m.id, :back_ids::bigint[])]
            when 'retry' then (:back_errors::text[])[width_bucket(m.id, :back_ids::bigint[])]
            when 'release' then m.last_error end,
        due_at = case
            when (:back_kinds::text[])[width_bucket(m.id, :back_ids::bigint[])] = 'release' then m.due_at
            when m.superseded then (select now from moment) else (
            (select utc from moment) + (:back_afters::interval[])[width_bucket(m.id, :back_ids::bigint[])]
        ) at time zone 'UTC' end
    where m.id = any(:back_ids::bigint[])
      and m.token = (:back_tokens::uuid[])[width_bucket(m.id, :back_ids::bigint[])]
    returning m.id, m.queue, m.due_at
)
select array(select id from gone union all select id from back) as ids,
       array(
           select pg_notify(:channel, awake.queue)::text
           from (
               select back.queue from back, moment, nightmail_meta as meta
               where back.due_at < moment.now + meta.notice_horizon
               union
               select buried.queue from buried
               union
               select gone.queue from gone
               where gone.head_key is not null
           ) as awake
       ) as rung;

-- name: extend
-- Extend these leases to :lease from now, never shortening one, skipping locked rows. `stop`: an operator wants it
-- stopped.
with held as materialized (
    select m.id from nightmail_messages as m
    where m.id = any(:ids::bigint[]) and m.token = (:tokens::uuid[])[width_bucket(m.id, :ids::bigint[])]
    order by m.id
    for update skip locked
)
update nightmail_messages as m
set lease_until = greatest(
        m.lease_until,
        (coalesce(:now::timestamptz, clock_timestamp()) at time zone 'UTC' + :lease::interval) at time zone 'UTC')
where m.id = any(array(select held.id from held))
returning m.id, m.stop_requested_by is not null as stop;

-- name: ack
-- End these deliveries as done in a caller's transaction: all of them, or none.
with meta as materialized (
    select identity = coalesce(:identity::uuid, identity) as ours from nightmail_meta limit 1
), held as materialized (
    select m.id from nightmail_messages as m
    where m.id = any(:ids::bigint[]) and m.token = (:tokens::uuid[])[pg_catalog.width_bucket(m.id, :ids::bigint[])]
      and (select ours from meta)
    order by m.id
    for update
), gone as (
    delete from nightmail_messages as m
    where m.id = any(array(select held.id from held))
      and (select count(*) from held) = pg_catalog.cardinality(:ids::bigint[])
    returning m.*
), kept as (
    insert into nightmail_delivered
        (message_id, published_at, due_at, delivered_at, attempts, deliveries, priority,
         queue, timer_id, ordering_key, headers, body)
    select id, published_at, due_at, coalesce(:now::timestamptz, clock_timestamp()), attempts, deliveries, priority,
           queue, timer_id, ordering_key, headers, body
    from gone
    where :keep::boolean
)
select meta.ours, array(select id from held) as ids,
       array(
           select pg_notify(:channel, released.queue)::text
           from (select distinct gone.queue from gone where gone.head_key is not null) as released
       ) as rung
from meta;
