-- Pauses, requests to stop, the registry of workers, and what holds a message back.

-- name: pause
-- Pause a queue, or an ordering key in it. Pausing again keeps `since`, unless the pause before it is over.
INSERT INTO nightmail_controls (queue, ordering_key, automatic, since, until, length, paused_by, reason)
VALUES (:queue, :ordering_key, :automatic, :now, :until, :length, :paused_by, :reason)
ON CONFLICT (queue, ordering_key, automatic) DO UPDATE SET
    since = CASE WHEN automatic OR until IS NULL OR until > :now THEN since ELSE :now END,
    until = excluded.until,
    length = excluded.length,
    paused_by = excluded.paused_by,
    reason = excluded.reason;

-- name: resume
-- End this pause. Returns whether its end had passed; NULL if it had none. After RETURNING, some releases of SQLite take
-- `IS NULL` to be always false.
DELETE FROM nightmail_controls
WHERE queue = :queue AND ordering_key = :ordering_key AND automatic = :automatic
RETURNING until <= :now;

-- name: pauses
-- The pauses in force, in order.
SELECT queue, ordering_key, automatic, since, until, paused_by, reason
FROM nightmail_controls
WHERE automatic OR until IS NULL OR until > :now
ORDER BY queue, ordering_key, automatic;

-- name: pauses_queue
-- The pauses in force in one queue, in order.
SELECT queue, ordering_key, automatic, since, until, paused_by, reason
FROM nightmail_controls
WHERE queue = :queue AND (automatic OR until IS NULL OR until > :now)
ORDER BY queue, ordering_key, automatic;

-- name: end_pauses
-- Remove the pauses of these queues that are over. No claim heeds them, but each would read them.
DELETE FROM nightmail_controls
WHERE queue IN (SELECT value FROM json_each(:queues)) AND NOT automatic AND until <= :now;

-- name: renew_pause
-- A probe was taken: pause this queue for as long again.
UPDATE nightmail_controls
SET until = min(:now + length, :end)
WHERE queue = :queue AND ordering_key = '' AND automatic;

-- name: probe_again
-- A probe that was claimed then did not run: let the next one through. A pause that was set or renewed since is left
-- alone.
UPDATE nightmail_controls
SET until = :now
WHERE queue = :queue AND ordering_key = '' AND automatic AND until > :now AND until - length <= :claimed_at;

-- name: request_stop
-- Ask the holder of this message to stop it, if it runs.
UPDATE nightmail_messages
SET stop_requested_by = :by
WHERE id = :id AND lease_until > :now
RETURNING id;

-- name: report
-- Note that this worker is alive.
INSERT INTO nightmail_workers (id, host, pid, version, queues, state, started_at, seen_at)
VALUES (:id, :host, :pid, :version, :queues, :state, :now, :now)
ON CONFLICT (id) DO UPDATE SET
    host = excluded.host,
    pid = excluded.pid,
    version = excluded.version,
    queues = excluded.queues,
    state = excluded.state,
    seen_at = excluded.seen_at;

-- name: leaving
-- This worker, and those that were last seen before this time: there are none, as a rule.
SELECT id, queues, host, pid, seen_at
FROM nightmail_workers
WHERE id = :id OR seen_at < :before;

-- name: forget_workers
-- Forget the workers that were last seen before this time. They are few: no index is worth its upkeep.
DELETE FROM nightmail_workers
WHERE seen_at < :before;

-- name: note_consumer
-- Note who consumed this queue last, unless another was seen there later.
INSERT INTO nightmail_consumers (queue, seen_at, host, pid)
VALUES (:queue, :seen_at, :host, :pid)
ON CONFLICT (queue) DO UPDATE SET
    seen_at = excluded.seen_at,
    host = excluded.host,
    pid = excluded.pid
WHERE seen_at < excluded.seen_at;

-- name: forget_consumers
-- Forget who consumed a queue last, if that was seen before this time. There is one of each queue: no index is worth
-- its upkeep.
DELETE FROM nightmail_consumers
WHERE seen_at < :before;

-- name: last_consumers
-- Who consumed each queue last since this time, of those that no longer do.
SELECT queue, host, pid, seen_at
FROM nightmail_consumers
WHERE seen_at >= :since;

-- name: sign_off
-- Forget this worker.
DELETE FROM nightmail_workers
WHERE id = :id
RETURNING id, queues, host, pid, seen_at;

-- name: workers
-- The workers seen since this time, in order.
SELECT id, host, pid, version, queues, state, started_at, seen_at
FROM nightmail_workers
WHERE seen_at >= :since
ORDER BY host, pid, id;

-- name: leases
-- Running messages, the longest running first. Only leased ones are in the index.
SELECT id, queue, cast(token AS BLOB), attempts, deliveries, claimed_at, lease_until
FROM nightmail_messages INDEXED BY nightmail_messages_leased
WHERE lease_until > :now
ORDER BY claimed_at, id
LIMIT :limit;

-- name: facts
-- What holds this message back: who runs it, who wants it stopped, which message goes before it in its ordering key
-- (perhaps itself), which one owns its timer id now, and how many are due before it.
SELECT
    CASE WHEN m.lease_until > :now THEN cast(m.token AS BLOB) END,
    cast(m.stop_requested_by AS TEXT),
    coalesce(
        (
            SELECT head.id
            FROM nightmail_messages AS head
            WHERE head.queue = m.queue AND head.head_key = m.ordering_key
        ),
        (
            SELECT min(first.id)
            FROM nightmail_messages AS first
            WHERE
                first.queue = m.queue
                AND first.ordering_key = m.ordering_key
                AND first.follows = 0
                AND first.due_at <= :now
        )
    ),
    CASE WHEN m.superseded THEN (
        SELECT owner.id
        FROM nightmail_messages AS owner
        WHERE owner.queue = m.queue AND owner.timer_key = m.timer_id
    ) END,
    (
        SELECT count(*)
        FROM (
            SELECT 1
            FROM nightmail_messages AS ahead
            WHERE
                ahead.queue = m.queue
                AND ahead.follows IN (0, 1)
                AND ahead.priority IN (0, 1, 2, 3, 4, 5, 6, 7, 8, 9)
                AND ahead.due_at <= m.due_at
                AND (ahead.due_at < m.due_at OR ahead.id < m.id)
                AND (ahead.lease_until IS NULL OR ahead.lease_until <= :now)
                AND NOT ahead.superseded
            LIMIT :most_ahead
        )
    )
FROM nightmail_messages AS m
WHERE m.id = :id;

-- name: newest_letter
-- The newest dead letter of this message, without its body.
SELECT
    id, message_id, queue, cast(reason AS TEXT), cast(error AS TEXT), cast(timer_id AS TEXT), cast(ordering_key AS TEXT),
    priority, attempts, deliveries, published_at, first_attempt_at, last_attempt_at, died_at, x'', cast(headers AS TEXT)
FROM nightmail_dead
WHERE message_id = :id
ORDER BY id DESC
LIMIT 1;

-- name: delivered_at
-- When this message was delivered.
SELECT delivered_at
FROM nightmail_delivered
WHERE message_id = :id
LIMIT 1;
