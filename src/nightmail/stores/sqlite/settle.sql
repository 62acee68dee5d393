-- Writes under a lease. `still_leased`, `still_wanted` or `count_still_leased` runs first and tells which leases are held;
-- the others take their ids. The write lock is held, so nothing else writes in between.

-- name: count_still_leased
-- How many of these messages, by the hexadecimal token of their claim, are still leased under it.
SELECT count(*)
FROM json_each(:claims) AS claim
CROSS JOIN json_each(claim.value) AS lease
CROSS JOIN nightmail_messages AS m
WHERE m.id = lease.value AND hex(m.token) = claim.key;

-- name: still_leased
-- The positions of those of these leases (pairs of an id and a hexadecimal token) that are still held, and whether each
-- message is superseded.
SELECT json_group_array(json_array(lease.key, m.superseded))
FROM json_each(:leases) AS lease
CROSS JOIN nightmail_messages AS m
WHERE m.id = json_extract(lease.value, '$[0]') AND hex(m.token) = json_extract(lease.value, '$[1]');

-- name: still_wanted
-- The positions of those of these leases that are still held, and who wants each message stopped.
SELECT json_group_array(json_array(lease.key, m.stop_requested_by))
FROM json_each(:leases) AS lease
CROSS JOIN nightmail_messages AS m
WHERE m.id = json_extract(lease.value, '$[0]') AND hex(m.token) = json_extract(lease.value, '$[1]');

-- name: retry
-- Count an attempt and reschedule these messages: lists of an id, a due time and an error.
UPDATE nightmail_messages
SET
    attempts = min(attempts + 1, 2147483647),
    deliveries = 0,
    first_attempt_at = coalesce(first_attempt_at, claimed_at),
    last_attempt_at = claimed_at,
    last_error = json_extract(returned.value, '$[2]'),
    due_at = CASE WHEN superseded THEN :now ELSE json_extract(returned.value, '$[1]') END,
    token = NULL,
    lease_until = NULL,
    claimed_at = NULL
FROM json_each(:returned) AS returned
WHERE nightmail_messages.id = json_extract(returned.value, '$[0]');

-- name: postpone
-- Reschedule these messages and reset their counters: pairs of an id and a due time.
UPDATE nightmail_messages
SET
    attempts = 0,
    deliveries = 0,
    first_attempt_at = NULL,
    last_attempt_at = NULL,
    last_error = NULL,
    due_at = CASE WHEN superseded THEN :now ELSE json_extract(returned.value, '$[1]') END,
    token = NULL,
    lease_until = NULL,
    claimed_at = NULL
FROM json_each(:returned) AS returned
WHERE nightmail_messages.id = json_extract(returned.value, '$[0]');

-- name: release
-- Hand these messages back as they were before the claim, in their old place.
UPDATE nightmail_messages
SET
    deliveries = max(deliveries - 1, 0),
    token = NULL,
    lease_until = NULL,
    claimed_at = NULL
WHERE id IN (SELECT value FROM json_each(:ids));

-- name: bury
-- Copy these messages to the dead letters: lists of an id, a reason, an error, and 1 if the handler ran, else 0.
INSERT INTO nightmail_dead (
    message_id, queue, priority, due_at, attempts, deliveries, published_at, first_attempt_at, last_attempt_at,
    died_at, timer_id, ordering_key, reason, error, headers, body
)
SELECT
    m.id,
    m.queue,
    m.priority,
    :now,
    min(m.attempts + json_extract(letter.value, '$[3]'), 2147483647),
    m.deliveries,
    m.published_at,
    coalesce(m.first_attempt_at, CASE WHEN json_extract(letter.value, '$[3]') THEN m.claimed_at END),
    CASE WHEN json_extract(letter.value, '$[3]') THEN m.claimed_at ELSE m.last_attempt_at END,
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
    message_id, queue, priority, attempts, deliveries, published_at, due_at, delivered_at, timer_id, ordering_key,
    headers, body
)
SELECT
    id, queue, priority, attempts, deliveries, published_at, due_at, :now, timer_id, ordering_key, headers, body
FROM nightmail_messages
WHERE id IN (SELECT value FROM json_each(:ids));
