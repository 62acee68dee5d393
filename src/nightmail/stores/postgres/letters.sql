-- Dead letters under the lease of a dead letter handler. As with messages: fenced by id and token only; ids come sorted
-- and unique, so that width_bucket finds a row's place in the arrays; no joins. What they have in common with messages
-- is in under_lease.sql.

-- name: claim_dead
-- Lease up to :limit dead letters of at most :max_bytes in total, the longest due first. Unless the claim is `full`,
-- also return when the next one of these queues is due or the next lease ends. What is larger than :max_body_bytes or
-- :max_header_bytes is given up and not read: it is never due again.
--
-- Each queue comes twice: first up to `bound`, where the last of them is if no row is locked, then behind it, to make
-- up for locked rows. So only the rows that are claimed are locked.
with bound as materialized (
    select found.due_at, found.id
    from (
        select first.due_at, first.id
        from unnest(:wanted::text[]) as q(queue),
        lateral (
            select d.due_at, d.id
            from nightmail_dead as d
            where d.queue = q.queue and d.due_at is not null
              and d.due_at <= coalesce(:now::timestamptz, statement_timestamp())
              and (d.token is null or d.lease_until <= coalesce(:now::timestamptz, statement_timestamp()))
            order by d.due_at, d.id
            limit :limit::integer
        ) as first
        order by first.due_at, first.id
        limit :limit::integer
    ) as found
    order by found.due_at desc, found.id desc
    limit 1
), picked as materialized (
    select taken.id, taken.due_at, taken.body_bytes + taken.header_bytes as bytes,
           taken.body_bytes > :max_body_bytes::integer or taken.header_bytes > :max_header_bytes::integer as too_large
    from unnest(:queues::text[], :behind::boolean[]) with ordinality as given(queue, behind, place),
    lateral (
        select before.id, before.due_at, before.body_bytes, before.header_bytes
        from (
            select d.id, d.due_at, octet_length(d.body)::bigint as body_bytes, octet_length(d.headers) as header_bytes
            from nightmail_dead as d
            where not given.behind
              and d.queue = given.queue and d.due_at is not null
              and (d.due_at, d.id) <= ((select bound.due_at from bound), (select bound.id from bound))
              and d.due_at <= coalesce(:now::timestamptz, statement_timestamp())
              and (d.token is null or d.lease_until <= coalesce(:now::timestamptz, statement_timestamp()))
            order by d.due_at, d.id
            limit :limit::integer
            for update of d skip locked
        ) as before
        union all
        select after.id, after.due_at, after.body_bytes, after.header_bytes
        from (
            select d.id, d.due_at, octet_length(d.body)::bigint as body_bytes, octet_length(d.headers) as header_bytes
            from nightmail_dead as d
            where given.behind
              and d.queue = given.queue and d.due_at is not null
              and (d.due_at, d.id) > ((select bound.due_at from bound), (select bound.id from bound))
              and d.due_at <= coalesce(:now::timestamptz, statement_timestamp())
              and (d.token is null or d.lease_until <= coalesce(:now::timestamptz, statement_timestamp()))
            order by d.due_at, d.id
            limit :limit::integer
            for update of d skip locked
        ) as after
    ) as taken
    order by given.place
    limit :limit::integer
), counted as materialized (
    -- The first that may be read always fits.
    select sized.id, sized.too_large,
           not sized.too_large and (sized.total <= :max_bytes::bigint or sized.many = 1) as fits
    from (
        select picked.id, picked.too_large,
               sum(picked.bytes) filter (where not picked.too_large) over run as total,
               count(*) filter (where not picked.too_large) over run as many
        from picked
        window run as (order by picked.due_at, picked.id)
    ) as sized
), told as materialized (
    select count(*) >= :limit::integer or count(*) filter (where not fits) > 0 as full from counted
), given_up as (
    update nightmail_dead as d
    set due_at = null, token = null, lease_until = null, claimed_at = null
    where d.id = any(array(select counted.id from counted where too_large))
), claimed as (
    update nightmail_dead as d
    set token = :token::uuid, claimed_at = coalesce(:now::timestamptz, clock_timestamp()),
        lease_until = (coalesce(:now::timestamptz, clock_timestamp()) at time zone 'UTC' + :lease::interval)
            at time zone 'UTC',
        claims = least(d.claims, 2147483646) + 1
    where d.id = any(array(select counted.id from counted where fits))
    returning d.id, d.queue, d.body, d.headers, d.timer_id, d.ordering_key, d.priority, d.due_at,
              d.published_at, d.claimed_at, d.failures, d.claims, d.first_attempt_at,
              d.last_attempt_at, d.message_id, d.reason, d.error, d.died_at
), expected as materialized (
    select told.full, case when not told.full then least(
        (select min(coming.due_at)
         from unnest(:wanted::text[]) as q(queue),
         lateral (
             select d.due_at from nightmail_dead as d
             where d.queue = q.queue and d.due_at is not null
               and d.due_at > coalesce(:now::timestamptz, statement_timestamp())
             order by d.due_at, d.id
             limit 1
         ) as coming),
        (select min(held.lease_until)
         from unnest(:wanted::text[]) as q(queue),
         lateral (
             select d.lease_until from nightmail_dead as d
             where d.queue = q.queue and d.due_at is not null
               and d.due_at <= coalesce(:now::timestamptz, statement_timestamp())
               and d.lease_until > coalesce(:now::timestamptz, statement_timestamp())
             order by d.due_at, d.id
             limit 1000
         ) as held)
    ) - coalesce(:now::timestamptz, statement_timestamp()) end as next_in
    from told
)
select claimed.*, expected.next_in, expected.full
from expected left join claimed on true;

