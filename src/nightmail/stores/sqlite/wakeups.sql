-- Wake-ups from other processes.

-- name: ring
-- Tell listeners in other processes that these queues have something, though nothing new was published to them.
INSERT INTO nightmail_bells (queue, rings)
SELECT value, 1
FROM json_each(:queues)
WHERE true
ON CONFLICT (queue) DO UPDATE SET rings = rings + 1;

-- name: rings
-- How often each queue was rung.
SELECT queue, rings
FROM nightmail_bells;

-- name: last_id
-- The highest message id ever assigned.
SELECT coalesce(max(seq), 0)
FROM sqlite_sequence
WHERE name = :messages;

-- name: news
-- The queues that got messages since this id, due within the notice horizon. NOT INDEXED, to scan by id: for DISTINCT
-- the planner would otherwise scan all messages in queue order.
SELECT DISTINCT queue
FROM nightmail_messages NOT INDEXED
WHERE id > :newest AND due_at - published_at < :notice_horizon;
