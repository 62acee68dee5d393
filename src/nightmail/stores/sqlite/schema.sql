-- The tables of the SQLite store. Times are whole microseconds since 1970, UTC; tokens are 16 bytes.

-- Waiting and running messages. The small columns come first: SQLite reads a row from its start, and a claim reads a
-- row's lease far more often than its body.
-- `follows` is 1 for a message that cannot be the next of its ordering key: the one before it is due no later, or holds
-- the key. The triggers below maintain it. A claim scans only rows where it is 0.
-- SQLite would store any value in any column, so the types are checked here, except the body's: checking it would load
-- all of it into memory. Text is read as bytes.
CREATE TABLE IF NOT EXISTS nightmail_messages (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    queue TEXT NOT NULL CHECK (typeof(queue) = 'text'),
    follows INTEGER NOT NULL DEFAULT 0 CHECK (follows IN (0, 1)),
    priority INTEGER NOT NULL CHECK (typeof(priority) = 'integer' AND priority BETWEEN 0 AND 9),
    due_at INTEGER NOT NULL CHECK (typeof(due_at) = 'integer' AND due_at BETWEEN -62135596800000000 AND 253402300799999999),
    lease_until INTEGER CHECK (lease_until IS NULL OR (typeof(lease_until) = 'integer' AND lease_until BETWEEN -62135596800000000 AND 253402300799999999)),
    token BLOB CHECK (token IS NULL OR (typeof(token) = 'blob' AND length(token) = 16)),
    claimed_at INTEGER CHECK (claimed_at IS NULL OR (typeof(claimed_at) = 'integer' AND claimed_at BETWEEN -62135596800000000 AND 253402300799999999)),
    superseded INTEGER NOT NULL DEFAULT 0 CHECK (superseded IN (0, 1)),
    attempts INTEGER NOT NULL DEFAULT 0 CHECK (typeof(attempts) = 'integer' AND attempts BETWEEN 0 AND 2147483647),
    deliveries INTEGER NOT NULL DEFAULT 0 CHECK (typeof(deliveries) = 'integer' AND deliveries BETWEEN 0 AND 2147483647),
    published_at INTEGER NOT NULL CHECK (typeof(published_at) = 'integer' AND published_at BETWEEN -62135596800000000 AND 253402300799999999),
    expires_at INTEGER CHECK (expires_at IS NULL OR (typeof(expires_at) = 'integer' AND expires_at BETWEEN -62135596800000000 AND 253402300799999999)),
    first_attempt_at INTEGER CHECK (first_attempt_at IS NULL OR (typeof(first_attempt_at) = 'integer' AND first_attempt_at BETWEEN -62135596800000000 AND 253402300799999999)),
    last_attempt_at INTEGER CHECK (last_attempt_at IS NULL OR (typeof(last_attempt_at) = 'integer' AND last_attempt_at BETWEEN -62135596800000000 AND 253402300799999999)),
    timer_id TEXT CHECK (timer_id IS NULL OR typeof(timer_id) = 'text'),
    timer_key TEXT CHECK (timer_key IS NULL OR timer_key IS timer_id),
    ordering_key TEXT CHECK (ordering_key IS NULL OR typeof(ordering_key) = 'text'),
    head_key TEXT CHECK (head_key IS NULL OR head_key IS ordering_key),
    stop_requested_by TEXT CHECK (stop_requested_by IS NULL OR typeof(stop_requested_by) = 'text'),
    last_error TEXT CHECK (last_error IS NULL OR typeof(last_error) = 'text'),
    headers TEXT NOT NULL,
    body BLOB NOT NULL,
    CONSTRAINT nightmail_messages_lease CHECK ((token IS NULL) = (lease_until IS NULL) AND (token IS NULL) = (claimed_at IS NULL))
);

-- The order in which a claim takes messages. No lease columns: taking a lease must not move these entries.
CREATE INDEX IF NOT EXISTS nightmail_messages_due ON nightmail_messages (queue, follows, priority, due_at, id);

