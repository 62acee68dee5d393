-- Cancelling and moving what waits, and ending the windows of what is cancelled.

-- name: cancel
-- Remove the message that bears this name if it waits.
DELETE FROM nightmail_messages
WHERE queue = :queue AND timer_key = :timer_id AND (lease_until IS NULL OR lease_until <= :now)
RETURNING ordering_key;

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
RETURNING ordering_key;

-- name: reschedule
-- Move the message that bears this name to another due time if it waits. An expired lease ends: its holder must not
-- bring the message back earlier than it was just moved to.
UPDATE nightmail_messages
SET due_at = :due_at, token = NULL, lease_until = NULL, claimed_at = NULL
WHERE queue = :queue AND timer_key = :timer_id AND (lease_until IS NULL OR lease_until <= :now)
RETURNING ordering_key;
