-- The tables themselves.

-- name: lock
-- Take the write lock and change nothing.
UPDATE nightmail_meta SET version = version WHERE false;

-- name: meta
-- The version and intervals of these tables.
SELECT version, serves, look_interval, notice_horizon
FROM nightmail_meta;

-- name: note_version
-- Record the version and intervals of new tables. Their identity is generated once.
INSERT INTO nightmail_meta (only, version, identity, look_interval, notice_horizon)
VALUES (1, :version, lower(hex(randomblob(16))), :look_interval, :notice_horizon)
ON CONFLICT (only) DO UPDATE SET
    look_interval = excluded.look_interval,
    notice_horizon = excluded.notice_horizon;

-- name: note_step
-- Record that these tables were brought to this version.
UPDATE nightmail_meta SET version = :version, serves = :serves;