-- Leased messages: to find when the next lease ends, and to hand back the messages of a claim whose answer was lost.
CREATE INDEX IF NOT EXISTS nightmail_messages_leased ON nightmail_messages (queue, lease_until)
WHERE lease_until IS NOT NULL;

-- At most one message of a queue owns a timer id.
CREATE UNIQUE INDEX IF NOT EXISTS nightmail_messages_timer ON nightmail_messages (queue, timer_key)
WHERE timer_key IS NOT NULL;

-- At most one message of a queue holds an ordering key.
CREATE UNIQUE INDEX IF NOT EXISTS nightmail_messages_head ON nightmail_messages (queue, head_key)
WHERE head_key IS NOT NULL;

-- The messages of an ordering key, in order.
CREATE INDEX IF NOT EXISTS nightmail_messages_line ON nightmail_messages (queue, ordering_key, id)
WHERE ordering_key IS NOT NULL;

-- The messages that may be next of their ordering key, by due time: one per key, unless later ones are due earlier.
CREATE INDEX IF NOT EXISTS nightmail_messages_front ON nightmail_messages (queue, ordering_key, due_at, id)
WHERE ordering_key IS NOT NULL AND follows = 0;

-- The triggers below run for every message, and mostly have nothing to do: it has no ordering key, is the only one with
-- it, or `follows` is already right. Their conditions find that out with one index lookup, which costs far less than
-- starting an UPDATE that changes nothing.

-- A message is added at the end of its ordering key. One inserted by hand may get an id in the middle.
CREATE TRIGGER IF NOT EXISTS nightmail_messages_joined AFTER INSERT ON nightmail_messages
WHEN
    new.ordering_key IS NOT NULL
    AND (
        new.head_key IS NOT NULL
        OR new.id < (SELECT max(id) FROM nightmail_messages)
        OR new.follows <> coalesce((
            SELECT p.due_at <= new.due_at OR p.head_key IS NOT NULL
            FROM nightmail_messages AS p
            WHERE p.queue = new.queue AND p.ordering_key = new.ordering_key AND p.id < new.id
            ORDER BY p.id DESC
            LIMIT 1
        ), 0)
    )
BEGIN
    UPDATE nightmail_messages
    SET follows = 1 - follows
    WHERE
        id = new.id
        AND follows <> (new.head_key IS NULL AND coalesce((
            SELECT p.due_at <= new.due_at OR p.head_key IS NOT NULL
            FROM nightmail_messages AS p
            WHERE p.queue = new.queue AND p.ordering_key = new.ordering_key AND p.id < new.id
            ORDER BY p.id DESC
            LIMIT 1
        ), 0));
    UPDATE nightmail_messages
    SET follows = 1 - follows
    WHERE
        id = (
            SELECT min(s.id)
            FROM nightmail_messages AS s
            WHERE s.queue = new.queue AND s.ordering_key = new.ordering_key AND s.id > new.id
        )
        AND follows <> (head_key IS NULL AND (new.due_at <= due_at OR new.head_key IS NOT NULL));
END;

-- A message changes its due time, its ordering key or queue, or takes or gives up the key. The message after the one
-- that holds the key always follows, whatever the due times.
CREATE TRIGGER IF NOT EXISTS nightmail_messages_moved
AFTER UPDATE OF queue, due_at, ordering_key, head_key ON nightmail_messages
WHEN
    (new.ordering_key IS NOT NULL OR old.ordering_key IS NOT NULL)
    AND (
        new.due_at IS NOT old.due_at
        OR new.head_key IS NOT old.head_key
        OR new.ordering_key IS NOT old.ordering_key
        OR new.queue IS NOT old.queue
    )
    AND (
        new.follows <> 0
        OR new.ordering_key IS NOT old.ordering_key
        OR new.queue IS NOT old.queue
        OR CASE
            WHEN new.head_key IS NOT NULL
                THEN (
                    SELECT s.follows
                    FROM nightmail_messages AS s
                    WHERE s.queue = new.queue AND s.ordering_key = new.ordering_key AND s.id > new.id
                    ORDER BY s.id
                    LIMIT 1
                ) = 0
            ELSE EXISTS (
                SELECT 1
                FROM nightmail_messages AS other
                WHERE other.queue = new.queue AND other.ordering_key = new.ordering_key AND other.id <> new.id
            )
        END
    )
