-- Claiming. Each priority is scanned separately, along the index from the oldest due time up to now.
-- Statements that find many rows return them as one row: see `gathered`.

-- name: levels
-- Queues and priorities at which something is due, highest first. All of it may be running. And the pauses of these
-- queues; NULL, for one look at an empty table, while there is not one pause. An end that cannot be read is none.
SELECT
    json_group_array(json_array(queue.value, level.value)),
    CASE WHEN EXISTS (SELECT 1 FROM nightmail_controls) THEN (
        SELECT json_group_array(json_array(
            pause.queue,
            cast(pause.ordering_key AS TEXT),
            pause.automatic,
            CASE WHEN typeof(pause.until) = 'integer' THEN pause.until END
        ))
        FROM json_each(:queues) AS paused
        CROSS JOIN nightmail_controls AS pause
        WHERE pause.queue = paused.value
    ) END
FROM json_each(:queues) AS queue
CROSS JOIN json_each('[9, 8, 7, 6, 5, 4, 3, 2, 1, 0]') AS level
WHERE EXISTS (
    SELECT 1
    FROM nightmail_messages AS m
    WHERE m.queue = queue.value AND m.follows = 0 AND m.priority = level.value AND m.due_at <= :now
);

-- name: candidates
-- Claimable messages at one priority of a queue, due between two times, in order: a JSON list of their values, and their
-- headers and bodies in hexadecimal, with commas between. Of an ordering key, only the message that holds it, or the
-- first due one if none does; of a paused one (a JSON list, NULL while there are none), nothing.
-- A row that cannot be delivered has only its id and a reason. Other software wrote it, and neither its values nor its
-- size may fail the claim of the other rows. What is too large to be read with the others is a dash.
SELECT '[' || coalesce(group_concat(entry), '') || ']', group_concat(headers), group_concat(body)
FROM (
    SELECT
        CASE
            WHEN length(body) > :max_body THEN json_array(id, 'too_large')
            WHEN
                typeof(due_at) = 'integer'
                AND due_at >= :beginning
                AND typeof(published_at) = 'integer'
                AND published_at BETWEEN :beginning AND :end
                AND (expires_at IS NULL OR (typeof(expires_at) = 'integer' AND expires_at BETWEEN :beginning AND :end))
                AND typeof(attempts) = 'integer'
                AND attempts BETWEEN 0 AND 2147483647
                AND typeof(deliveries) = 'integer'
                AND deliveries BETWEEN 0 AND 2147483647
                AND (
                    first_attempt_at IS NULL
                    OR (typeof(first_attempt_at) = 'integer' AND first_attempt_at BETWEEN :beginning AND :end)
                )
                AND (
                    last_attempt_at IS NULL
                    OR (typeof(last_attempt_at) = 'integer' AND last_attempt_at BETWEEN :beginning AND :end)
                )
                AND superseded IN (0, 1)
                THEN json_array(
                    id, due_at, length(body), cast(timer_id AS TEXT), cast(ordering_key AS TEXT), published_at,
                    expires_at, attempts, min(deliveries + 1, 2147483647), first_attempt_at, last_attempt_at, superseded
                )
            ELSE json_array(id, 'unreadable')
        END AS entry,
        CASE WHEN length(headers) <= :max_headers THEN hex(headers) ELSE '-' END AS headers,
        CASE WHEN length(body) <= :small THEN hex(body) ELSE '-' END AS body
    FROM nightmail_messages AS m
    WHERE
        queue = :queue
        AND follows = 0
        AND priority = :priority
        AND due_at BETWEEN :first AND :last
        AND (lease_until IS NULL OR lease_until <= :expired)
        AND (
            ordering_key IS NULL
            OR (
                (:paused_keys IS NULL OR ordering_key NOT IN (SELECT value FROM json_each(:paused_keys)))
                AND (
                    head_key IS NOT NULL
                    OR (
                        NOT EXISTS (
                            SELECT 1
                            FROM nightmail_messages AS head
                            WHERE head.queue = m.queue AND head.head_key = m.ordering_key
                        )
                        AND NOT EXISTS (
                            SELECT 1
                            FROM nightmail_messages AS earlier
                            WHERE
                                earlier.queue = m.queue
                                AND earlier.ordering_key = m.ordering_key
                                AND earlier.follows = 0
                                AND earlier.due_at <= :now
                                AND earlier.id < m.id
                        )
                    )
                )
            )
        )
    ORDER BY due_at, id
    LIMIT :limit
);

-- name: lease
-- Lease these messages, which have no ordering keys.
UPDATE nightmail_messages
SET
    token = :token,
    lease_until = :lease_until,
    claimed_at = :now,
    deliveries = min(deliveries + 1, 2147483647)
