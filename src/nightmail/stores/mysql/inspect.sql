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

-- name: peek_all
-- Waiting messages of all queues: the branch of `peek` that reads the whole table.
(select m.id, m.due_at from nightmail_messages as m
 where m.due_at < :due_before and :after and not m.superseded and (m.token is null or m.lease_until <= :now)
 order by m.due_at, m.id limit :limit)

-- name: peek_timer
-- The owner of a timer id, if it waits: the branch of `peek` for a timer.
(select m.id, m.due_at from nightmail_messages as m
 where m.timer_key = :timer_id and (:queue is null or m.queue_timer = concat(:queue, x'00', :timer_id))
   and m.due_at < :due_before and :after and (m.token is null or m.lease_until <= :now)
 order by m.due_at, m.id limit :limit)

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
       coalesce(m.lease_until > :now, false), m.first_attempt_at, m.last_attempt_at
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

-- name: summarize_dead
-- Dead letters that match every given condition, counted by queue, reason and fingerprint (see `fingerprint` in
-- records.py), the largest group first.
select found.queue, found.reason, found.fingerprint, count(*), min(found.died_at), max(found.died_at),
       max(found.id) as newest, sum(count(*)) over ()
from (
    select d.id, d.queue, d.reason, d.died_at,
           regexp_replace(left(substring_index(d.error, char(10), 1), 200),
               '[A-Za-z_-]*[0-9][A-Za-z0-9_-]*', '#') as fingerprint
    from :letters
    where :which
) as found
group by found.queue, found.reason, found.fingerprint
order by count(*) desc, newest desc
limit :limit;

-- name: stats
-- The counts of each queue that has messages.
select m.queue,
       sum(not m.superseded and (m.token is null or m.lease_until <= :now) and m.due_at <= :now) as ready,
       sum(not m.superseded and (m.token is null or m.lease_until <= :now) and m.due_at > :now) as scheduled,
       sum(not m.superseded and m.token is not null and m.lease_until > :now) as running,
       sum(m.superseded) as superseded,
       timestampdiff(microsecond, min(case when not m.superseded and (m.token is null or m.lease_until <= :now)
           and m.due_at <= :now then m.due_at end), :now) as oldest
from nightmail_messages as m
group by m.queue;

-- name: dead_stats
-- How many dead letters each queue has.
select queue, count(*) from nightmail_dead group by queue;