BEGIN
    UPDATE nightmail_messages
    SET follows = 1 - follows
    WHERE
        id = new.id
        AND follows <> (new.head_key IS NULL AND coalesce((
            SELECT p.due_at <= new.due_at OR p.head_key IS NOT NULL
            FROM nightmail_messages AS p
            WHERE p.queue = new.queue AND p.ordering_key = new.ordering_key AND p.id < new.id
            ORDER BY p.id DESC
            LIMIT 1
        ), 0));
    UPDATE nightmail_messages
    SET follows = 1 - follows
    WHERE
        id = (
            SELECT min(s.id)
            FROM nightmail_messages AS s
            WHERE s.queue = new.queue AND s.ordering_key = new.ordering_key AND s.id > new.id
        )
        AND follows <> (head_key IS NULL AND (new.due_at <= due_at OR new.head_key IS NOT NULL));
    UPDATE nightmail_messages
    SET follows = 1 - follows
    WHERE
        (new.ordering_key IS NOT old.ordering_key OR new.queue IS NOT old.queue)
        AND id = (
            SELECT min(s.id)
            FROM nightmail_messages AS s
            WHERE s.queue = old.queue AND s.ordering_key = old.ordering_key AND s.id > old.id
        )
        AND follows <> (head_key IS NULL AND coalesce((
            SELECT p.due_at <= nightmail_messages.due_at OR p.head_key IS NOT NULL
            FROM nightmail_messages AS p
            WHERE p.queue = old.queue AND p.ordering_key = old.ordering_key AND p.id < old.id
            ORDER BY p.id DESC
            LIMIT 1
        ), 0));
END;

-- A message with an ordering key is deleted.
CREATE TRIGGER IF NOT EXISTS nightmail_messages_left AFTER DELETE ON nightmail_messages
WHEN
    old.ordering_key IS NOT NULL
    AND EXISTS (
        SELECT 1
        FROM nightmail_messages AS s
        WHERE s.queue = old.queue AND s.ordering_key = old.ordering_key AND s.id > old.id
    )
BEGIN
    UPDATE nightmail_messages
    SET follows = 1 - follows
    WHERE
        id = (
            SELECT min(s.id)
            FROM nightmail_messages AS s
            WHERE s.queue = old.queue AND s.ordering_key = old.ordering_key AND s.id > old.id
        )
        AND follows <> (head_key IS NULL AND coalesce((
            SELECT p.due_at <= nightmail_messages.due_at OR p.head_key IS NOT NULL
            FROM nightmail_messages AS p
            WHERE p.queue = old.queue AND p.ordering_key = old.ordering_key AND p.id < old.id
            ORDER BY p.id DESC
            LIMIT 1
        ), 0));
END;

