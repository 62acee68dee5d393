-- Operator queries. Read-only, on a separate connection, so nothing waits for them.

-- name: peek
-- Waiting messages of all queues, by due time. The ids are sorted without the bodies, which may be large.
SELECT
    id, queue, cast(timer_id AS TEXT), cast(ordering_key AS TEXT), priority, due_at, published_at, expires_at, attempts,
    cast(body AS BLOB), cast(headers AS TEXT)
FROM nightmail_messages
WHERE id IN (
    SELECT id
    FROM nightmail_messages
    WHERE
        (:timer_id IS NULL OR timer_key = :timer_id)
        AND (:due_before IS NULL OR due_at < :due_before)
        AND (:after IS NULL OR (due_at, id) > (:after, :after_id))
        AND (lease_until IS NULL OR lease_until <= :now)
        AND superseded = 0
    ORDER BY due_at, id
    LIMIT :limit
)
ORDER BY due_at, id;

-- name: peek_queue
-- Waiting messages of one queue, by due time.
SELECT
    id, queue, cast(timer_id AS TEXT), cast(ordering_key AS TEXT), priority, due_at, published_at, expires_at, attempts,
    cast(body AS BLOB), cast(headers AS TEXT)
FROM nightmail_messages
WHERE id IN (
    SELECT id
    FROM nightmail_messages
    WHERE
        queue = :queue
        AND (:due_before IS NULL OR due_at < :due_before)
        AND (:after IS NULL OR (due_at, id) > (:after, :after_id))
        AND (lease_until IS NULL OR lease_until <= :now)
        AND superseded = 0
    ORDER BY due_at, id
    LIMIT :limit
)
ORDER BY due_at, id;

-- name: peek_timer
-- The message that owns this timer id, if it waits.
SELECT
    id, queue, cast(timer_id AS TEXT), cast(ordering_key AS TEXT), priority, due_at, published_at, expires_at, attempts,
    cast(body AS BLOB), cast(headers AS TEXT)
FROM nightmail_messages
WHERE
    queue = :queue
    AND timer_key = :timer_id
    AND (:due_before IS NULL OR due_at < :due_before)
    AND (:after IS NULL OR (due_at, id) > (:after, :after_id))
    AND (lease_until IS NULL OR lease_until <= :now)
LIMIT :limit;

-- name: find
-- The messages with these ids, whatever their state.
SELECT
    id, queue, cast(timer_id AS TEXT), cast(ordering_key AS TEXT), priority, due_at, published_at, expires_at, attempts,
    cast(body AS BLOB), cast(headers AS TEXT), deliveries, superseded, claimed_at, lease_until,
    coalesce(lease_until > :now, 0), first_attempt_at, last_attempt_at
FROM nightmail_messages
WHERE id IN (SELECT value FROM json_each(:ids))
ORDER BY id;

-- name: dead
-- Dead letters of all queues, newest first, starting below the cursor: ids and sizes.
SELECT id, length(body) + length(headers)
FROM nightmail_dead
WHERE
    (:cursor IS NULL OR id < :cursor)
    AND (:reason IS NULL OR reason = :reason)
    AND (:error IS NULL OR instr(error, :error) > 0)
    AND (:died_before IS NULL OR died_at < :died_before)
ORDER BY id DESC
LIMIT :limit;

-- name: dead_queue
-- Dead letters of one queue, newest first, starting below the cursor: ids and sizes.
SELECT id, length(body) + length(headers)
FROM nightmail_dead
WHERE
    queue = :queue
    AND (:cursor IS NULL OR id < :cursor)
    AND (:reason IS NULL OR reason = :reason)
    AND (:error IS NULL OR instr(error, :error) > 0)
    AND (:died_before IS NULL OR died_at < :died_before)
ORDER BY id DESC
LIMIT :limit;

-- name: dead_ids
-- Those of these dead letters that exist, newest first, starting below the cursor: ids and sizes.
SELECT id, length(body) + length(headers)
FROM nightmail_dead
WHERE
    id IN (SELECT value FROM json_each(:ids))
    AND (:cursor IS NULL OR id < :cursor)
    AND (:queue IS NULL OR queue = :queue)
    AND (:reason IS NULL OR reason = :reason)
    AND (:error IS NULL OR instr(error, :error) > 0)
    AND (:died_before IS NULL OR died_at < :died_before)
ORDER BY id DESC
LIMIT :limit;

-- name: read_dead
-- These dead letters, newest first. Casts: one edited by hand must not hide the others.
SELECT
    id, message_id, queue, cast(reason AS TEXT), cast(error AS TEXT), cast(timer_id AS TEXT), cast(ordering_key AS TEXT),
    priority, attempts, deliveries, published_at, first_attempt_at, last_attempt_at, died_at, cast(body AS BLOB),
    cast(headers AS TEXT)
FROM nightmail_dead
WHERE id IN (SELECT value FROM json_each(:ids))
ORDER BY id DESC;

-- name: dead_errors
-- Why dead letters of all queues died, newest first: as much of the error as makes its fingerprint.
SELECT id, cast(queue AS BLOB), cast(reason AS BLOB), cast(substr(cast(error AS TEXT), 1, 200) AS BLOB), died_at
FROM nightmail_dead
WHERE
    (:cursor IS NULL OR id < :cursor)
    AND (:reason IS NULL OR reason = :reason)
    AND (:error IS NULL OR instr(error, :error) > 0)
    AND (:died_before IS NULL OR died_at < :died_before)
ORDER BY id DESC
LIMIT :limit;

-- name: dead_errors_queue
-- The same for one queue.
SELECT id, cast(queue AS BLOB), cast(reason AS BLOB), cast(substr(cast(error AS TEXT), 1, 200) AS BLOB), died_at
FROM nightmail_dead
WHERE
    queue = :queue
    AND (:cursor IS NULL OR id < :cursor)
    AND (:reason IS NULL OR reason = :reason)
    AND (:error IS NULL OR instr(error, :error) > 0)
    AND (:died_before IS NULL OR died_at < :died_before)
ORDER BY id DESC
LIMIT :limit;

-- name: dead_errors_ids
-- The same for those of these dead letters that exist.
SELECT id, cast(queue AS BLOB), cast(reason AS BLOB), cast(substr(cast(error AS TEXT), 1, 200) AS BLOB), died_at
FROM nightmail_dead
WHERE
    id IN (SELECT value FROM json_each(:ids))
    AND (:queue IS NULL OR queue = :queue)
    AND (:cursor IS NULL OR id < :cursor)
    AND (:reason IS NULL OR reason = :reason)
    AND (:error IS NULL OR instr(error, :error) > 0)
    AND (:died_before IS NULL OR died_at < :died_before)
ORDER BY id DESC
LIMIT :limit;

-- name: stats
-- Counts for each queue with messages: ready, scheduled, running, superseded; and the due time of the oldest ready one.
SELECT
    queue,
    count(*) FILTER (WHERE NOT superseded AND (lease_until IS NULL OR lease_until <= :now) AND due_at <= :now),
    count(*) FILTER (WHERE NOT superseded AND (lease_until IS NULL OR lease_until <= :now) AND due_at > :now),
    count(*) FILTER (WHERE NOT superseded AND lease_until > :now),
    count(*) FILTER (WHERE superseded),
    min(due_at) FILTER (WHERE NOT superseded AND (lease_until IS NULL OR lease_until <= :now) AND due_at <= :now)
FROM nightmail_messages
GROUP BY queue;

-- name: dead_stats
-- How many dead letters each queue has.
SELECT queue, count(*)
FROM nightmail_dead
GROUP BY queue;
