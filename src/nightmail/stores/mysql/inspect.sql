-- Operator queries. Nothing here locks a row.

-- name: after
-- A condition on messages: later in the order of due times and ids than this one.
(m.due_at >= :due_at and (m.due_at > :due_at or m.id > :id))

-- name: peek_level
-- Waiting messages of one level of a queue: one branch of `peek` for one queue.
(select m.id, m.due_at from nightmail_messages as m force index (nightmail_claim)
 where m.queue = :queue and m.parked = :parked and m.priority = :level and m.due_at < :due_before
   and :after and not m.superseded and (m.token is null or m.lease_until <= :now)
 order by m.due_at, m.id limit :limit)

-- name: peek_timer
-- The owner of a timer id of a queue, if it waits: the branch of `peek` for a timer.
(select m.id, m.due_at from nightmail_messages as m
 where m.queue_timer = concat(:queue, x'00', :timer_id)
   and m.due_at < :due_before and :after and (m.token is null or m.lease_until <= :now)
 order by m.due_at, m.id limit :limit)

-- name: peek_these
-- Those of these messages that wait: the branch of `peek` for several queues.
(select m.id, m.due_at from nightmail_messages as m force index (primary)
 where m.id in :ids and not m.superseded and (m.token is null or m.lease_until <= :now))

-- name: peek_ids
-- Which messages of a queue wait, by due time.
select found.id, found.due_at from (:branches order by due_at, id limit :limit) as found;

-- name: next_queue
-- The first queue after this one that has messages: one lookup in the index, however many it has. The server reads all
-- entries for `distinct`, and for a recursive query too.
select m.queue from nightmail_messages as m force index (nightmail_claim)
where m.queue > :queue
order by m.queue
limit 1;

-- name: peek
-- Waiting messages by due time.
select m.id, m.queue, m.timer_id, m.ordering_key, m.priority, m.due_at, m.published_at, m.expires_at,
       m.attempts, m.body, m.headers
from (:branches order by due_at, id limit :limit) as found
straight_join nightmail_messages as m on m.id = found.id
order by found.due_at, found.id;

-- name: find
-- The messages with these ids, whatever their state.
select m.id, m.queue, m.timer_id, m.ordering_key, m.priority, m.due_at, m.published_at, m.expires_at,
       m.attempts, m.body, m.headers, m.deliveries, m.superseded, m.claimed_at, m.lease_until,
       coalesce(m.lease_until > :now, false), m.first_attempt_at, m.last_attempt_at, m.last_error
from nightmail_messages as m force index (primary)
where m.id in :ids
order by m.id;

-- name: dead
-- Dead letters that match every given condition, newest first, without their content.
select d.id, d.body_bytes + d.header_bytes
from :letters
where :which and (:cursor is null or d.id < :cursor)
order by d.id desc
limit :limit;

-- name: read_dead
-- Read these dead letters.
select d.id, d.message_id, d.queue, d.reason, d.error, d.timer_id, d.ordering_key, d.priority, d.attempts,
       d.deliveries, d.published_at, d.first_attempt_at, d.last_attempt_at, d.died_at, d.body, d.headers
from nightmail_dead as d force index (primary)
where d.id in :ids;

-- name: of_one_queue
-- The source of dead letters of one queue.
nightmail_dead as d force index (nightmail_dead_queue)

-- name: of_all_queues
-- The source of dead letters otherwise.
nightmail_dead as d force index (primary)

-- name: which_letters
-- A condition on dead letters: every given filter must match.
((:queue is null or d.queue = :queue)
 and (:reason is null or d.reason = :reason)
 and (:error is null or locate(:error, d.error) > 0)
 and (:older_than is null or d.died_at < :now - interval :older_than microsecond)
 and (:no_ids or d.id in :ids))

-- name: dead_errors
-- Why dead letters that match every given condition died, newest first: as much of the error as makes its fingerprint.
-- Grouped by the server they would take three times as long: texts of any length go through a table on the disk.
select d.id, d.queue, cast(d.reason as binary), cast(left(d.error, :characters) as binary),
       coalesce(timestampdiff(microsecond, timestamp'1970-01-01 00:00:00', d.died_at), :earliest)
from :letters
where :which and d.id < :below
order by d.id desc
limit :limit;

-- name: snapshot
-- All that is read until the commit is of one moment.
start transaction with consistent snapshot;

-- name: stats
-- How many messages each queue has, how many of them are due, and how many are superseded: counted in the index alone.
select m.queue, count(*), count(case when m.due_at <= :now then 1 end), count(case when m.superseded then 1 end)
from nightmail_messages as m force index (nightmail_claim)
group by m.queue;

-- name: running_stats
-- How many messages of these queues run. With the queues it is a few short ranges; without them, the whole index.
select m.queue, count(*) from nightmail_messages as m force index (nightmail_leased)
where m.queue in :queues and m.lease_until > :now and not m.superseded
group by m.queue;

-- name: oldest
-- For how long the oldest ready message of a queue has been due.
select timestampdiff(microsecond, min(found.due_at), :now) from (:branches) as found;

-- name: dead_stats
-- How many dead letters each queue has.
select queue, count(*) from nightmail_dead group by queue;
