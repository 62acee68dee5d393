-- Operator queries. Read-only, on a separate connection, so nothing waits for them.

-- name: peek
-- Waiting messages of a queue, or of all, by due time: the first of each part of the index, and of these the first. One
-- lookup for each queue finds the next one, however many messages it has. Ids are sorted without the bodies, which may
-- be large.
WITH RECURSIVE queues(queue) AS (
    SELECT coalesce(:queue, (SELECT min(m.queue) FROM nightmail_messages AS m))
    UNION ALL
    SELECT (SELECT min(m.queue) FROM nightmail_messages AS m WHERE m.queue > queues.queue)
    FROM queues
    WHERE :queue IS NULL AND queues.queue IS NOT NULL
), levels(follows, priority) AS (
    SELECT f.value, p.value
    FROM json_each('[0,1]') AS f, json_each('[0,1,2,3,4,5,6,7,8,9]') AS p
)
SELECT
    id, queue, cast(timer_id AS TEXT), cast(ordering_key AS TEXT), priority, due_at, published_at, expires_at, attempts,
    cast(body AS BLOB), cast(headers AS TEXT)
FROM nightmail_messages
WHERE id IN (
    SELECT first.id
    FROM queues
    CROSS JOIN levels
    CROSS JOIN nightmail_messages AS first
    WHERE first.id IN (
        SELECT m.id
        FROM nightmail_messages AS m INDEXED BY nightmail_messages_due
        WHERE
            m.queue = queues.queue
            AND m.follows = levels.follows
            AND m.priority = levels.priority
            AND m.due_at < :due_before
            AND (m.due_at, m.id) > (:after, :after_id)
            AND (m.lease_until IS NULL OR m.lease_until <= :now)
            AND m.superseded = 0
        ORDER BY m.due_at, m.id
        LIMIT :limit
    )
    ORDER BY first.due_at, first.id
    LIMIT :limit
)
ORDER BY due_at, id;

-- name: peek_timer
-- The messages that own this timer id, in a queue or in all, if they wait.
WITH RECURSIVE queues(queue) AS (
    SELECT coalesce(:queue, (SELECT min(m.queue) FROM nightmail_messages AS m))
    UNION ALL
    SELECT (SELECT min(m.queue) FROM nightmail_messages AS m WHERE m.queue > queues.queue)
    FROM queues
    WHERE :queue IS NULL AND queues.queue IS NOT NULL
)
SELECT
    id, queue, cast(timer_id AS TEXT), cast(ordering_key AS TEXT), priority, due_at, published_at, expires_at, attempts,
    cast(body AS BLOB), cast(headers AS TEXT)
FROM nightmail_messages
WHERE id IN (
    SELECT m.id
    FROM queues
    CROSS JOIN nightmail_messages AS m INDEXED BY nightmail_messages_timer
    WHERE
        m.queue = queues.queue
        AND m.timer_key = :timer_id
        AND m.due_at < :due_before
        AND (m.due_at, m.id) > (:after, :after_id)
        AND (m.lease_until IS NULL OR m.lease_until <= :now)
    ORDER BY m.due_at, m.id
    LIMIT :limit
)
ORDER BY due_at, id;

-- name: find
-- The messages with these ids, whatever their state.
SELECT
    id, queue, cast(timer_id AS TEXT), cast(ordering_key AS TEXT), priority, due_at, published_at, expires_at, attempts,
    cast(body AS BLOB), cast(headers AS TEXT), deliveries, superseded, claimed_at, lease_until,
    coalesce(lease_until > :now, 0), first_attempt_at, last_attempt_at, cast(last_error AS TEXT)
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
