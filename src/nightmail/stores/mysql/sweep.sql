-- Deleting what is old. What to delete is found without a lock, along an index. Then these rows are locked, those that
-- somebody else has locked are passed over, and exactly these are deleted: nobody waits for it, and it waits for nobody.
-- `:begun`: the transaction is open, and so what was locked is still ours to delete.

-- name: purgeable
-- Dead letters that are meant and that nobody holds, oldest first.
select d.id from :letters
where :which and (d.token is null or d.lease_until <= :now)
order by d.id
limit :limit;

-- name: old_letters
-- What died before this and is not held.
select d.id from nightmail_dead as d force index (nightmail_dead_died_at)
where d.died_at < :now - interval :older_than microsecond and (d.token is null or d.lease_until <= :now)
order by d.died_at
limit :limit;

-- name: old_deliveries
-- What was delivered before this.
select d.id from nightmail_delivered as d force index (nightmail_delivered_at)
where d.delivered_at < :now - interval :older_than microsecond
order by d.delivered_at
limit :limit;

-- name: lock_deliveries
-- Those of these that nobody else has locked, locked.
select d.id from nightmail_delivered as d force index (primary) where d.id in :ids for update skip locked;

-- name: remove_deliveries
-- Delete what was just locked.
delete d from json_table(:ids, '$[*]' columns (id bigint path '$')) as gone
straight_join nightmail_delivered as d force index (primary) on d.id = gone.id
where :begun;

-- name: lock_ended_windows
-- Dedup windows that have ended, locked, but for those that somebody else has locked. All that is read is wanted.
select d.queue, d.timer_id from nightmail_dedup as d force index (nightmail_dedup_until)
where d.until <= :now
order by d.until
limit :limit
for update skip locked;
