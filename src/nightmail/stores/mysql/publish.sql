-- Statements that run in a caller's transaction or in one of ours. `:now` is the store's clock when the statement runs.
-- The server computes `:due` and `:expires_at` from it.

-- name: publish_batch
-- Store messages without timer ids, in the order given.
insert into nightmail_messages (queue, priority, due_at, published_at, expires_at, ordering_key, headers, body)
values :rows;

-- name: publish_if_ours
-- Store one message without a timer id in a caller's transaction, unless these are not our tables.
insert into nightmail_messages (queue, priority, due_at, published_at, expires_at, ordering_key, headers, body)
select :queue, :priority, :due, :now, :expires_at, :ordering_key, :headers, :body
from nightmail_meta where identity = :identity;

-- name: publish_timer
-- Store a message that takes its timer id. Fails with a duplicate key if the timer id has an owner.
insert into nightmail_messages
    (queue, priority, due_at, published_at, expires_at, timer_id, timer_key, ordering_key, headers, body)
values (:queue, :priority, :due, :now, :expires_at, :timer_id, :timer_id, :ordering_key, :headers, :body);

-- name: taken
-- Whether this timer id has an owner or a dedup window keeps it taken. Locks nothing: a duplicate key found by
-- inserting would hide the owner from claims until the caller's transaction ends, and block others from neighbouring
-- timer ids.
select 1 from nightmail_messages where queue_timer = concat(:queue, x'00', :timer_id)
union all
select 1 from nightmail_dedup where queue = :queue and timer_id = :timer_id and until > :now;

-- name: taken_now
-- The same in a transaction that may have an old snapshot, though its session reports read committed. Nothing is
-- inserted: the answer is the last insert id, 0 for no. What an INSERT selects is read as it is now: at read committed
-- without a lock, at repeatable read with one. The argument of `last_insert_id` must not be known before a row is read.
insert into nightmail_dedup (queue, timer_id, until)
select m.queue, m.timer_key, :now from nightmail_messages as m
where m.queue_timer = concat(:queue, x'00', :timer_id) and last_insert_id(m.id) < 0
union all
select d.queue, d.timer_id, d.until from nightmail_dedup as d
where d.queue = :queue and d.timer_id = :timer_id and d.until > :now and last_insert_id(year(d.until)) < 0;

-- name: own
-- The message of the handler that publishes, locked, if its lease still holds.
select queue, timer_key from nightmail_messages where id = :own_id and token = :own_token for update;

-- name: own_letter
-- The same for a dead letter handler: a dead letter owns no timer id.
select queue, null from nightmail_dead where id = :own_id and token = :own_token for update;

-- name: owner
-- The owner of this timer id, locked by its id: whether it runs, whether the new due time wins, its ordering key, and
-- whether it waits in line for that without being parked. A settlement locks the row and then the timer id: the
-- opposite order would deadlock with it. A policy says its character set, as the parameter does: a plain literal has the
-- collation of the caller's connection, which MySQL refuses to compare with another.
select m.id, coalesce(m.lease_until > :now, 0) as running,
       case :policy when _utf8mb4'earliest' then :due < m.due_at when _utf8mb4'latest' then :due > m.due_at
            else 1 end as wins,
       m.queue, m.ordering_key, m.parked = 0 and m.head_key is null as in_line
from nightmail_messages as m force index (primary)
where m.id in :ids and m.queue_timer = concat(:queue, x'00', :timer_id)
for update;

-- name: owner_by_timer_id
-- The same for sessions that may see a message that is gone, or miss one that is there.
select m.id, coalesce(m.lease_until > :now, 0) as running,
       case :policy when _utf8mb4'earliest' then :due < m.due_at when _utf8mb4'latest' then :due > m.due_at
            else 1 end as wins,
       m.queue, m.ordering_key, m.parked = 0 and m.head_key is null as in_line
from nightmail_messages as m
where m.queue_timer = concat(:queue, x'00', :timer_id)
for update;

-- name: detach
-- Take the timer id from a running message, which goes on without it.
update nightmail_messages set timer_key = null, superseded = greatest(superseded, :superseded) where id = :id;

-- name: overwrite
-- Replace a waiting message with a new one. It still holds its ordering key if that is the same.
update nightmail_messages
set head_key = case when ordering_key <=> :ordering_key then head_key end,
    parked = 0, ordering_key = :ordering_key, priority = :priority, due_at = :due, published_at = :now, expires_at = :expires_at,
    headers = :headers, body = :body, attempts = 0, deliveries = 0, first_attempt_at = null, last_attempt_at = null,
    last_error = null, token = null, lease_until = null, claimed_at = null, stop_requested_by = null
where id = :id;

-- name: window
-- Whether an earlier publish still keeps this timer id taken, locked.
select until > :now from nightmail_dedup where queue = :queue and timer_id = :timer_id for update;

-- name: open_window
-- Keep this timer id taken until then, never shortening an open window.
insert into nightmail_dedup (queue, timer_id, until) values (:queue, :timer_id, :until)
on duplicate key update until = greatest(until, :until);

-- name: withdraw
-- Remove a message stored earlier in this transaction.
delete from nightmail_messages where id = :id;

-- name: identity
-- Which tables these are.
select identity from nightmail_meta;
