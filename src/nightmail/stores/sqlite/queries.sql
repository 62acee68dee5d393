-- Every statement of the SQLite store but its schema. All of them run inside a transaction that the store has begun
-- with BEGIN IMMEDIATE, or that a caller has begun; only reads run without one. Lists come as JSON, so that one
-- statement does for any number. `:now` and every other time is in microseconds, by the store's clock.

-- ------------------------------------------------------------------------------------------------ publish

-- name: publish
-- Store one message.
INSERT INTO nightmail_messages (
    queue, priority, due_at, published_at, expires_at, timer_id, timer_key, ordering_key, headers, body
)
VALUES (:queue, :priority, :due_at, :now, :expires_at, :timer_id, :timer_id, :ordering_key, :headers, :body)
RETURNING id;

-- name: publish_batch
-- Store many messages: their fields as a list of lists, their bodies one after the other in one piece.
INSERT INTO nightmail_messages (
    queue, priority, due_at, published_at, expires_at, ordering_key, headers, body
)
SELECT
    json_extract(value, '$[0]'),
    json_extract(value, '$[1]'),
    json_extract(value, '$[2]'),
    :now,
    json_extract(value, '$[3]'),
    json_extract(value, '$[4]'),
    json_extract(value, '$[5]'),
    substr(:bodies, json_extract(value, '$[6]'), json_extract(value, '$[7]'))
FROM json_each(:messages)
RETURNING id;

-- name: bearer
-- The message that bears this name.
SELECT id, due_at, lease_until, ordering_key, head_key
FROM nightmail_messages
WHERE queue = :queue AND timer_key = :timer_id;

-- name: detach
-- Take the name from a running message, which goes on without it.
UPDATE nightmail_messages
SET timer_key = NULL, superseded = max(superseded, :superseded)
WHERE id = :id;

-- name: overwrite
-- Put a new message in the place of a waiting one. It still holds its ordering key if that is the same.
UPDATE nightmail_messages
SET
    priority = :priority,
    due_at = :due_at,
    expires_at = :expires_at,
    head_key = CASE WHEN ordering_key IS :ordering_key THEN head_key END,
    ordering_key = :ordering_key,
    headers = :headers,
    body = :body,
    attempts = 0,
    deliveries = 0,
    first_attempt_at = NULL,
    last_attempt_at = NULL,
    token = NULL,
    lease_until = NULL,
    claimed_at = NULL
WHERE id = :id;

-- name: window
-- Whether this timer id counts as taken by an earlier publish.
SELECT 1
FROM nightmail_dedup
WHERE queue = :queue AND timer_id = :timer_id AND until > :now;

-- name: open_window
-- Let this timer id count as taken until then, and for no shorter time than it already does.
INSERT INTO nightmail_dedup (queue, timer_id, until)
VALUES (:queue, :timer_id, :until)
ON CONFLICT (queue, timer_id) DO UPDATE SET until = max(until, excluded.until);

-- name: clear_windows
-- Two windows that have ended, for each that is opened: so the table never outgrows the open ones for long.
DELETE FROM nightmail_dedup
WHERE (queue, timer_id) IN (
    SELECT queue, timer_id FROM nightmail_dedup WHERE until <= :now ORDER BY until LIMIT 2
);

-- -------------------------------------------------------------------------------------------------- claim

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
-- What could be claimed at one priority of a queue, in order. With an ordering key, only the message that holds it, or
-- the first of those who are due if nobody does.
SELECT id, due_at
FROM nightmail_messages AS m
WHERE
    queue = :queue
    AND priority = :priority
    AND due_at <= :now
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
LIMIT :limit;

-- name: lease
-- Lease these messages.
UPDATE nightmail_messages
SET
    token = :token,
    lease_until = :lease_until,
    claimed_at = :now,
    deliveries = deliveries + 1,
    head_key = ordering_key
WHERE id IN (SELECT value FROM json_each(:ids))
RETURNING
    id, token, queue, body, headers, timer_id, ordering_key, priority, due_at, published_at, claimed_at,
    expires_at, attempts, deliveries, first_attempt_at, last_attempt_at, superseded;

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
-- What is leased under this token in these queues.
SELECT
    m.id, m.token, m.queue, m.body, m.headers, m.timer_id, m.ordering_key, m.priority, m.due_at, m.published_at,
    m.claimed_at, m.expires_at, m.attempts, m.deliveries, m.first_attempt_at, m.last_attempt_at, m.superseded
FROM json_each(:queues) AS queue
CROSS JOIN json_each('[9, 8, 7, 6, 5, 4, 3, 2, 1, 0]') AS level
CROSS JOIN nightmail_messages AS m
WHERE m.queue = queue.value AND m.priority = level.value AND m.due_at <= :now AND m.token = :token;