-- Dead letters. Each has its own id: messages with the same timer id may die many times. It may be claimed from
-- `due_at` on, and never again once that is NULL. `failures` and `claims` count the dead letter's own
-- attempts and deliveries, `attempts` and `deliveries` those of the message.
CREATE TABLE IF NOT EXISTS nightmail_dead (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    message_id INTEGER NOT NULL CHECK (typeof(message_id) = 'integer'),
    queue TEXT NOT NULL CHECK (typeof(queue) = 'text'),
    priority INTEGER NOT NULL CHECK (typeof(priority) = 'integer' AND priority BETWEEN 0 AND 9),
    due_at INTEGER CHECK (due_at IS NULL OR (typeof(due_at) = 'integer' AND due_at BETWEEN -62135596800000000 AND 253402300799999999)),
    lease_until INTEGER CHECK (lease_until IS NULL OR (typeof(lease_until) = 'integer' AND lease_until BETWEEN -62135596800000000 AND 253402300799999999)),
    token BLOB CHECK (token IS NULL OR (typeof(token) = 'blob' AND length(token) = 16)),
    claimed_at INTEGER CHECK (claimed_at IS NULL OR (typeof(claimed_at) = 'integer' AND claimed_at BETWEEN -62135596800000000 AND 253402300799999999)),
    failures INTEGER NOT NULL DEFAULT 0 CHECK (typeof(failures) = 'integer' AND failures BETWEEN 0 AND 2147483647),
    claims INTEGER NOT NULL DEFAULT 0 CHECK (typeof(claims) = 'integer' AND claims BETWEEN 0 AND 2147483647),
    attempts INTEGER NOT NULL CHECK (typeof(attempts) = 'integer' AND attempts BETWEEN 0 AND 2147483647),
    deliveries INTEGER NOT NULL CHECK (typeof(deliveries) = 'integer' AND deliveries BETWEEN 0 AND 2147483647),
    published_at INTEGER NOT NULL CHECK (typeof(published_at) = 'integer' AND published_at BETWEEN -62135596800000000 AND 253402300799999999),
    first_attempt_at INTEGER CHECK (first_attempt_at IS NULL OR (typeof(first_attempt_at) = 'integer' AND first_attempt_at BETWEEN -62135596800000000 AND 253402300799999999)),
    last_attempt_at INTEGER CHECK (last_attempt_at IS NULL OR (typeof(last_attempt_at) = 'integer' AND last_attempt_at BETWEEN -62135596800000000 AND 253402300799999999)),
    died_at INTEGER NOT NULL CHECK (typeof(died_at) = 'integer' AND died_at BETWEEN -62135596800000000 AND 253402300799999999),
    timer_id TEXT CHECK (timer_id IS NULL OR typeof(timer_id) = 'text'),
    ordering_key TEXT CHECK (ordering_key IS NULL OR typeof(ordering_key) = 'text'),
    reason TEXT NOT NULL CHECK (typeof(reason) = 'text'),
    error TEXT CHECK (error IS NULL OR typeof(error) = 'text'),
    headers TEXT NOT NULL,
    body BLOB NOT NULL,
    CONSTRAINT nightmail_dead_lease CHECK ((token IS NULL) = (lease_until IS NULL) AND (token IS NULL) = (claimed_at IS NULL)),
    CONSTRAINT nightmail_dead_given_up CHECK (token IS NULL OR due_at IS NOT NULL)
);

-- One queue's dead letters, newest first.
CREATE INDEX IF NOT EXISTS nightmail_dead_queue ON nightmail_dead (queue, id);

-- The order in which dead letters are claimed. Those no longer offered are left out, however many there are.
CREATE INDEX IF NOT EXISTS nightmail_dead_due ON nightmail_dead (queue, due_at, id)
WHERE due_at IS NOT NULL;

-- Leased dead letters: to find when the next lease ends, and to hand back what a claim took.
CREATE INDEX IF NOT EXISTS nightmail_dead_leased ON nightmail_dead (queue, lease_until)
WHERE lease_until IS NOT NULL;

-- Dead letters by age, for purging and sweeping.
CREATE INDEX IF NOT EXISTS nightmail_dead_age ON nightmail_dead (died_at);

-- The dead letters of one message, to tell what became of it.
CREATE INDEX IF NOT EXISTS nightmail_dead_message ON nightmail_dead (message_id);

