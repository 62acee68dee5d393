-- About the tables themselves, and about who is to be woken.

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

-- name: ring
-- Tell those who listen in other processes that these queues have something, though nothing new was published to them.
INSERT INTO nightmail_bells (queue, rings)
SELECT value, 1
FROM json_each(:queues)
WHERE true
ON CONFLICT (queue) DO UPDATE SET rings = rings + 1;

-- name: rings
-- How often each queue was rung.
SELECT queue, rings
FROM nightmail_bells;

-- name: newest
-- The id of the newest message there ever was.
SELECT coalesce(max(seq), 0)
FROM sqlite_sequence
WHERE name = :messages;

-- name: news
-- The queues that got messages since this one, due within the notice horizon. By id: for the sake of DISTINCT the
-- planner would rather walk through all messages in the order of their queues.
SELECT DISTINCT queue
FROM nightmail_messages NOT INDEXED
WHERE id > :newest AND due_at - published_at < :notice_horizon;
