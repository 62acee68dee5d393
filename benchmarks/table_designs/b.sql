-- One time, `visible_at`, says when a message is due and when its lease ends; a claim pushes it forward.
-- All else is as in c.sql.

-- name: table
-- The columns that claim and settle write are adjacent: an update logs only what lies between the first and the last
-- byte it changes, so neither the headers nor the body go into the WAL a second time.
create table messages (
  id               bigint generated always as identity primary key,
  published_at     timestamptz not null,
  expires_at       timestamptz,
  priority         smallint not null default 0 check (priority between 0 and 9),
  superseded       boolean not null default false,
  due_at           timestamptz not null,
  visible_at       timestamptz not null,
  token            uuid,
  first_attempt_at timestamptz,
  last_attempt_at  timestamptz,
  attempts         integer not null default 0,
  deliveries       integer not null default 0,
  head_key         text,
  timer_key        text,
  queue            text not null,
  timer_id         text,
  ordering_key     text,
  headers          text,
  body             bytea not null
);
-- The predicate is always true. Only the claim states it, so that no other statement is planned through this index.
create index messages_claim on messages (queue, priority, visible_at, id) where priority >= 0;
create unique index messages_timer on messages (queue, timer_key) where timer_key is not null;
create unique index messages_head on messages (queue, head_key) where head_key is not null;
-- Not `id` itself: the test for an earlier message of the same key could then be planned through the primary key.
create index messages_line on messages (queue, ordering_key, (id + 0)) where ordering_key is not null;

-- name: insert
-- Store messages of queue $1.
insert into messages (queue, due_at, visible_at, published_at, body, headers)
select $1::text, m.due_at, m.due_at, clock_timestamp(), m.body, m.headers
from unnest($2::timestamptz[], $3::bytea[], $4::text[]) as m(due_at, body, headers);

-- name: fill
-- Store $2 messages of queue $1, due from $3 on, one $4 after the other, with a body of $6 bytes; each with an
-- ordering key of its own if $5.
insert into messages (queue, due_at, visible_at, published_at, body, headers, ordering_key)
select $1::text, $3::timestamptz + n * $4::interval, $3::timestamptz + n * $4::interval,
       clock_timestamp(), decode(repeat('6e', $6::integer), 'hex'),
       '{"content-type": "application/json", "correlation_id": "9f2c1b"}',
       case when $5::boolean then 'key-' || gen_random_uuid() end
from generate_series(0, $2::integer - 1) as n;

-- name: claim
-- Lease up to $7 due messages with token $8 for $9, at $10 or now, from the ranges $1 to $6 in their order: a queue, a
-- level, from (visible_at, id) on, up to another. Locks only what it takes; a range is looked at when needed.
with picked as materialized (
  select c.id
  from unnest($1::text[], $2::smallint[], $3::timestamptz[], $4::bigint[], $5::timestamptz[], $6::bigint[])
         with ordinality as r(queue, level, from_at, from_id, to_at, to_id, place),
       lateral (
         select m.id
         from messages m
         where m.priority >= 0 and m.queue = r.queue and m.priority = r.level
           and (m.visible_at, m.id) >= (r.from_at, r.from_id) and (m.visible_at, m.id) < (r.to_at, r.to_id)
           and m.visible_at <= coalesce($10::timestamptz, statement_timestamp())
           -- Not `not exists`: it may be planned as a hash of the whole table.
           and (m.ordering_key is null or m.head_key is not null or (
             (select h.id from messages h where h.queue = m.queue and h.head_key = m.ordering_key limit 1) is null
             and (select s.id from messages s
                  where s.queue = m.queue and s.ordering_key = m.ordering_key and s.id + 0 < m.id
                    and s.due_at <= coalesce($10::timestamptz, statement_timestamp())
                  limit 1) is null))
         order by m.visible_at, m.id
         limit $7::integer
         for update of m skip locked
       ) c
  order by r.place
  limit $7::integer
)
update messages m
set token = $8::uuid, visible_at = coalesce($10::timestamptz, clock_timestamp()) + $9::interval,
    deliveries = m.deliveries + 1, head_key = m.ordering_key
-- Not a join: a planner that believes the table empty would walk all of it for each message.
where m.id = any(array(select p.id from picked p))
returning m.id, m.due_at, m.queue, m.priority, m.headers, m.body, m.attempts, m.deliveries;

-- name: settle
-- Delete the messages $1 if they still have the tokens $2. The ids are sorted, and `width_bucket` finds an id's place
-- among them by halving, so that it is compared with its own token.
delete from messages m
where m.id = any($1::bigint[]) and m.token = ($2::uuid[])[width_bucket(m.id, $1::bigint[])]
returning m.id;

-- name: retry
-- Bring them back in an hour.
update messages m
set token = null, visible_at = clock_timestamp() + interval '1 hour',
    attempts = m.attempts + 1, deliveries = 0, last_attempt_at = clock_timestamp()
where m.id = any($1::bigint[]) and m.token = ($2::uuid[])[width_bucket(m.id, $1::bigint[])]
returning m.id;

-- name: extend
-- Renew their leases, except rows that another transaction has locked.
with held as materialized (
  select m.id
  from messages m
  where m.id = any($1::bigint[]) and m.token = ($2::uuid[])[width_bucket(m.id, $1::bigint[])]
  order by m.id
  for update of m skip locked
)
update messages m
set visible_at = clock_timestamp() + interval '1 minute'
where m.id = any(array(select h.id from held h))
returning m.id;
