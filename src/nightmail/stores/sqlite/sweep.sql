-- Purging and sweeping. Each statement stops at its limit and finds what it deletes along an index.

-- name: purge
-- Delete dead letters of all queues that are not leased, oldest first.
DELETE FROM nightmail_dead
WHERE id IN (
    SELECT id
    FROM nightmail_dead
    WHERE
        died_at < :died_before
        AND (:reason IS NULL OR reason = :reason)
        AND (:error IS NULL OR instr(error, :error) > 0)
        AND (lease_until IS NULL OR lease_until <= :now)
    ORDER BY died_at, id
    LIMIT :limit
);

-- name: purge_queue
-- Delete dead letters of one queue that are not leased, oldest first.
DELETE FROM nightmail_dead
WHERE id IN (
    SELECT id
    FROM nightmail_dead
    WHERE
        queue = :queue
        AND died_at < :died_before
        AND (:reason IS NULL OR reason = :reason)
        AND (:error IS NULL OR instr(error, :error) > 0)
        AND (lease_until IS NULL OR lease_until <= :now)
    ORDER BY id
    LIMIT :limit
);

-- name: purge_ids
-- Delete those of these dead letters that are not leased, oldest first.
DELETE FROM nightmail_dead
WHERE id IN (
    SELECT id
    FROM nightmail_dead
    WHERE
        id IN (SELECT value FROM json_each(:ids))
        AND (:queue IS NULL OR queue = :queue)
        AND died_at < :died_before
        AND (:reason IS NULL OR reason = :reason)
        AND (:error IS NULL OR instr(error, :error) > 0)
        AND (lease_until IS NULL OR lease_until <= :now)
    ORDER BY id
    LIMIT :limit
);

-- name: sweepable
-- Whether there is anything to sweep.
SELECT
    EXISTS (SELECT 1 FROM nightmail_delivered WHERE delivered_at < :before)
    OR EXISTS (
        SELECT 1
        FROM nightmail_dead
        WHERE died_at < :before AND (lease_until IS NULL OR lease_until <= :now)
    )
    OR EXISTS (SELECT 1 FROM nightmail_dedup WHERE until <= :now);

-- name: sweep_delivered
-- Delete what was delivered before `:before`, oldest first.
DELETE FROM nightmail_delivered
WHERE id IN (
    SELECT id FROM nightmail_delivered WHERE delivered_at < :before ORDER BY delivered_at LIMIT :limit
);

-- name: sweep_dead
-- Delete dead letters that died before `:before` and are not leased, oldest first.
DELETE FROM nightmail_dead
WHERE id IN (
    SELECT id
    FROM nightmail_dead
    WHERE died_at < :before AND (lease_until IS NULL OR lease_until <= :now)
    ORDER BY died_at
    LIMIT :limit
);

-- name: sweep_dedup
-- Delete windows that have ended, earliest end first.
DELETE FROM nightmail_dedup
WHERE (queue, timer_id) IN (
    SELECT queue, timer_id FROM nightmail_dedup WHERE until <= :now ORDER BY until LIMIT :limit
);

-- name: deleted
-- How many rows the previous statement deleted.
SELECT changes();
