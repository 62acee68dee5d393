-- The columns of c.sql with those that claim and settle write on both sides of the body.

-- name: table
create table messages (
  id               bigint generated always as identity primary key,
  queue            text not null,
  due_at           timestamptz not null,
  attempts         integer not null default 0,
  deliveries       integer not null default 0,
  priority         smallint not null default 0 check (priority between 0 and 9),
  body             bytea not null,
  headers          text,
  published_at     timestamptz not null,
  expires_at       timestamptz,
  timer_id         text,
  timer_key        text,
  ordering_key     text,
  head_key         text,
  superseded       boolean not null default false,
  first_attempt_at timestamptz,
  last_attempt_at  timestamptz,
  lease_until      timestamptz,
  token            uuid,
  check ((token is null) = (lease_until is null))
);
create index messages_claim on messages (queue, priority, due_at, id) where priority >= 0;
create unique index messages_timer on messages (queue, timer_key) where timer_key is not null;
create unique index messages_head on messages (queue, head_key) where head_key is not null;
create index messages_line on messages (queue, ordering_key, (id + 0)) where ordering_key is not null;
