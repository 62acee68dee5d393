-- Statements on waiting messages, in a caller's transaction or in one of ours.

-- name: bearer_id
-- Who bears this name, not locked.
select m.id from nightmail_messages as m where m.queue_timer = concat(:queue, x'00', :timer_id);

-- name: lock_waiting
-- Those of these messages that wait, locked, each with its name, its ordering key, and whether it stands in line for that
-- without being parked. Found by their ids: found by their names or their queue, those that run would stay locked too, and
-- could not be settled. And a settlement locks the row first: who locks the name first would end in a deadlock with it.
select m.id, m.timer_key, m.ordering_key, m.parked = 0 and m.head_key is null
from nightmail_messages as m force index (primary)
where m.id in :ids and m.queue = :queue and (m.token is null or m.lease_until <= :now)
for update;

-- name: waiting_bearer
-- The waiting bearer of a name, locked: for sessions that may see a message that is gone, or miss one that is there.
select m.id, m.timer_key, m.ordering_key, m.parked = 0 and m.head_key is null
from nightmail_messages as m
where m.queue_timer = concat(:queue, x'00', :timer_id) and (m.token is null or m.lease_until <= :now)
for update;

-- name: remove_timer
-- Remove the message that was just locked.
delete from nightmail_messages where id = :id;

-- name: newest
-- The highest id.
select coalesce(max(m.id), 0) from nightmail_messages as m;

-- name: waiting_in_queue
-- Some of the messages of a queue after a place that wait, not locked.
select m.id, m.due_at
from nightmail_messages as m force index (nightmail_claim)
where m.queue = :queue and m.parked = :parked and m.priority = :level and :within and :until
  and (m.token is null or m.lease_until <= :now)
order by m.due_at, m.id
limit :limit;

-- name: remove_these
-- Remove messages that were just locked. By a join: of a small table, a list of ids alone would have every row read, and
-- the delete would wait for rows of others.
delete m from json_table(:ids, '$[*]' columns (id bigint path '$')) as gone
straight_join nightmail_messages as m force index (primary) on m.id = gone.id;

-- name: close_windows
-- End the dedup windows of these names: a list of queues and timer ids, in hexadecimal. By a join, as above. `:begun`:
-- in a packet of ours, that its transaction is still open.
delete d from json_table(:names, '$[*]' columns (
    queue varchar(2040) character set latin1 path '$[0]', timer_id varchar(2040) character set latin1 path '$[1]'
)) as gone
straight_join nightmail_dedup as d force index (primary)
    on d.queue = unhex(gone.queue) and d.timer_id = unhex(gone.timer_id)
where :begun;

-- name: reschedule
-- Move the message that was just locked to another due time. An expired lease on it ends: its holder must not end what
-- somebody was told will run later.
update nightmail_messages set due_at = :due, parked = 0, token = null, lease_until = null, claimed_at = null where id = :id;
