-- What messages and dead letters have in common: a lease. Loaded twice, the second time for the table and the index of
-- the dead letters. `:leases` is the fence: ids and tokens and, in a packet of ours, that the transaction is still open.
-- By primary key: another index would lock rows that are not ours. `:stopped`: whether the holder is asked to stop.

-- name: lock_leased
-- Lock those of these that are still under these leases; fails at once if one of them is locked.
select m.id, :stopped from nightmail_messages as m force index (primary) where :leases for update nowait;

-- name: lock_leased_unlocked
-- The same, skipping rows that are locked.
select m.id, :stopped from nightmail_messages as m force index (primary) where :leases for update skip locked;

-- name: still_leased
-- Which of these are still under these leases, locked or not.
select m.id from nightmail_messages as m force index (primary) where :leases;

-- name: hold
-- Lock these in a caller's transaction; returns those still under these leases.
select m.id from nightmail_messages as m force index (primary) where :leases order by m.id for update;

-- name: extend
-- Extend these leases to :lease from now, never shortening one.
update nightmail_messages as m force index (primary)
set m.lease_until = greatest(m.lease_until, :now + interval :lease microsecond)
where :leases;

-- name: remove
-- Remove these.
delete m from nightmail_messages as m force index (primary) where :leases;

-- name: leased_under
-- What a claim leased under this token, and in which queues.
select m.id, m.queue from nightmail_messages as m force index (nightmail_leased)
where m.queue in :queues and m.lease_until > :ever and m.token = :token;

-- name: expiring
-- When the next lease in a queue ends: one branch of the query that says when to look again.
(select m.lease_until as at from nightmail_messages as m force index (nightmail_leased)
 where m.queue = :queue and m.lease_until > :now
 order by m.lease_until limit 1)

-- name: leased_at
-- When this was leased.
select m.claimed_at from nightmail_messages as m force index (primary) where m.id = :id;
