-- Handling dead letters: claiming them, and what is written under a lease on one. The write lock is held.

-- name: candidates_dead
-- Claimable dead letters of a queue, longest due first, with their sizes, and whether they are too large to be read.
SELECT due_at, id, length(body) + length(headers), length(body) > :max_body OR length(headers) > :max_headers
FROM nightmail_dead
WHERE queue = :queue AND due_at <= :now AND (lease_until IS NULL OR lease_until <= :expired)
ORDER BY due_at, id
LIMIT :limit;

-- name: lease_dead
-- Lease these dead letters and return the values of their deliveries, in no particular order.
-- Casts: a value of another type, put there by hand, would otherwise fail every claim.
UPDATE nightmail_dead
SET
    token = :token,
    lease_until = :lease_until,
    claimed_at = :now,
    claims = min(claims + 1, 2147483647)
WHERE id IN (SELECT value FROM json_each(:ids))
RETURNING
    id, queue, cast(body AS BLOB), cast(headers AS TEXT), cast(timer_id AS TEXT), cast(ordering_key AS TEXT), priority,
    due_at, published_at, claimed_at, failures, claims, first_attempt_at, last_attempt_at, message_id,
    cast(reason AS TEXT), cast(error AS TEXT), died_at;

-- name: upcoming_dead
-- When the next dead letter in these queues is due, or the next lease on one expires.
SELECT min(moment)
FROM (
    SELECT (
        SELECT min(d.due_at)
        FROM nightmail_dead AS d
        WHERE d.queue = queue.value AND d.due_at > :now AND d.due_at <= :end
    ) AS moment
    FROM json_each(:queues) AS queue
    UNION ALL
    SELECT (
        SELECT min(d.lease_until)
        FROM nightmail_dead AS d INDEXED BY nightmail_dead_leased
        WHERE d.queue = queue.value AND d.lease_until > :expired AND d.lease_until <= :end
    ) AS moment
    FROM json_each(:queues) AS queue
);

-- name: recall_dead
-- Hand back the dead letters leased under this token in these queues, as `release_dead` does. Returns their queues.
UPDATE nightmail_dead
SET
    claims = max(claims - 1, 0),
    token = NULL,
    lease_until = NULL,
    claimed_at = NULL
WHERE id IN (
    SELECT d.id
    FROM json_each(:queues) AS queue
    CROSS JOIN nightmail_dead AS d INDEXED BY nightmail_dead_leased
    WHERE d.queue = queue.value AND d.lease_until IS NOT NULL AND d.token = :token
)
RETURNING queue;

-- name: still_leased_dead
-- The positions of those of these leases (pairs of an id and a hexadecimal token) that are still held. No dead letter
-- is ever superseded.
SELECT json_group_array(json_array(lease.key, 0))
FROM json_each(:leases) AS lease
CROSS JOIN nightmail_dead AS d
WHERE d.id = json_extract(lease.value, '$[0]') AND hex(d.token) = json_extract(lease.value, '$[1]');

-- name: retry_dead
-- Count an attempt and offer these dead letters again: pairs of an id and a time.
UPDATE nightmail_dead
SET
    failures = min(failures + 1, 2147483647),
    claims = 0,
    due_at = json_extract(returned.value, '$[1]'),
    token = NULL,
    lease_until = NULL,
    claimed_at = NULL
FROM json_each(:returned) AS returned
WHERE nightmail_dead.id = json_extract(returned.value, '$[0]');

-- name: postpone_dead
-- Offer these dead letters again and reset their counters: pairs of an id and a time.
UPDATE nightmail_dead
SET
    failures = 0,
    claims = 0,
    due_at = json_extract(returned.value, '$[1]'),
    token = NULL,
    lease_until = NULL,
    claimed_at = NULL
FROM json_each(:returned) AS returned
WHERE nightmail_dead.id = json_extract(returned.value, '$[0]');

-- name: release_dead
-- Hand these dead letters back as they were before the claim, in their old place.
UPDATE nightmail_dead
SET
    claims = max(claims - 1, 0),
    token = NULL,
    lease_until = NULL,
    claimed_at = NULL
WHERE id IN (SELECT value FROM json_each(:ids));

-- name: give_up_dead
-- Stop offering these dead letters.
UPDATE nightmail_dead
SET due_at = NULL, token = NULL, lease_until = NULL, claimed_at = NULL
WHERE id IN (SELECT value FROM json_each(:ids));