-- ----------------------------------------------------------------------------------------- leases, settle

-- name: held
-- Of these leases, pairs of an id and a token in hexadecimal, the places of those that still hold.
SELECT lease.key, m.superseded
FROM json_each(:leases) AS lease
CROSS JOIN nightmail_messages AS m
WHERE m.id = json_extract(lease.value, '$[0]') AND hex(m.token) = json_extract(lease.value, '$[1]');

-- name: extend
-- Let the leases on these messages run until then, unless they run longer already.
UPDATE nightmail_messages
SET lease_until = :until
WHERE id IN (SELECT value FROM json_each(:ids)) AND lease_until < :until;

-- name: retry
-- Count an attempt and bring these messages back: pairs of an id and when it is due.
UPDATE nightmail_messages
SET
    attempts = attempts + 1,
    deliveries = 0,
    first_attempt_at = coalesce(first_attempt_at, :now),
    last_attempt_at = :now,
    due_at = CASE WHEN superseded THEN :now ELSE json_extract(returned.value, '$[1]') END,
    token = NULL,
    lease_until = NULL,
    claimed_at = NULL
FROM json_each(:returned) AS returned
WHERE nightmail_messages.id = json_extract(returned.value, '$[0]');

-- name: postpone
-- Bring these messages back with nothing counted: pairs of an id and when it is due.
UPDATE nightmail_messages
SET
    attempts = 0,
    deliveries = 0,
    first_attempt_at = NULL,
    last_attempt_at = NULL,
    due_at = CASE WHEN superseded THEN :now ELSE json_extract(returned.value, '$[1]') END,
    token = NULL,
    lease_until = NULL,
    claimed_at = NULL
FROM json_each(:returned) AS returned
WHERE nightmail_messages.id = json_extract(returned.value, '$[0]');

-- name: release
-- Hand these messages back as they were before the claim, due now.
UPDATE nightmail_messages
SET
    deliveries = max(deliveries - 1, 0),
    due_at = :now,
    token = NULL,
    lease_until = NULL,
    claimed_at = NULL
WHERE id IN (SELECT value FROM json_each(:ids));

-- name: bury
-- Copy these messages to the dead letters: triples of an id, a reason and an error.
INSERT INTO nightmail_dead (
    message_id, queue, priority, attempts, deliveries, published_at, first_attempt_at, last_attempt_at, died_at,
    timer_id, ordering_key, reason, error, headers, body
)
SELECT
    m.id,
    m.queue,
    m.priority,
    m.attempts,
    m.deliveries,
    m.published_at,
    m.first_attempt_at,
    m.last_attempt_at,
    :now,
    m.timer_id,
    m.ordering_key,
    json_extract(letter.value, '$[1]'),
    json_extract(letter.value, '$[2]'),
    m.headers,
    m.body
FROM json_each(:letters) AS letter
CROSS JOIN nightmail_messages AS m
WHERE m.id = json_extract(letter.value, '$[0]');

-- name: keep
-- Copy these messages to the delivered history.
INSERT INTO nightmail_delivered (
    id, queue, priority, attempts, published_at, delivered_at, timer_id, ordering_key, headers, body
)
SELECT id, queue, priority, attempts, published_at, :now, timer_id, ordering_key, headers, body
FROM nightmail_messages
WHERE id IN (SELECT value FROM json_each(:ids));

-- name: remove
-- Remove these messages.
DELETE FROM nightmail_messages
WHERE id IN (SELECT value FROM json_each(:ids));

-- ------------------------------------------------------------------------------------- cancel, reschedule

-- name: cancel
-- Remove the message that bears this name if it waits.
DELETE FROM nightmail_messages
WHERE queue = :queue AND timer_key = :timer_id AND (lease_until IS NULL OR lease_until <= :now)
RETURNING head_key;

-- name: close_window
-- Let this timer id count as taken only while somebody bears it.
DELETE FROM nightmail_dedup
WHERE queue = :queue AND timer_id = :timer_id;

-- name: close_windows
-- End the windows of every name that a waiting message of this queue bears.
DELETE FROM nightmail_dedup
WHERE
    queue = :queue
    AND EXISTS (
        SELECT 1
        FROM nightmail_messages AS m
        WHERE
            m.queue = nightmail_dedup.queue
            AND m.timer_key = nightmail_dedup.timer_id
            AND (m.lease_until IS NULL OR m.lease_until <= :now)
    );

