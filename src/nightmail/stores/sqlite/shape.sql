-- The tables themselves.

-- name: lock
-- Take the write lock and change nothing.
UPDATE nightmail_meta SET version = version WHERE false;

-- name: keeps_halves
-- Whether a statement that fails may leave here what it has done so far: a trigger or a constraint can ask for that.
SELECT 1
FROM (SELECT type, sql FROM sqlite_master UNION ALL SELECT type, sql FROM sqlite_temp_master)
WHERE (type = 'trigger' AND sql LIKE '%fail%') OR (type = 'table' AND sql LIKE '%conflict%fail%')
LIMIT 1;

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
