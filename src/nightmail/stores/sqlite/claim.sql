-- Claiming. Each priority is looked at by itself: along the index from the oldest due time to now, and no further.
-- Statements that find many rows give them as one list: see `gathered`.

-- name: levels
-- The priorities of a queue at which something is due, though perhaps all of it is running.
SELECT level.value
FROM json_each('[9, 8, 7, 6, 5, 4, 3, 2, 1, 0]') AS level
WHERE EXISTS (
    SELECT 1
    FROM nightmail_messages AS m
    WHERE m.queue = :queue AND m.priority = level.value AND m.due_at <= :now
);

-- name: available
-- What could be claimed at one priority of a queue, due between two moments, in order, as its holder will get it: bodies
-- in hexadecimal, though large ones only by their size, which comes last. With an ordering key, only the message that holds it, or the first of
-- those who are due if nobody does.
-- Casts: a value of another kind that somebody put there by hand would otherwise fail the claim, for ever.
SELECT json_group_array(json_array(
    id, queue, CASE WHEN size <= :small THEN hex(body) END, cast(headers AS TEXT), cast(timer_id AS TEXT),
    cast(ordering_key AS TEXT), priority, due_at, published_at, :now, expires_at, attempts, deliveries + 1,
    first_attempt_at, last_attempt_at, superseded, size
))
FROM (
    SELECT *, length(body) AS size
    FROM nightmail_messages AS m
    WHERE
        queue = :queue
        AND priority = :priority
        AND due_at BETWEEN :first AND :last
        AND (lease_until IS NULL OR lease_until <= :now)
        AND (
            ordering_key IS NULL
            OR head_key IS NOT NULL
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
                        AND earlier.id < m.id
                        AND earlier.due_at <= :now
                )
            )
        )
    ORDER BY due_at, id
    LIMIT :limit
);

-- name: lease
-- Lease these messages. From their first claim on they hold their ordering keys.
UPDATE nightmail_messages
SET
    token = :token,
    lease_until = :lease_until,
    claimed_at = :now,
    deliveries = deliveries + 1,
    head_key = ordering_key
WHERE id IN (SELECT value FROM json_each(:ids));

-- name: bodies
-- The bodies of these messages by their ids, in hexadecimal.
SELECT json_group_object(id, hex(body))
FROM nightmail_messages
WHERE id IN (SELECT value FROM json_each(:ids));

-- name: upcoming
-- When the next message of these queues is due, or the next lease on one of them expires. What is leased was due, so
-- the leases are found among what is due.
SELECT min(moment)
FROM (
    SELECT (
        SELECT min(m.due_at)
        FROM nightmail_messages AS m
        WHERE m.queue = queue.value AND m.priority = level.value AND m.due_at > :now
    ) AS moment
    FROM json_each(:queues) AS queue
    CROSS JOIN json_each('[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]') AS level
    UNION ALL
    SELECT (
        SELECT min(m.lease_until)
        FROM nightmail_messages AS m
        WHERE
            m.queue = queue.value
            AND m.priority = level.value
            AND m.due_at <= :now
            AND m.lease_until > :now
    ) AS moment
    FROM json_each(:queues) AS queue
    CROSS JOIN json_each('[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]') AS level
);

-- name: recall
-- What is leased under this token in these queues. It is rare, so it may look at every message of a queue: by due time
-- it would miss some after the clock was set back.
SELECT
    m.id, m.queue, hex(m.body), cast(m.headers AS TEXT), cast(m.timer_id AS TEXT), cast(m.ordering_key AS TEXT),
    m.priority, m.due_at, m.published_at, m.claimed_at, m.expires_at, m.attempts, m.deliveries, m.first_attempt_at,
    m.last_attempt_at, m.superseded, length(m.body)
FROM json_each(:queues) AS queue
CROSS JOIN nightmail_messages AS m
WHERE m.queue = queue.value AND m.token = :token;
