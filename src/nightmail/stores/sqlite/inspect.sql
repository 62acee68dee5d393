-- Operator queries. Read-only, on a separate connection, so nothing waits for them.

-- name: queues
-- The queues that have messages: one lookup in the index for each, however many it has.
WITH RECURSIVE queues(queue) AS (
    SELECT min(queue)
    FROM nightmail_messages
    UNION ALL
    SELECT (SELECT min(m.queue) FROM nightmail_messages AS m WHERE m.queue > queues.queue)
    FROM queues
    WHERE queues.queue IS NOT NULL
)
SELECT queue
FROM queues
WHERE queue IS NOT NULL;

-- name: peek_level
-- Waiting messages of one level of a queue, by due time: in the order of the index, so that no more are read.
SELECT due_at, id
FROM nightmail_messages INDEXED BY nightmail_messages_due
WHERE
    queue = :queue
    AND follows = :follows
    AND priority = :priority
    AND due_at < :due_before
    AND (due_at, id) > (:after, :after_id)
    AND (lease_until IS NULL OR lease_until <= :now)
    AND superseded = 0
ORDER BY due_at, id
LIMIT :limit;

-- name: peek
-- Those of these messages that still wait, by due time.
SELECT
    id, queue, cast(timer_id AS TEXT), cast(ordering_key AS TEXT), priority, due_at, published_at, expires_at, attempts,
    cast(body AS BLOB), cast(headers AS TEXT)
FROM nightmail_messages
WHERE
    id IN (SELECT value FROM json_each(:ids))
    AND (lease_until IS NULL OR lease_until <= :now)
    AND superseded = 0
ORDER BY due_at, id;

-- name: peek_timer
-- The message of a queue that owns this timer id, if it waits.
SELECT due_at, id
FROM nightmail_messages
WHERE
    queue = :queue
    AND timer_key = :timer_id
    AND due_at < :due_before
    AND (due_at, id) > (:after, :after_id)
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
    id < :cursor
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
    AND id < :cursor
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
    AND id < :cursor
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
    id < :cursor
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
    AND id < :cursor
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
    AND id < :cursor
    AND (:reason IS NULL OR reason = :reason)
    AND (:error IS NULL OR instr(error, :error) > 0)
    AND (:died_before IS NULL OR died_at < :died_before)
ORDER BY id DESC
LIMIT :limit;

-- name: stats
-- Counts for each queue with messages: ready, scheduled, running, superseded; and the due time of the oldest ready one.
-- All are counted in the index; those that run or are superseded, which it does not tell, are few, and found by reading
-- the table once from end to end. Reading each row by way of the index takes twenty times as long.
WITH counted AS MATERIALIZED (
    SELECT queue, count(*) AS messages, count(*) FILTER (WHERE due_at <= :now) AS due
    FROM nightmail_messages INDEXED BY nightmail_messages_due
    GROUP BY queue
), other AS MATERIALIZED (
    SELECT
        queue,
        count(*) AS messages,
        count(*) FILTER (WHERE due_at <= :now) AS due,
        count(*) FILTER (WHERE NOT superseded) AS running,
        count(*) FILTER (WHERE superseded) AS superseded
    FROM nightmail_messages NOT INDEXED
    WHERE superseded OR lease_until > :now
    GROUP BY queue
), levels(follows, priority) AS (
    SELECT f.value, p.value
    FROM json_each('[0,1]') AS f, json_each('[0,1,2,3,4,5,6,7,8,9]') AS p
)
SELECT
    counted.queue,
    counted.due - coalesce(other.due, 0),
    counted.messages - counted.due - coalesce(other.messages - other.due, 0),
    coalesce(other.running, 0),
    coalesce(other.superseded, 0),
    (
        SELECT min((
            SELECT m.due_at
            FROM nightmail_messages AS m INDEXED BY nightmail_messages_due
            WHERE
                m.queue = counted.queue
                AND m.follows = levels.follows
                AND m.priority = levels.priority
                AND m.due_at <= :now
                AND NOT m.superseded
                AND (m.lease_until IS NULL OR m.lease_until <= :now)
            ORDER BY m.due_at, m.id
            LIMIT 1
        ))
        FROM levels
    )
FROM counted
LEFT JOIN other USING (queue);

-- name: dead_stats
-- How many dead letters each queue has.
SELECT queue, count(*)
FROM nightmail_dead
GROUP BY queue;