-- The delivered history, for stores that keep it.
CREATE TABLE IF NOT EXISTS nightmail_delivered (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
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

-- The delivered history by age, for sweeping.
CREATE INDEX IF NOT EXISTS nightmail_delivered_age ON nightmail_delivered (delivered_at);

-- Delivered messages by id, to tell what became of one.
CREATE INDEX IF NOT EXISTS nightmail_delivered_message ON nightmail_delivered (message_id);

-- Deduplication windows: until when a timer id stays taken, even if its message is gone.
CREATE TABLE IF NOT EXISTS nightmail_dedup (
    queue TEXT NOT NULL,
    timer_id TEXT NOT NULL,
    until INTEGER NOT NULL,
    PRIMARY KEY (queue, timer_id)
) WITHOUT ROWID;

-- Windows by end, for sweeping those that have ended.
CREATE INDEX IF NOT EXISTS nightmail_dedup_until ON nightmail_dedup (until);

-- Pauses: of a queue, or of one ordering key in it (empty: of the whole queue). An automatic one lasts until it is
-- resumed: from `until` on it lets a probe through, which moves `until` on by `length`.
CREATE TABLE IF NOT EXISTS nightmail_controls (
    queue TEXT NOT NULL CHECK (typeof(queue) = 'text'),
    ordering_key TEXT NOT NULL DEFAULT '' CHECK (typeof(ordering_key) = 'text'),
    automatic INTEGER NOT NULL DEFAULT 0 CHECK (automatic IN (0, 1)),
    since INTEGER NOT NULL CHECK (typeof(since) = 'integer' AND since BETWEEN -62135596800000000 AND 253402300799999999),
    until INTEGER CHECK (until IS NULL OR (typeof(until) = 'integer' AND until BETWEEN -62135596800000000 AND 253402300799999999)),
    length INTEGER CHECK (length IS NULL OR (typeof(length) = 'integer' AND length > 0)),
    paused_by TEXT NOT NULL CHECK (typeof(paused_by) = 'text'),
    reason TEXT CHECK (reason IS NULL OR typeof(reason) = 'text'),
    PRIMARY KEY (queue, ordering_key, automatic),
    CONSTRAINT nightmail_controls_probed CHECK (automatic = 0 OR (ordering_key = '' AND until IS NOT NULL AND length IS NOT NULL))
) WITHOUT ROWID;

-- The processes that consume messages, as each last reported itself. `queues` and `state` are JSON.
CREATE TABLE IF NOT EXISTS nightmail_workers (
    id TEXT NOT NULL CHECK (typeof(id) = 'text'),
    host TEXT NOT NULL CHECK (typeof(host) = 'text'),
    pid INTEGER NOT NULL CHECK (typeof(pid) = 'integer'),
    version TEXT NOT NULL CHECK (typeof(version) = 'text'),
    queues TEXT NOT NULL CHECK (typeof(queues) = 'text'),
    state TEXT NOT NULL CHECK (typeof(state) = 'text'),
    started_at INTEGER NOT NULL CHECK (typeof(started_at) = 'integer' AND started_at BETWEEN -62135596800000000 AND 253402300799999999),
    seen_at INTEGER NOT NULL CHECK (typeof(seen_at) = 'integer' AND seen_at BETWEEN -62135596800000000 AND 253402300799999999),
    PRIMARY KEY (id)
) WITHOUT ROWID;

-- Who consumed each queue last, of those that no longer do: written when a worker leaves, not while it works.
CREATE TABLE IF NOT EXISTS nightmail_consumers (
    queue TEXT NOT NULL CHECK (typeof(queue) = 'text'),
    seen_at INTEGER NOT NULL CHECK (typeof(seen_at) = 'integer' AND seen_at BETWEEN -62135596800000000 AND 253402300799999999),
    host TEXT NOT NULL CHECK (typeof(host) = 'text'),
    pid INTEGER NOT NULL CHECK (typeof(pid) = 'integer'),
    PRIMARY KEY (queue)
) WITHOUT ROWID;

-- How often a queue was rung for something other than a new message: a retry, a moved timer. SQLite tells a listener in
-- another process only that something was written; this tells it whether its queues are affected.
CREATE TABLE IF NOT EXISTS nightmail_bells (
    queue TEXT NOT NULL,
    rings INTEGER NOT NULL,
    PRIMARY KEY (queue)
) WITHOUT ROWID;

-- One row about these tables: their version, the oldest version of the code that they serve, an identity unique to this
-- database, and the two intervals that publishers and workers of all processes must agree on.
CREATE TABLE IF NOT EXISTS nightmail_meta (
    only INTEGER NOT NULL CHECK (only = 1),
    version INTEGER NOT NULL,
    serves INTEGER NOT NULL DEFAULT 1,
    identity TEXT NOT NULL,
    look_interval INTEGER NOT NULL,
    notice_horizon INTEGER NOT NULL,
    PRIMARY KEY (only)
);
