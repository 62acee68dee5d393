-- What messages and dead letters have in common under a lease. Loaded twice: the second time for the table of the dead
-- letters, with names that end in `_dead`. The write lock is held.

-- name: extend
-- Extend these leases to `:until`, unless they already run longer.
UPDATE nightmail_messages
SET lease_until = :until
WHERE id IN (SELECT value FROM json_each(:ids)) AND lease_until < :until;

-- name: remove
-- Remove these.
DELETE FROM nightmail_messages
WHERE id IN (SELECT value FROM json_each(:ids));
