-- Statements on waiting messages, in a caller's transaction or in one of ours.

-- name: owner_id
-- The owner of this timer id, not locked.
select m.id from nightmail_messages as m where m.queue_timer = concat(:queue, x'00', :timer_id);

-- name: lock_waiting
-- Lock those of these messages that wait, each with its timer id, its ordering key, and whether it waits in line for
-- that without being parked. Found by id: found by timer id or queue, those that run would stay locked too, and could
-- not be settled. And a settlement locks the row first: locking the timer id first would deadlock with it.
select m.id, m.timer_key, m.ordering_key, m.parked = 0 and m.head_key is null
from nightmail_messages as m force index (primary)
where m.id in :ids and m.queue = :queue and (m.token is null or m.lease_until <= :now)
for update;

-- name: waiting_owner
-- Lock the owner of a timer id if it waits: for sessions that may see a message that is gone, or miss one that is
-- there.
select m.id, m.timer_key, m.ordering_key, m.parked = 0 and m.head_key is null
from nightmail_messages as m
where m.queue_timer = concat(:queue, x'00', :timer_id) and (m.token is null or m.lease_until <= :now)
for update;

-- name: cancel
-- Remove the message that was just locked.
delete from nightmail_messages where id = :id;

-- name: newest
-- The highest id.
select coalesce(max(m.id), 0) from nightmail_messages as m;

-- name: waiting_in_queue
-- Some of the waiting messages of a queue after a position, not locked.
select m.id, m.due_at
from nightmail_messages as m force index (nightmail_claim)
where m.queue = :queue and m.parked = :parked and m.priority = :level and :within and :until
  and (m.token is null or m.lease_until <= :now)
order by m.due_at, m.id
limit :limit;

-- name: cancel_all
-- Remove messages that were just locked. By a join: with a list of ids alone, a small table is scanned in
-- full, and the delete waits for rows that others have locked.
delete m from json_table(:ids, '$[*]' columns (id bigint path '$')) as gone
straight_join nightmail_messages as m force index (primary) on m.id = gone.id;

-- name: close_window
-- Close the dedup window: this timer id counts as taken only while it has an owner.
delete from nightmail_dedup where queue = :queue and timer_id = :timer_id;

-- name: close_windows
-- Close the dedup windows of these timer ids: a list of queues and timer ids, in hexadecimal. By a join, as above.
-- `:begun`: in a packet of ours, its transaction is still open.
delete d from json_table(:timers, '$[*]' columns (
    queue varchar(2040) character set latin1 path '$[0]', timer_id varchar(2040) character set latin1 path '$[1]'
)) as gone
straight_join nightmail_dedup as d force index (primary)
    on d.queue = unhex(gone.queue) and d.timer_id = unhex(gone.timer_id)
where :begun;

-- name: reschedule
-- Move the message that was just locked to another due time. Clears an expired lease: its holder must not settle a
-- message that the caller was told will run later.
update nightmail_messages set due_at = :due, parked = 0, token = null, lease_until = null, claimed_at = null where id = :id;