-- name: cancel_all
-- Remove every message of this queue that waits.
DELETE FROM nightmail_messages
WHERE queue = :queue AND (lease_until IS NULL OR lease_until <= :now)
RETURNING head_key;

-- name: reschedule
-- Move the message that bears this name to another due time if it waits. An expired lease ends: its holder must not
-- bring the message back earlier than it was just moved to.
UPDATE nightmail_messages
SET due_at = :due_at, token = NULL, lease_until = NULL, claimed_at = NULL
WHERE queue = :queue AND timer_key = :timer_id AND (lease_until IS NULL OR lease_until <= :now)
RETURNING id;

-- --------------------------------------------------------------------------------------------- inspection

-- name: peek
-- Messages of all queues that wait, by due time. The ids are sorted without the bodies, which may be large.
SELECT
    id, queue, timer_id, ordering_key, priority, due_at, published_at, expires_at, attempts, body, headers
FROM nightmail_messages
WHERE id IN (
    SELECT id
    FROM nightmail_messages
    WHERE
        (:timer_id IS NULL OR timer_key = :timer_id)
        AND (:due_before IS NULL OR due_at < :due_before)
        AND (lease_until IS NULL OR lease_until <= :now)
        AND superseded = 0
    ORDER BY due_at, id
    LIMIT :limit
)
ORDER BY due_at, id;

-- name: peek_queue
-- Messages of one queue that wait, by due time.
SELECT
    id, queue, timer_id, ordering_key, priority, due_at, published_at, expires_at, attempts, body, headers
FROM nightmail_messages
WHERE id IN (
    SELECT id
    FROM nightmail_messages
    WHERE
        queue = :queue
        AND (:due_before IS NULL OR due_at < :due_before)
        AND (lease_until IS NULL OR lease_until <= :now)
        AND superseded = 0
    ORDER BY due_at, id
    LIMIT :limit
)
ORDER BY due_at, id;

-- name: peek_timer
-- The message that bears this name, if it waits.
SELECT
    id, queue, timer_id, ordering_key, priority, due_at, published_at, expires_at, attempts, body, headers
FROM nightmail_messages
WHERE
    queue = :queue
    AND timer_key = :timer_id
    AND (:due_before IS NULL OR due_at < :due_before)
    AND (lease_until IS NULL OR lease_until <= :now)
LIMIT :limit;

-- name: dead
-- Dead letters, newest first, from below the cursor.
SELECT
    id, message_id, queue, reason, error, timer_id, ordering_key, priority, attempts, deliveries, published_at,
    first_attempt_at, last_attempt_at, died_at, body, headers
FROM nightmail_dead
WHERE
    (:cursor IS NULL OR id < :cursor)
    AND (:queue IS NULL OR queue = :queue)
    AND (:reason IS NULL OR reason = :reason)
    AND (:error IS NULL OR instr(error, :error) > 0)
    AND (:died_before IS NULL OR died_at < :died_before)
    AND (:ids IS NULL OR id IN (SELECT value FROM json_each(:ids)))
ORDER BY id DESC
LIMIT :limit;

-- name: stats
-- How each queue with messages stands: ready, scheduled, running, superseded, and the due time of the oldest ready.
SELECT
    queue,
    count(*) FILTER (WHERE NOT superseded AND (lease_until IS NULL OR lease_until <= :now) AND due_at <= :now),
    count(*) FILTER (WHERE NOT superseded AND (lease_until IS NULL OR lease_until <= :now) AND due_at > :now),
    count(*) FILTER (WHERE NOT superseded AND lease_until > :now),
    count(*) FILTER (WHERE superseded),
    min(due_at) FILTER (WHERE NOT superseded AND (lease_until IS NULL OR lease_until <= :now) AND due_at <= :now)
FROM nightmail_messages
GROUP BY queue;

-- name: dead_counts
-- How many dead letters each queue has.
SELECT queue, count(*)
FROM nightmail_dead
GROUP BY queue;

-- --------------------------------------------------------------------------------------------------- meta

-- name: lock
-- Take the write lock and change nothing.
UPDATE nightmail_meta SET version = version WHERE false;

-- name: meta
-- What these tables say they are.
SELECT version, look_interval, notice_horizon
FROM nightmail_meta;

-- name: note_version
-- Say what these tables are. Their identity is drawn once.
INSERT INTO nightmail_meta (only, version, identity, look_interval, notice_horizon)
VALUES (1, :version, lower(hex(randomblob(16))), :look_interval, :notice_horizon)
ON CONFLICT (only) DO UPDATE SET
    version = excluded.version,
    look_interval = excluded.look_interval,
    notice_horizon = excluded.notice_horizon;
