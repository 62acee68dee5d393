-- The tables of version 1.

-- One row: what every process that uses these tables must agree on.
create table nightmail_meta (
    only_row       boolean not null default true,
    version        integer not null,
    -- The oldest version of the code that may use these tables.
    serves         integer not null default 1,
    -- Tells a caller's session in another database from one in this database.
    identity       uuid not null default gen_random_uuid(),
    -- The longest an idle worker goes without polling. Publishers rely on it when they skip a wake-up.
    look_interval  interval not null default interval '5 seconds',
    -- A message due later than this does not ring: polling finds it.
    notice_horizon interval not null default interval '60 seconds',
    primary key (only_row),
    constraint nightmail_meta_only_row_check check (only_row)
);

-- Waiting and running messages. What is due and has no lease, or an expired one, is available.
-- Half of each page stays free: a claim then updates its rows in place (HOT) and touches no index.
create table nightmail_messages (
    id               bigint not null generated always as identity,
    published_at     timestamptz not null,
    expires_at       timestamptz,
    priority         smallint not null,
    superseded       boolean not null default false,
    -- Written by claim and settle. Stored together, so that an update logs these bytes and not body and headers.
    due_at           timestamptz not null,
    lease_until      timestamptz,
    token            uuid,
    claimed_at       timestamptz,
    first_attempt_at timestamptz,
    last_attempt_at  timestamptz,
    attempts         integer not null default 0,
    deliveries       integer not null default 0,
    -- The ordering key, from the first claim on until the row is gone.
    head_key         text collate "C",
    -- The timer id, while this row owns it.
    timer_key        text collate "C",
    -- Who asked for it to be stopped. It stays with the message.
    stop_requested_by text,
    -- Why the last attempt failed, for operators.
    last_error       text,
    -- Not written again, except by a publish that replaces the message.
    queue            text collate "C" not null,
    timer_id         text collate "C",
    ordering_key     text collate "C",
    headers          text not null,
    body             bytea not null,
    primary key (id),
    constraint nightmail_messages_priority check (priority between 0 and 9),
    constraint nightmail_messages_lease
        check ((token is null) = (lease_until is null) and (token is null) = (claimed_at is null)),
    constraint nightmail_messages_counters check (attempts >= 0 and deliveries >= 0),
    -- The years 1 to 9999, which every client can read. Infinity breaks arithmetic. Two comparisons and not one for
    -- each column: the server reads and prepares constraints for each statement, which was half the cost of an insert.
    constraint nightmail_messages_times check (
        least(due_at, expires_at, published_at, lease_until, claimed_at, first_attempt_at, last_attempt_at)
            >= to_timestamp(-62135510400)
        and greatest(due_at, expires_at, published_at, lease_until, claimed_at, first_attempt_at, last_attempt_at)
            <= to_timestamp(253402214400)
    )
) with (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0,
    -- Giving pages back would lock the whole table, and a queue needs them again tomorrow.
    vacuum_truncate = false,
    toast.autovacuum_vacuum_scale_factor = 0.02,
    toast.autovacuum_vacuum_cost_delay = 0,
    toast.vacuum_truncate = false
);

-- What claims scan: messages that can be claimed on their own, without an ordering key or holding theirs since the
-- first claim. `priority >= 0` is always true, and only statements meant for this index state it: otherwise the
-- planner, when its statistics date from an empty table, looks up single ids by scanning this index from end to end.
create index nightmail_claim on nightmail_messages (queue, priority, due_at, id)
    where priority >= 0 and (ordering_key is null or head_key is not null);

-- Messages that wait for their ordering key. Only the first of each key can be next, so claims scan no further than
-- they must.
create index nightmail_waiting on nightmail_messages (queue, priority, due_at, id)
    where priority >= 0 and ordering_key is not null and head_key is null;

-- At most one message owns a timer id, and at most one holds an ordering key.
create unique index nightmail_timer on nightmail_messages (queue, timer_key) where timer_key is not null;
create unique index nightmail_head on nightmail_messages (queue, head_key) where head_key is not null;

-- All messages with an ordering key, in order. Not the bare id: a search for lower ones could then be planned through
-- the primary key, over all messages.
create index nightmail_line on nightmail_messages (queue, ordering_key, ((id + 0))) where ordering_key is not null;

