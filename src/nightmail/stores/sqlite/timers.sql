-- Cancelling and rescheduling waiting messages, and ending the windows of cancelled ones.

-- name: cancel
-- Remove the owner of this timer id if it waits.
DELETE FROM nightmail_messages
WHERE queue = :queue AND timer_key = :timer_id AND (lease_until IS NULL OR lease_until <= :now)
RETURNING ordering_key;

-- name: close_window
-- End the window of this timer id: it is taken only while a message owns it.
DELETE FROM nightmail_dedup
WHERE queue = :queue AND timer_id = :timer_id;

-- name: close_windows
-- End the windows of all timer ids that waiting messages of this queue own.
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
-- Remove every waiting message of this queue.
DELETE FROM nightmail_messages
WHERE queue = :queue AND (lease_until IS NULL OR lease_until <= :now)
RETURNING ordering_key;

-- name: newest
-- The highest id there is now.
SELECT COALESCE(MAX(id), 0) FROM nightmail_messages;

-- name: waiting_ids
-- Some of the waiting messages of this queue. Those behind a head first: removing the head first would bring forward
-- each of them in turn.
SELECT id FROM nightmail_messages
WHERE queue = :queue AND (lease_until IS NULL OR lease_until <= :now) AND (:newest IS NULL OR id <= :newest)
ORDER BY follows DESC
LIMIT :limit;

-- name: close_windows_of
-- End the windows of the timer ids that these messages own.
DELETE FROM nightmail_dedup
WHERE
    (queue, timer_id) IN (
        SELECT m.queue, m.timer_key
        FROM json_each(:ids) AS chosen
        CROSS JOIN nightmail_messages AS m ON m.id = chosen.value
        WHERE m.timer_key IS NOT NULL
    );

-- name: cancel_some
-- Remove these messages.
DELETE FROM nightmail_messages
WHERE id IN (SELECT value FROM json_each(:ids))
RETURNING ordering_key;

-- name: reschedule
-- Move the owner of this timer id to another due time if it waits. An expired lease is cleared: its holder must not
-- reschedule the message to an earlier time.
UPDATE nightmail_messages
SET due_at = :due_at, token = NULL, lease_until = NULL, claimed_at = NULL
WHERE queue = :queue AND timer_key = :timer_id AND (lease_until IS NULL OR lease_until <= :now)
RETURNING ordering_key;