-- name: recall_dead
-- Release what a claim of dead letters under this token leased, as `Release` does, and ring for it. As with messages,
-- at most :most waiting ones are passed over in each queue.
with edges as materialized (
    select q.queue, edge.due_at, edge.id
    from unnest(:queues::text[]) as q(queue)
    left join lateral (
        select d.due_at, d.id from nightmail_dead as d
        where d.queue = q.queue and d.due_at is not null and d.token is null
        order by d.due_at, d.id
        offset :most::integer limit 1
    ) as edge on true
), leased as materialized (
    select found.id
    from edges,
    lateral (
        select d.id from nightmail_dead as d
        where d.queue = edges.queue and d.due_at is not null
          and (d.due_at, d.id) < (coalesce(edges.due_at, 'infinity'), coalesce(edges.id, 0))
          and d.token = :token::uuid
        order by d.due_at, d.id
        limit 1000000
    ) as found
), chosen as materialized (
    select d.id from nightmail_dead as d
    where d.id = any(array(select leased.id from leased)) and d.token = :token::uuid
    order by d.id
    for update skip locked
), back as (
    update nightmail_dead as d
    set token = null, lease_until = null, claimed_at = null, claims = greatest(d.claims - 1, 0)
    where d.id = any(array(select chosen.id from chosen))
    returning d.queue
)
select (select count(*) from back) as many,
       array(select pg_notify(:channel, awake.queue)::text from (select distinct queue from back) as awake) as rung;

-- name: settle_dead
-- Delete some dead letters, and bring others back or give them up ('dead': never due again).
with moment as materialized (
    select now, now at time zone 'UTC' as utc from (select coalesce(:now::timestamptz, clock_timestamp())) as t(now)
), gone as (
    delete from nightmail_dead as d
    where d.id = any(:ids::bigint[]) and d.token = (:tokens::uuid[])[width_bucket(d.id, :ids::bigint[])]
    returning d.id
), back as (
    update nightmail_dead as d
    set token = null, lease_until = null, claimed_at = null,
        failures = case (:back_kinds::text[])[width_bucket(d.id, :back_ids::bigint[])]
            when 'retry' then least(d.failures, 2147483646) + 1 when 'postpone' then 0 else d.failures end,
        claims = case (:back_kinds::text[])[width_bucket(d.id, :back_ids::bigint[])]
            when 'release' then greatest(d.claims - 1, 0) else 0 end,
        due_at = case (:back_kinds::text[])[width_bucket(d.id, :back_ids::bigint[])]
            when 'dead' then null when 'release' then d.due_at else (
                (select utc from moment) + (:back_afters::interval[])[width_bucket(d.id, :back_ids::bigint[])]
            ) at time zone 'UTC' end
    where d.id = any(:back_ids::bigint[])
      and d.token = (:back_tokens::uuid[])[width_bucket(d.id, :back_ids::bigint[])]
    returning d.id, d.queue, d.due_at
)
select array(select id from gone union all select id from back) as ids,
       array(
           select pg_notify(:channel, awake.queue)::text
           from (
               select distinct back.queue from back, moment, nightmail_meta as meta
               where back.due_at < moment.now + meta.notice_horizon
           ) as awake
       ) as rung;

-- name: extend_dead
-- Extend these leases to :lease from now, never shortening one, skipping locked rows. Nothing stops these.
with held as materialized (
    select d.id from nightmail_dead as d
    where d.id = any(:ids::bigint[]) and d.token = (:tokens::uuid[])[width_bucket(d.id, :ids::bigint[])]
    order by d.id
    for update skip locked
)
update nightmail_dead as d
set lease_until = greatest(
        d.lease_until,
        (coalesce(:now::timestamptz, clock_timestamp()) at time zone 'UTC' + :lease::interval) at time zone 'UTC')
where d.id = any(array(select held.id from held))
returning d.id, false as stop;

-- name: ack_dead
-- Delete these dead letters in a caller's transaction: all of them, or none.
with meta as materialized (
    select identity = coalesce(:identity::uuid, identity) as ours from nightmail_meta limit 1
), held as materialized (
    select d.id from nightmail_dead as d
    where d.id = any(:ids::bigint[]) and d.token = (:tokens::uuid[])[pg_catalog.width_bucket(d.id, :ids::bigint[])]
      and (select ours from meta)
    order by d.id
    for update
), gone as (
    delete from nightmail_dead as d
    where d.id = any(array(select held.id from held))
      and (select count(*) from held) = pg_catalog.cardinality(:ids::bigint[])
)
select meta.ours, array(select id from held) as ids from meta;
