-- Statements that run in a caller's transaction or in one of their own. `ours` tells whether these are the tables of
-- this store: a session of another database that has tables of the same names writes nothing. Days are added in UTC:
-- in the time zone of a caller's session a day may have 23 hours, and a message would be early. `limit 1` is for the
-- planner: it expects a thousand rows in a table without statistics, and on a caller's connection would then spend a
-- second compiling the statement (JIT). Polymorphic functions are qualified with their schema: a caller's session may
-- have one of the same name for exactly our types, and would call that. (`unnest` of several arrays is always the
-- server's own.)

-- name: publish
-- Store one message without a timer id, and ring its queue if it is due soon. No answer: these are not our tables, or a
-- trigger left the message out. `publish_batch` tells which.
insert into nightmail_messages as m
    (queue, priority, due_at, published_at, expires_at, ordering_key, headers, body)
select :queue, :priority::smallint,
       greatest(coalesce(:due_at::timestamptz, (now at time zone 'UTC' + :delay::interval) at time zone 'UTC'), now),
       now, (now at time zone 'UTC' + :expires_in::interval) at time zone 'UTC', :ordering_key, :headers, :body::bytea
from (
    select coalesce(:now::timestamptz, clock_timestamp()) as now
    from nightmail_meta where identity = coalesce(:identity::uuid, identity) limit 1
) as moment
returning m.id, (
    select pg_notify(:metas_channel, m.queue)::text from nightmail_meta
    where m.due_at < m.published_at + notice_horizon limit 1
) as rung;

-- name: publish_bodies
-- Store messages that differ in their bodies alone, in the order given; otherwise as `publish_batch`.
with meta as materialized (
    select identity = coalesce(:identity::uuid, identity) as ours, notice_horizon from nightmail_meta limit 1
), moment as materialized (
    select now, greatest(coalesce(:due_at::timestamptz, (utc + :delay::interval) at time zone 'UTC'), now) as due_at,
           (utc + :expires_in::interval) at time zone 'UTC' as expires_at
    from (select now, now at time zone 'UTC' from (select coalesce(:now::timestamptz, clock_timestamp())) as t(now))
        as t(now, utc)
), stored as (
    insert into nightmail_messages
        (queue, priority, due_at, published_at, expires_at, ordering_key, headers, body)
    select :queue, :priority::smallint, moment.due_at, now, moment.expires_at, :ordering_key, :headers, given.body
    from unnest(:bodies::bytea[]) with ordinality as given(body, place), moment, meta
    where meta.ours
    order by given.place
    returning id
)
select meta.ours,
       array(select id from stored order by id) as ids,
       case when meta.ours and (select count(*) from stored) < pg_catalog.cardinality(:bodies::bytea[])
            then (select pg_catalog.concat('a trigger left out ', pg_catalog.cardinality(:bodies::bytea[]) - count(*))
                  from stored)::integer
       end as kept_out,
       case when exists (select from stored) and moment.due_at < moment.now + meta.notice_horizon
            then pg_notify(:channel, :queue)::text
       end as rung
from meta, moment;

-- name: publish_batch
-- Store messages without timer ids, in the order given, and ring the queues that get something due soon.
with meta as materialized (
    select identity = coalesce(:identity::uuid, identity) as ours, notice_horizon from nightmail_meta limit 1
), moment as materialized (
    select now, now at time zone 'UTC' as utc from (select coalesce(:now::timestamptz, clock_timestamp())) as t(now)
), stored as (
    insert into nightmail_messages
        (queue, priority, due_at, published_at, expires_at, ordering_key, headers, body)
    select given.queue, given.priority,
           greatest(coalesce(given.due_at, (utc + given.delay) at time zone 'UTC'), now),
           now, (utc + given.expires_in) at time zone 'UTC', given.ordering_key, given.headers, given.body
    from unnest(
        :queues::text[], :priorities::smallint[], :due_ats::timestamptz[], :delays::interval[],
        :expiries::interval[], :ordering_keys::text[], :headers::text[], :bodies::bytea[]
    ) with ordinality
        as given(queue, priority, due_at, delay, expires_in, ordering_key, headers, body, place),
        moment, meta
    where meta.ours
    order by given.place
    returning id, queue, due_at
)
select meta.ours,
       array(select id from stored order by id) as ids,
       -- A trigger may drop a row without an error. Which row is not known here, so nothing is stored: the cast of
       -- this text to an integer fails the statement.
       case when meta.ours and (select count(*) from stored) < pg_catalog.cardinality(:queues::text[])
            then (select pg_catalog.concat('a trigger left out ', pg_catalog.cardinality(:queues::text[]) - count(*))
                  from stored)::integer
       end as kept_out,
       array(
           select pg_notify(:channel, soon.queue)::text
           from (select distinct queue from stored, moment where due_at < now + meta.notice_horizon) as soon
       ) as rung
from meta;

-- name: publish_timer
-- Store a message unless its timer id is taken (skip, raise): the usual case of `publish_own_timer`, without a dedup
-- window to open and outside the timer's own handler.
with meta as materialized (
    select identity = coalesce(:identity::uuid, identity) as ours, notice_horizon, :metas_channel as channel
    from nightmail_meta limit 1
), stored as (
    insert into nightmail_messages
        (queue, priority, due_at, published_at, expires_at, timer_id, timer_key, ordering_key, headers, body)
    select :queue, :priority::smallint,
           greatest(coalesce(:due_at::timestamptz, (now at time zone 'UTC' + :delay::interval) at time zone 'UTC'), now),
           now, (now at time zone 'UTC' + :expires_in::interval) at time zone 'UTC',
           :timer_id, :timer_id, :ordering_key, :headers, :body::bytea
    from (select coalesce(:now::timestamptz, clock_timestamp()) as now from meta where ours limit 1) as moment
    where not exists (
        select from nightmail_dedup as d
        where d.queue = :queue and d.timer_id = :timer_id
          and d.until > coalesce(:now::timestamptz, statement_timestamp()))
    on conflict (queue, timer_key) where timer_key is not null do nothing
    returning id, due_at, published_at
)
select meta.ours, true as held, stored.id, false as opened,
       case when stored.due_at < stored.published_at + meta.notice_horizon
            then pg_notify(meta.channel, :queue)::text
       end as rung
from meta left join stored on true;

-- name: publish_own_timer
-- Store a message unless its timer id is taken (skip, raise). Under the publisher's own timer id it is always stored.
-- The owner of a taken timer id is never locked: claims would skip it until the caller's transaction ends.
-- The dedup window is written first. Of two publishers one waits there for the other, and then sees its row.
with meta as materialized (
    select identity = coalesce(:identity::uuid, identity) as ours, notice_horizon from nightmail_meta limit 1
), moment as materialized (
    select asked, now, now at time zone 'UTC' as utc
    from (select coalesce(:now::timestamptz, statement_timestamp()), coalesce(:now::timestamptz, clock_timestamp()))
        as t(asked, now)
), own as materialized (
    select m.id from nightmail_messages as m where m.id = :own_id::bigint and m.token = :own_token::uuid for update
), fence as materialized (
    select ours, :own_id::bigint is null or exists (select from own) as held, notice_horizon from meta
), rearmed as (
    update nightmail_messages as m set timer_key = null
    where m.id = any(array(select own.id from own)) and m.queue = :queue and m.timer_key = :timer_id
      and (select ours from meta)
    returning m.id
), permit as materialized (
    select rearms.many = 1 as rearm
    from fence, (select count(*) from rearmed) as rearms(many)
    where ours and held and (rearms.many = 1 or not exists (
        select from nightmail_dedup as d, moment
        where d.queue = :queue and d.timer_id = :timer_id and d.until > moment.asked))
), opened as (
    insert into nightmail_dedup as d (queue, timer_id, until)
    select :queue, :timer_id, (utc + :dedup_for::interval) at time zone 'UTC'
    from permit, moment
    where :dedup_for::interval is not null and (permit.rearm or not exists (
        select from nightmail_messages as m where m.queue = :queue and m.timer_key = :timer_id))
    on conflict (queue, timer_id) do update set until = greatest(d.until, excluded.until)
    where d.until <= (select asked from moment) or (select rearm from permit)
    returning d.queue
), stored as (
    insert into nightmail_messages
        (queue, priority, due_at, published_at, expires_at, timer_id, timer_key, ordering_key, headers, body)
    select :queue, :priority::smallint,
           greatest(coalesce(:due_at::timestamptz, (utc + :delay::interval) at time zone 'UTC'), now),
           now, (utc + :expires_in::interval) at time zone 'UTC',
           :timer_id, :timer_id, :ordering_key, :headers, :body::bytea
    from permit, moment
    where :dedup_for::interval is null or exists (select from opened)
    on conflict (queue, timer_key) where timer_key is not null do nothing
    returning id, due_at
)
select fence.ours, fence.held, (select id from stored) as id, exists (select from opened) as opened,
       (select pg_notify(:channel, :queue)::text from stored, moment where due_at < now + fence.notice_horizon) as rung
from fence;

-- name: overwrite
-- Store a message over the waiting owner of its timer id, or next to a running owner, which loses the timer id
-- (replace, earliest, latest). `kept` means that the owner's due time won. Neither stored nor kept: an owner appeared
-- meanwhile, try again.
with meta as materialized (
    select identity = coalesce(:identity::uuid, identity) as ours, notice_horizon from nightmail_meta limit 1
), moment as materialized (
    select asked, now, now at time zone 'UTC' as utc
    from (select coalesce(:now::timestamptz, statement_timestamp()), coalesce(:now::timestamptz, clock_timestamp()))
        as t(asked, now)
), fresh as materialized (
    select now, greatest(coalesce(:due_at::timestamptz, (utc + :delay::interval) at time zone 'UTC'), now) as due_at,
           (utc + :expires_in::interval) at time zone 'UTC' as expires_at
    from moment
), own as materialized (
    select m.id from nightmail_messages as m where m.id = :own_id::bigint and m.token = :own_token::uuid for update
), fence as materialized (
    select ours, :own_id::bigint is null or exists (select from own) as held, notice_horizon from meta
), owner as materialized (
    select m.id, m.due_at, m.ordering_key,
           coalesce(m.id = :own_id::bigint or m.lease_until > moment.asked, false) as running
    from nightmail_messages as m, moment, fence
    where fence.ours and fence.held and m.queue = :queue and m.timer_key = :timer_id
    for update of m
), detached as (
    update nightmail_messages as m set timer_key = null, superseded = m.id is distinct from :own_id::bigint
    where m.id = any(array(select owner.id from owner where running))
    returning m.id
), outcome as materialized (
    select exists (
        select from owner, fresh
        where not running and (
            :policy::text = 'earliest' and fresh.due_at >= owner.due_at
            or :policy::text = 'latest' and fresh.due_at <= owner.due_at)
    ) as kept
), stored as (
    insert into nightmail_messages as m
        (queue, priority, due_at, published_at, expires_at, timer_id, timer_key, ordering_key, headers, body)
    select :queue, :priority::smallint, fresh.due_at, fresh.now, fresh.expires_at,
           :timer_id, :timer_id, :ordering_key, :headers, :body::bytea
    -- Counting `detached` forces its update to run before the new row takes the timer id.
    from fresh, fence, outcome, (select count(*) from detached) as superseded
    where fence.ours and fence.held and not outcome.kept
    on conflict (queue, timer_key) where timer_key is not null do update set
        body = excluded.body, headers = excluded.headers,
        due_at = excluded.due_at, published_at = excluded.published_at, expires_at = excluded.expires_at,
        priority = excluded.priority, ordering_key = excluded.ordering_key,
        -- It is at the head of its key's line; with another key it joins another line.
        head_key = case when m.ordering_key = excluded.ordering_key then m.head_key end,
        attempts = 0, deliveries = 0, first_attempt_at = null, last_attempt_at = null, last_error = null,
        token = null, lease_until = null, claimed_at = null, stop_requested_by = null
    where (m.token is null or m.lease_until <= (select asked from moment)) and (
        :policy::text = 'replace'
        or :policy::text = 'earliest' and excluded.due_at < m.due_at
        or :policy::text = 'latest' and excluded.due_at > m.due_at)
    -- xmax is set if the row was there before. If the owner was not seen above, it may have had an ordering key.
    returning m.id, m.due_at, m.xmax <> 0 as was_there
)
select fence.ours, fence.held, outcome.kept, (select id from stored) as id,
       (select pg_notify(:channel, :queue)::text from stored, moment
        where due_at < now + fence.notice_horizon
           or exists (select from owner where ordering_key is not null)
           or was_there and not exists (select from owner)
       ) as rung
from fence, outcome;

-- name: close_window
-- Delete the dedup window of a publish that was overtaken by one without a window.
delete from nightmail_dedup where queue = :queue and timer_id = :timer_id;

-- name: there
-- Whether the session sees tables with our names: to query a missing one would abort the caller's transaction.
select pg_catalog.to_regclass(:meta::text) is not null as there;

-- name: place
-- The schema of our tables, as this session sees it.
select n.nspname::text as schema
from pg_catalog.pg_class as c
join pg_catalog.pg_namespace as n on n.oid operator(pg_catalog.=) c.relnamespace
where c.oid operator(pg_catalog.=) pg_catalog.to_regclass(:meta::text)::oid;

-- name: identity
-- The identity of these tables.
select identity from nightmail_meta;

-- name: channel
-- The channel on which these tables notify.
select :channel as channel;

-- name: ring
-- Notify a channel.
select pg_catalog.pg_notify(:on_channel, :queue)::text;
