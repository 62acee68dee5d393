-- The tables of version 1. A statement ends with a semicolon at the end of its line.

-- Waiting and running messages. A message that is due and has no lease, or an expired one, is available. Queues, timer
-- ids and ordering keys are bytes: a collation would treat 'a' and 'a ' as the same timer. Times are UTC, to the
-- microsecond.
create table if not exists nightmail_messages (
    id               bigint not null auto_increment,
    published_at     datetime(6) not null,
    expires_at       datetime(6),
    priority         tinyint not null,
    superseded       tinyint not null default 0,
    -- 1: it waits behind others of its ordering key, hidden from claims (see claim.sql).
    parked           tinyint not null default 0,
    -- Changes when others are parked behind this row: on a Galera cluster a claim that takes it on another node at the
    -- same time must fail.
    anchor           tinyint not null default 0,
    due_at           datetime(6) not null,
    lease_until      datetime(6),
    token            binary(16),
    claimed_at       datetime(6),
    -- As long as the lease, which replaces it: a row that grew would split its page.
    lease_room       varbinary(32) not null default '00000000000000000000000000000000',
    first_attempt_at datetime(6),
    last_attempt_at  datetime(6),
    attempts         int not null default 0,
    deliveries       int not null default 0,
    -- The ordering key, from the first claim until the row is gone.
    head_key         varbinary(1020),
    -- The timer id, while this message owns it.
    timer_key        varbinary(1020),
    queue            varbinary(1020) not null,
    timer_id         varbinary(1020),
    ordering_key     varbinary(1020),
    -- Who asked for it to be stopped: its holder is told when it extends the lease.
    stop_requested_by varbinary(1020),
    -- Why the last attempt failed, for operators.
    last_error       varbinary(1020),
    -- What must be unique: the queue and the key, separated by the NUL that neither can contain. Each is one column,
    -- null as a whole: Galera treats rows whose key is null only in part as the same row, and refuses to commit them
    -- concurrently.
    queue_timer      varbinary(2041) generated always as (concat(queue, x'00', timer_key)) stored,
    queue_head       varbinary(2041) generated always as (concat(queue, x'00', head_key)) stored,
    -- The sizes, known without reading the values.
    body_bytes       int unsigned generated always as (octet_length(body)) stored,
    header_bytes     int unsigned generated always as (octet_length(headers)) stored,
    headers          longtext character set utf8mb4 collate utf8mb4_bin not null,
    body             longblob not null,
    primary key (id),
    -- What a claim scans. It gives the order: if rows were sorted instead, every row read would be locked. It ends with
    -- what makes a message count differently, for `stats`.
    key nightmail_claim (queue, parked, priority, due_at, id, superseded),
    -- Running messages: which lease ends next, and what a lost claim leased.
    key nightmail_leased (queue, lease_until, token),
    -- At most one message owns a timer id, and at most one holds an ordering key. NULLs do not collide.
    unique key nightmail_timer (queue_timer),
    unique key nightmail_head (queue_head),
    -- The line of an ordering key. Includes the due time, so that a claim need not read the waiting rows.
    key nightmail_line (queue, ordering_key, parked, id, due_at),
    constraint nightmail_messages_priority check (priority between 0 and 9),
    constraint nightmail_messages_lease
        check ((token is null) = (lease_until is null) and (token is null) = (claimed_at is null)),
    -- A date with a zero year, month or day cannot be read.
    constraint nightmail_messages_dates
        check (month(due_at) > 0 and day(due_at) > 0 and year(due_at) > 0
               and month(published_at) > 0 and day(published_at) > 0 and year(published_at) > 0)
) engine = InnoDB row_format = dynamic;

