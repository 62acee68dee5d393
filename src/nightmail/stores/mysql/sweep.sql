-- Deleting old rows. They are found without a lock, along an index. Then they are locked, skipping those that are
-- locked already, and exactly these are deleted: it neither waits nor makes others wait. `:begun`: the transaction is
-- open, so what was locked is still ours to delete.

-- name: purgeable
-- Dead letters that match and are not leased, oldest first.
select d.id from :letters
where :which and (d.token is null or d.lease_until <= :now)
order by d.id
limit :limit;

-- name: old_letters
-- Dead letters older than this that are not leased.
select d.id from nightmail_dead as d force index (nightmail_dead_died_at)
where d.died_at < :now - interval :older_than microsecond and (d.token is null or d.lease_until <= :now)
order by d.died_at
limit :limit;

-- name: old_deliveries
-- Delivered messages older than this.
select d.id from nightmail_delivered as d force index (nightmail_delivered_at)
where d.delivered_at < :now - interval :older_than microsecond
order by d.delivered_at
limit :limit;

-- name: lock_deliveries
-- Lock these, skipping locked ones.
select d.id from nightmail_delivered as d force index (primary) where d.id in :ids for update skip locked;

-- name: remove_deliveries
-- Delete what was just locked.
delete d from json_table(:ids, '$[*]' columns (id bigint path '$')) as gone
straight_join nightmail_delivered as d force index (primary) on d.id = gone.id
where :begun;

-- name: lock_ended_windows
-- Lock dedup windows that have ended, skipping locked ones. Every row read is wanted.
select d.queue, d.timer_id from nightmail_dedup as d force index (nightmail_dedup_until)
where d.until <= :now
order by d.until
limit :limit
for update skip locked;
