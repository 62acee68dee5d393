-- Publishing. The write lock is held, so each statement may rely on what the previous one saw. Lists are JSON, so that
-- one statement serves any number; `:now` and all other times are in microseconds, by the store's clock.

-- name: publish
-- Store one message.
INSERT INTO nightmail_messages (
    queue, priority, due_at, published_at, expires_at, timer_id, timer_key, ordering_key, headers, body
)
VALUES (:queue, :priority, :due_at, :now, :expires_at, :timer_id, :timer_id, :ordering_key, :headers, :body)
RETURNING id;

-- name: publish_batch
-- Store many messages: their fields as a list of lists, their bodies concatenated. `follows` is given for those that
-- follow another message of the batch; the trigger sets it for those that follow a message stored earlier.
INSERT INTO nightmail_messages (
    queue, priority, due_at, published_at, expires_at, ordering_key, headers, body, follows
)
SELECT
    json_extract(value, '$[0]'),
    json_extract(value, '$[1]'),
    json_extract(value, '$[2]'),
    :now,
    json_extract(value, '$[3]'),
    json_extract(value, '$[4]'),
    json_extract(value, '$[5]'),
    substr(:bodies, json_extract(value, '$[6]'), json_extract(value, '$[7]')),
    json_extract(value, '$[8]')
FROM json_each(:messages)
RETURNING id;

-- name: owner
-- The owner of this timer id.
SELECT id, due_at, lease_until, ordering_key
FROM nightmail_messages
WHERE queue = :queue AND timer_key = :timer_id;

-- name: detach
-- Take the timer id from a running message, which continues without it.
UPDATE nightmail_messages
SET timer_key = NULL, superseded = max(superseded, :superseded)
WHERE id = :id;

-- name: overwrite
-- Replace a waiting message with a new one. It still holds its ordering key if that is unchanged.
UPDATE nightmail_messages
SET
    priority = :priority,
    due_at = :due_at,
    published_at = :now,
    expires_at = :expires_at,
    head_key = CASE WHEN ordering_key IS :ordering_key THEN head_key END,
    ordering_key = :ordering_key,
    headers = :headers,
    body = :body,
    attempts = 0,
    deliveries = 0,
    last_error = NULL,
    first_attempt_at = NULL,
    last_attempt_at = NULL,
    token = NULL,
    lease_until = NULL,
    claimed_at = NULL,
    stop_requested_by = NULL
WHERE id = :id;

-- name: window
-- Whether this timer id is still taken by an earlier publish.
SELECT 1
FROM nightmail_dedup
WHERE queue = :queue AND timer_id = :timer_id AND until > :now;

-- name: open_window
-- Keep this timer id taken until `:until`, or for as long as it already is, whichever is later.
INSERT INTO nightmail_dedup (queue, timer_id, until)
VALUES (:queue, :timer_id, :until)
ON CONFLICT (queue, timer_id) DO UPDATE SET until = max(until, excluded.until);

-- name: clear_windows
-- Delete two ended windows for each one opened, so that the table never outgrows the open ones for long.
DELETE FROM nightmail_dedup
WHERE (queue, timer_id) IN (
    SELECT queue, timer_id FROM nightmail_dedup WHERE until <= :now ORDER BY until LIMIT 2
);