-- Messages that were given up, and why.
create table if not exists nightmail_dead (
    id               bigint not null auto_increment,
    message_id       bigint not null,
    died_at          datetime(6) not null,
    published_at     datetime(6) not null,
    first_attempt_at datetime(6),
    last_attempt_at  datetime(6),
    -- For dead letter handlers: when it can be claimed. Null: it was given up, and is not offered.
    due_at           datetime(6),
    lease_until      datetime(6),
    token            binary(16),
    claimed_at       datetime(6),
    -- Counters of dead letter handling, not of the message: failures, and claims since the last failure.
    failures         int not null default 0,
    claims           int not null default 0,
    attempts         int not null,
    deliveries       int not null,
    priority         tinyint not null,
    queue            varbinary(1020) not null,
    timer_id         varbinary(1020),
    ordering_key     varbinary(1020),
    reason           longtext character set utf8mb4 collate utf8mb4_bin not null,
    error            longtext character set utf8mb4 collate utf8mb4_bin,
    body_bytes       int unsigned generated always as (octet_length(body)) stored,
    header_bytes     int unsigned generated always as (octet_length(headers)) stored,
    headers          longtext character set utf8mb4 collate utf8mb4_bin not null,
    body             longblob not null,
    primary key (id),
    key nightmail_dead_queue (queue, id),
    -- What became of a message.
    key nightmail_dead_message (message_id, id),
    key nightmail_dead_leased (queue, lease_until, token),
    -- What a claim of dead letters scans, and what a sweep scans.
    key nightmail_dead_due (queue, due_at, id),
    key nightmail_dead_died_at (died_at),
    constraint nightmail_dead_lease
        check ((token is null) = (lease_until is null) and (token is null) = (claimed_at is null)),
    constraint nightmail_dead_given_up check (due_at is not null or token is null)
) engine = InnoDB row_format = dynamic;

-- Messages that were delivered, if the store is configured to keep them.
create table if not exists nightmail_delivered (
    id           bigint not null auto_increment,
    message_id   bigint not null,
    published_at datetime(6) not null,
    due_at       datetime(6) not null,
    delivered_at datetime(6) not null,
    attempts     int not null,
    deliveries   int not null,
    priority     tinyint not null,
    queue        varbinary(1020) not null,
    timer_id     varbinary(1020),
    ordering_key varbinary(1020),
    headers      longtext character set utf8mb4 collate utf8mb4_bin not null,
    body         longblob not null,
    primary key (id),
    key nightmail_delivered_at (delivered_at),
    key nightmail_delivered_message (message_id)
) engine = InnoDB row_format = dynamic;

-- Dedup windows: timer ids that count as taken even without an owner.
create table if not exists nightmail_dedup (
    queue    varbinary(1020) not null,
    timer_id varbinary(1020) not null,
    until    datetime(6) not null,
    primary key (queue, timer_id),
    key nightmail_dedup_until (until)
) engine = InnoDB row_format = dynamic;

-- Pauses: of a queue, or of one ordering key in it (empty: of the whole queue). An automatic one lasts until it is
-- resumed: from `until` on it lets a probe through, which renews it for `length`, in microseconds.
create table if not exists nightmail_controls (
    queue        varbinary(1020) not null,
    ordering_key varbinary(1020) not null default '',
    automatic    tinyint not null default 0,
    since        datetime(6) not null,
    until        datetime(6),
    length       bigint,
    paused_by    varbinary(1020) not null,
    reason       longtext character set utf8mb4 collate utf8mb4_bin,
    primary key (queue, ordering_key, automatic),
    constraint nightmail_controls_probed
        check (automatic = 0 or (ordering_key = '' and until is not null and length is not null))
) engine = InnoDB row_format = dynamic;

-- The processes that consume messages, as each last reported itself. `queues` and `state` are JSON.
create table if not exists nightmail_workers (
    id         varbinary(1020) not null,
    host       longtext character set utf8mb4 collate utf8mb4_bin not null,
    pid        int not null,
    version    longtext character set utf8mb4 collate utf8mb4_bin not null,
    queues     longtext character set utf8mb4 collate utf8mb4_bin not null,
    state      longtext character set utf8mb4 collate utf8mb4_bin not null,
    started_at datetime(6) not null,
    seen_at    datetime(6) not null,
    primary key (id)
) engine = InnoDB row_format = dynamic;

-- Who consumed each queue last, of those that no longer do: written when a worker leaves, not while it works.
create table if not exists nightmail_consumers (
    queue   varbinary(1020) not null,
    seen_at datetime(6) not null,
    host    longtext character set utf8mb4 collate utf8mb4_bin not null,
    pid     int not null,
    primary key (queue)
) engine = InnoDB row_format = dynamic;

-- One row, written last: what every process that uses these tables must agree on.
create table if not exists nightmail_meta (
    only_row       tinyint not null default 1,
    version        int not null,
    -- The oldest version of the code that may use these tables.
    serves         int not null default 1,
    -- Distinguishes a caller's session in this database from one in another.
    identity       binary(16) not null,
    -- Seconds: the longest an idle worker goes without polling. Publishers rely on it when they skip a wake-up.
    look_interval  int not null default 5,
    -- Seconds: what is due later than this rings no bell, and is found by polling.
    notice_horizon int not null default 60,
    primary key (only_row),
    constraint nightmail_meta_only_row check (only_row = 1)
) engine = InnoDB row_format = dynamic;
