-- The tables of the SQLite store. Times are whole microseconds since 1970, UTC; tokens are 16 bytes.

-- Messages that wait or run. The small columns stand first: SQLite reads a row from its start, and a claim looks
-- at the lease of a row far more often than at its body.
CREATE TABLE IF NOT EXISTS nightmail_messages (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    queue TEXT NOT NULL,
    priority INTEGER NOT NULL CHECK (priority BETWEEN 0 AND 9),
    due_at INTEGER NOT NULL,
    lease_until INTEGER,
    token BLOB CHECK (token IS NULL OR length(token) = 16),
    claimed_at INTEGER,
    superseded INTEGER NOT NULL DEFAULT 0 CHECK (superseded IN (0, 1)),
    attempts INTEGER NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    deliveries INTEGER NOT NULL DEFAULT 0 CHECK (deliveries >= 0),
    published_at INTEGER NOT NULL,
    expires_at INTEGER,
    first_attempt_at INTEGER,
    last_attempt_at INTEGER,
    timer_id TEXT,
    timer_key TEXT CHECK (timer_key IS NULL OR timer_key IS timer_id),
    ordering_key TEXT,
    head_key TEXT CHECK (head_key IS NULL OR head_key IS ordering_key),
    headers TEXT NOT NULL,
    body BLOB NOT NULL,
    CHECK ((token IS NULL) = (lease_until IS NULL) AND (token IS NULL) = (claimed_at IS NULL))
);

-- The order in which a claim takes messages. Lease columns stay outside: taking a lease must not move index entries.
CREATE INDEX IF NOT EXISTS nightmail_messages_due ON nightmail_messages (queue, priority, due_at, id);

-- A name is borne by at most one message of a queue.
CREATE UNIQUE INDEX IF NOT EXISTS nightmail_messages_timer ON nightmail_messages (queue, timer_key)
WHERE timer_key IS NOT NULL;

-- An ordering key is held by at most one message of a queue.
CREATE UNIQUE INDEX IF NOT EXISTS nightmail_messages_head ON nightmail_messages (queue, head_key)
WHERE head_key IS NOT NULL;

-- The line of an ordering key. With the due time, so that a claim need not read the rows of those who wait in it.
CREATE INDEX IF NOT EXISTS nightmail_messages_line ON nightmail_messages (queue, ordering_key, id, due_at)
WHERE ordering_key IS NOT NULL;

-- Messages that were given up. A letter has an id of its own: the same timer id may die many times. From `offered_at` on
-- it may be looked after, never again once that is NULL; `care_attempts` and `care_deliveries` count how that went,
-- `attempts` and `deliveries` how it went with the message.
CREATE TABLE IF NOT EXISTS nightmail_dead (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    message_id INTEGER NOT NULL,
    queue TEXT NOT NULL,
    priority INTEGER NOT NULL,
    offered_at INTEGER,
    lease_until INTEGER,
    token BLOB CHECK (token IS NULL OR length(token) = 16),
    claimed_at INTEGER,
    care_attempts INTEGER NOT NULL DEFAULT 0 CHECK (care_attempts >= 0),
    care_deliveries INTEGER NOT NULL DEFAULT 0 CHECK (care_deliveries >= 0),
    attempts INTEGER NOT NULL,
    deliveries INTEGER NOT NULL,
    published_at INTEGER NOT NULL,
    first_attempt_at INTEGER,
    last_attempt_at INTEGER,
    died_at INTEGER NOT NULL,
    timer_id TEXT,
    ordering_key TEXT,
    reason TEXT NOT NULL,
    error TEXT,
    headers TEXT NOT NULL,
    body BLOB NOT NULL,
    CHECK ((token IS NULL) = (lease_until IS NULL) AND (token IS NULL) = (claimed_at IS NULL)),
    CHECK (token IS NULL OR offered_at IS NOT NULL)
);

-- One queue's dead letters, newest first.
CREATE INDEX IF NOT EXISTS nightmail_dead_queue ON nightmail_dead (queue, id);

-- The order in which dead letters are looked after. Those that were given up are not in it, however many they become.
CREATE INDEX IF NOT EXISTS nightmail_dead_offered ON nightmail_dead (queue, offered_at, id)
WHERE offered_at IS NOT NULL;

-- Dead letters by age, for whoever clears them away.
CREATE INDEX IF NOT EXISTS nightmail_dead_age ON nightmail_dead (died_at);

-- The delivered history, for stores that keep it.
CREATE TABLE IF NOT EXISTS nightmail_delivered (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    message_id INTEGER NOT NULL,
    queue TEXT NOT NULL,
    priority INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    deliveries INTEGER NOT NULL,
    published_at INTEGER NOT NULL,
    due_at INTEGER NOT NULL,
    delivered_at INTEGER NOT NULL,
    timer_id TEXT,
    ordering_key TEXT,
    headers TEXT NOT NULL,
    body BLOB NOT NULL
);

-- The delivered history by age, for whoever clears it away.
CREATE INDEX IF NOT EXISTS nightmail_delivered_age ON nightmail_delivered (delivered_at);

-- Until when a timer id counts as taken though its message may be gone.
CREATE TABLE IF NOT EXISTS nightmail_dedup (
    queue TEXT NOT NULL,
    timer_id TEXT NOT NULL,
    until INTEGER NOT NULL,
    PRIMARY KEY (queue, timer_id)
) WITHOUT ROWID;

-- Windows that have ended, for clearing them away.
CREATE INDEX IF NOT EXISTS nightmail_dedup_until ON nightmail_dedup (until);

-- How often a queue was rung other than by a new message: a retry, a timer that was moved. SQLite tells a listener in
-- another process only that something was written, and this tells him whether it concerns his queues.
CREATE TABLE IF NOT EXISTS nightmail_bells (
    queue TEXT PRIMARY KEY,
    rings INTEGER NOT NULL
) WITHOUT ROWID;

-- What these tables are, in one row: their version, an identity that no other database has, and the two times that
-- publishers and workers of all processes must agree on.
CREATE TABLE IF NOT EXISTS nightmail_meta (
    only INTEGER PRIMARY KEY CHECK (only = 1),
    version INTEGER NOT NULL,
    identity TEXT NOT NULL,
    look_interval INTEGER NOT NULL,
    notice_horizon INTEGER NOT NULL
);