WHERE id IN (SELECT value FROM json_each(:ids));

-- name: lease_in_line
-- Lease these messages, which hold their ordering keys from their first claim on. A separate statement, because writing
-- `head_key` runs a trigger for each row.
UPDATE nightmail_messages
SET
    token = :token,
    lease_until = :lease_until,
    claimed_at = :now,
    deliveries = min(deliveries + 1, 2147483647),
    head_key = ordering_key
WHERE id IN (SELECT value FROM json_each(:ids));

-- name: bodies
-- The bodies of these messages by id, in hexadecimal.
SELECT json_group_object(id, hex(body))
FROM nightmail_messages
WHERE id IN (SELECT value FROM json_each(:ids));

-- name: strays
-- Messages of these queues that no claim would ever find: their priority or due time is invalid. Other software wrote
-- them.
SELECT m.id
FROM json_each(:queues) AS queue
CROSS JOIN json_each('[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]') AS level
CROSS JOIN nightmail_messages AS m
WHERE m.queue = queue.value AND m.follows = 0 AND m.priority = level.value AND m.due_at > :end
UNION ALL
SELECT m.id
FROM json_each(:queues) AS queue
CROSS JOIN nightmail_messages AS m
WHERE m.queue = queue.value AND m.follows = 0 AND m.priority > 9
UNION ALL
SELECT m.id
FROM json_each(:queues) AS queue
CROSS JOIN nightmail_messages AS m
WHERE m.queue = queue.value AND m.follows = 0 AND m.priority < 0
LIMIT :limit;

-- name: bury_unfit
-- Turn a message that cannot be delivered into a dead letter that is not offered. Invalid values are replaced. For a
-- large body only the space is reserved: see `copy_body`. No RETURNING: it would load the body into memory.
INSERT INTO nightmail_dead (
    message_id, queue, priority, attempts, deliveries, published_at, first_attempt_at, last_attempt_at, died_at,
    timer_id, ordering_key, reason, error, headers, body
)
SELECT
    id,
    cast(queue AS TEXT),
    CASE WHEN typeof(priority) = 'integer' AND priority BETWEEN 0 AND 9 THEN priority ELSE 0 END,
    CASE WHEN typeof(attempts) = 'integer' THEN max(0, min(attempts, 2147483647)) ELSE 0 END,
    CASE WHEN typeof(deliveries) = 'integer' THEN max(0, min(deliveries, 2147483647)) ELSE 0 END,
    CASE
        WHEN typeof(published_at) = 'integer' AND published_at BETWEEN :beginning AND :end THEN published_at
        ELSE :now
    END,
    CASE
        WHEN typeof(first_attempt_at) = 'integer' AND first_attempt_at BETWEEN :beginning AND :end
            THEN first_attempt_at
    END,
    CASE
        WHEN typeof(last_attempt_at) = 'integer' AND last_attempt_at BETWEEN :beginning AND :end THEN last_attempt_at
    END,
    :now,
    cast(timer_id AS TEXT),
    cast(ordering_key AS TEXT),
    :reason,
    :error,
    cast(headers AS TEXT),
    CASE
        WHEN typeof(body) = 'blob' AND length(body) > :small THEN zeroblob(length(body))
        ELSE cast(body AS BLOB)
    END
FROM nightmail_messages
WHERE id = :id;

-- name: buried
-- The id of the dead letter just inserted.
SELECT last_insert_rowid();

-- name: upcoming
-- When the next message in these queues is due, or the next lease on one expires.
SELECT min(moment)
FROM (
    SELECT (
        SELECT min(m.due_at)
        FROM nightmail_messages AS m
        WHERE
            m.queue = queue.value
            AND m.follows = 0
            AND m.priority = level.value
            AND m.due_at > :now
            AND m.due_at <= :end
    ) AS moment
    FROM json_each(:queues) AS queue
    CROSS JOIN json_each('[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]') AS level
    UNION ALL
    SELECT (
        SELECT min(m.lease_until)
        FROM nightmail_messages AS m INDEXED BY nightmail_messages_leased
        WHERE m.queue = queue.value AND m.lease_until > :expired AND m.lease_until <= :end
    ) AS moment
    FROM json_each(:queues) AS queue
);

-- name: recall
-- Hand back what is leased under this token in these queues, as `release` does. Returns their queues.
UPDATE nightmail_messages
SET
    deliveries = max(deliveries - 1, 0),
    token = NULL,
    lease_until = NULL,
    claimed_at = NULL
WHERE id IN (
    SELECT m.id
    FROM json_each(:queues) AS queue
    CROSS JOIN nightmail_messages AS m INDEXED BY nightmail_messages_leased
    WHERE m.queue = queue.value AND m.lease_until IS NOT NULL AND m.token = :token
)
RETURNING queue;
