-- Deletes what is no longer needed, a little at a time. A locked row is skipped: it is in use, and the next sweep finds
-- it.

-- name: purge
-- Delete dead letters that match every given condition and are not leased, oldest first.
with chosen as materialized (
    select d.id from nightmail_dead as d
    where (:queue::text is null or d.queue = :queue)
      and (:reason::text is null or d.reason = :reason)
      and (:error::text is null or position(:error in d.error) > 0)
      and (:older_than::interval is null or d.died_at < (
          coalesce(:now::timestamptz, statement_timestamp()) at time zone 'UTC' - :older_than) at time zone 'UTC')
      and (:ids::bigint[] is null or d.id = any(:ids))
      and (d.token is null or d.lease_until <= coalesce(:now::timestamptz, statement_timestamp()))
    order by d.id
    limit :limit::integer
    for update skip locked
), gone as (
    delete from nightmail_dead as d where d.id = any(array(select chosen.id from chosen)) returning d.id
)
select count(*) as deleted from gone;

-- name: sweep_delivered
-- Delete what was delivered longer than :older_than ago, oldest first.
with chosen as materialized (
    select d.id from nightmail_delivered as d
    where d.delivered_at < (
        coalesce(:now::timestamptz, statement_timestamp()) at time zone 'UTC' - :older_than::interval
    ) at time zone 'UTC'
    order by d.delivered_at
    limit :limit::integer
    for update skip locked
), gone as (
    delete from nightmail_delivered as d where d.id = any(array(select chosen.id from chosen)) returning d.id
)
select count(*) as deleted from gone;

-- name: sweep_dead
-- Delete dead letters that died longer than :older_than ago and are not leased, oldest first.
with chosen as materialized (
    select d.id from nightmail_dead as d
    where d.died_at < (
        coalesce(:now::timestamptz, statement_timestamp()) at time zone 'UTC' - :older_than::interval
    ) at time zone 'UTC'
      and (d.token is null or d.lease_until <= coalesce(:now::timestamptz, statement_timestamp()))
    order by d.died_at
    limit :limit::integer
    for update skip locked
), gone as (
    delete from nightmail_dead as d where d.id = any(array(select chosen.id from chosen)) returning d.id
)
select count(*) as deleted from gone;

-- name: sweep_dedup
-- Delete dedup windows that have ended. By ctid, which stays the same while the row is locked.
with chosen as materialized (
    select d.ctid from nightmail_dedup as d
    where d.until <= coalesce(:now::timestamptz, statement_timestamp())
    order by d.until
    limit :limit::integer
    for update skip locked
), gone as (
    delete from nightmail_dedup as d where d.ctid = any(array(select chosen.ctid from chosen)) returning d.until
)
select count(*) as deleted from gone;