-- Messages that were given up, with all that is known about why.
create table nightmail_dead (
    id               bigint not null generated always as identity,
    message_id       bigint not null,
    died_at          timestamptz not null,
    published_at     timestamptz not null,
    first_attempt_at timestamptz,
    last_attempt_at  timestamptz,
    -- For dead letter handlers: when it is due (null once given up), its lease, its failures, its claims since then.
    due_at           timestamptz,
    lease_until      timestamptz,
    token            uuid,
    claimed_at       timestamptz,
    failures         integer not null default 0,
    claims           integer not null default 0,
    -- As the message had them.
    attempts         integer not null,
    deliveries       integer not null,
    priority         smallint not null,
    queue            text collate "C" not null,
    timer_id         text collate "C",
    ordering_key     text collate "C",
    reason           text not null,
    error            text,
    headers          text not null,
    body             bytea not null,
    primary key (id),
    constraint nightmail_dead_lease
        check ((token is null) = (lease_until is null) and (token is null) = (claimed_at is null)),
    constraint nightmail_dead_counters check (failures >= 0 and claims >= 0),
    constraint nightmail_dead_times check (
        least(died_at, due_at, published_at, lease_until, claimed_at, first_attempt_at, last_attempt_at)
            >= to_timestamp(-62135510400)
        and greatest(died_at, due_at, published_at, lease_until, claimed_at, first_attempt_at, last_attempt_at)
            <= to_timestamp(253402214400)
    )
);
create index nightmail_dead_queue on nightmail_dead (queue, id);
create index nightmail_dead_due on nightmail_dead (queue, due_at, id) where due_at is not null;
create index nightmail_dead_at on nightmail_dead (died_at);
create index nightmail_dead_message on nightmail_dead (message_id);

-- Messages that are done, if the store keeps them.
create table nightmail_delivered (
    id           bigint not null generated always as identity,
    message_id   bigint not null,
    published_at timestamptz not null,
    due_at       timestamptz not null,
    delivered_at timestamptz not null,
    attempts     integer not null,
    deliveries   integer not null,
    priority     smallint not null,
    queue        text collate "C" not null,
    timer_id     text collate "C",
    ordering_key text collate "C",
    headers      text not null,
    body         bytea not null,
    primary key (id)
);
create index nightmail_delivered_at on nightmail_delivered (delivered_at);
create index nightmail_delivered_message on nightmail_delivered (message_id);

-- Timer ids that count as taken even when no message owns them any more.
create table nightmail_dedup (
    queue    text collate "C" not null,
    timer_id text collate "C" not null,
    until    timestamptz not null,
    primary key (queue, timer_id)
);
create index nightmail_dedup_until on nightmail_dedup (until);

-- Pauses. A row keeps claims away until it is deleted, also past its end: the first claim after that deletes it, or
-- takes a probe. Every claim asks for the rows of its queues, and mostly there are none.
create table nightmail_controls (
    queue        text collate "C" not null,
    -- Empty for the whole queue. A message's own is never empty.
    ordering_key text collate "C" not null default '',
    -- Whether a handler or a breaker paused it: a pause of its own, beside that of a person.
    automatic    boolean not null default false,
    since        timestamptz not null,
    until        timestamptz,
    -- How long an automatic one was last set for.
    length       interval,
    paused_by    text not null,
    reason       text,
    primary key (queue, ordering_key, automatic)
);

-- The processes that consume messages, as they last reported themselves. Only the id is indexed: reports update rows
-- in place.
create table nightmail_workers (
    id         text collate "C" not null,
    host       text not null,
    pid        integer not null,
    version    text not null,
    -- JSON, as is the state.
    queues     text not null,
    state      text not null,
    started_at timestamptz not null,
    seen_at    timestamptz not null,
    primary key (id)
);

-- Who consumed each queue last, of those that no longer do: written when a worker leaves, not while it works.
create table nightmail_consumers (
    queue   text collate "C" not null,
    seen_at timestamptz not null,
    host    text not null,
    pid     integer not null,
    primary key (queue)
);

insert into nightmail_meta (version) values (1);
