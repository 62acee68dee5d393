-- Dead letters for dead letter handlers. What they have in common with messages is in under_lease.sql.
-- A dead letter that was given up has no due time, and so is in no range of due times.

-- name: candidates
-- What can be claimed from a queue, in order: one branch of the query that finds what to lock.
(select m.due_at, m.id, m.body_bytes + m.header_bytes as bytes,
        m.body_bytes > :max_body_bytes or m.header_bytes > :max_header_bytes as too_large
 from nightmail_dead as m force index (nightmail_dead_due)
 where m.queue = :queue and m.due_at <= :now and (m.token is null or m.lease_until <= :now) and m.id not in :tried
 order by m.due_at, m.id limit :limit)

-- name: take
-- Lock those of these dead letters that can still be claimed, skipping locked ones. Only the returned rows stay locked.
select m.id from nightmail_dead as m force index (primary)
where m.id in :ids and m.due_at <= :now and (m.token is null or m.lease_until <= :now)
limit :limit
for update skip locked;

-- name: read
-- Read these dead letters, which are locked.
select m.id, m.queue, m.body, m.headers, m.timer_id, m.ordering_key, m.priority, m.due_at, m.published_at,
       m.failures, m.claims, m.first_attempt_at, m.last_attempt_at, m.message_id, m.reason, m.error, m.died_at
from nightmail_dead as m force index (primary)
where m.id in :ids;

-- name: lease
-- Lease these dead letters, which are locked.
update nightmail_dead as m force index (primary)
set m.token = :token, m.claimed_at = :now, m.lease_until = :until, m.claims = least(m.claims, 2147483646) + 1
where m.id in :ids;

-- name: upcoming
-- When the next dead letter of a queue is due: one branch of the query that says when to look again.
(select m.due_at as at from nightmail_dead as m force index (nightmail_dead_due)
 where m.queue = :queue and m.due_at > :now
 order by m.due_at, m.id limit 1)

-- name: give_up
-- Give up dead letters that cannot be handed out, which are locked: they are kept, and never offered again.
update nightmail_dead as m force index (primary)
set m.due_at = null, m.token = null, m.lease_until = null, m.claimed_at = null
where m.id in :ids and :begun;

-- name: due
-- Whether anything in these queues is due and not leased: one branch of the query that idle processes poll with.
(select 1 from nightmail_dead as m force index (nightmail_dead_due)
 where m.queue in :queues and m.due_at <= :now and (m.token is null or m.lease_until <= :now)
 limit 1)

-- name: available
-- Whether anything can be claimed in a queue: one branch of the query that follows if something is due.
(select :place as place from nightmail_dead as m force index (nightmail_dead_due)
 where m.queue = :queue and m.due_at <= :now and (m.token is null or m.lease_until <= :now)
 limit 1)

-- name: bring_back
-- Return these dead letters to their queue, or give them up: a list of ids, kinds, and delays in microseconds.
-- No assignment reads what an earlier one wrote: whether it would see the old or the new value is not defined.
update json_table(:returned, '$[*]' columns (
    id bigint path '$[0]', kind varchar(10) path '$[1]', after_us bigint path '$[2]'
)) as back
straight_join nightmail_dead as m force index (primary) on m.id = back.id
set m.failures = case back.kind when 'retry' then least(m.failures, 2147483646) + 1 when 'postpone' then 0 else m.failures end,
    m.claims = case back.kind when 'release' then greatest(m.claims - 1, 0) else 0 end,
    m.due_at = case back.kind when 'release' then m.due_at when 'dead' then null
        else :now + interval back.after_us microsecond end,
    m.token = null, m.lease_until = null, m.claimed_at = null
where :leases;
