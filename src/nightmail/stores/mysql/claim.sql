-- Claiming. Candidates are found without a lock, each priority by itself, along the index from a position up to now.
-- Then these rows are locked by id. If one statement did both, InnoDB would also keep locked, until the commit, every
-- row it read through this index and did not want: the leased ones, whose settlements would wait.
-- Constants instead of a join with a list of priorities: only constants give a range on the due time.
--
-- Ordering keys. Messages with one ordering key form a line. Only its first can be claimed, and a claim must not scan
-- the others. So a claim that meets followers parks them: they leave the index that it scans. Three rules keep a line
-- from being forgotten:
--   1. Rows are parked only while another waiting row of their key, the anchor, is locked. The anchor stays in the
--      index.
--   2. A statement that takes, removes or moves a waiting row that is not parked unparks the first parked row of its
--      key, in the same transaction and after that row was locked. If the first is locked by others, it unparks the
--      next.
--   3. A claim that meets a row whose line begins with a parked row unparks that one.

-- name: candidates
-- What is due at one level of a queue, in order: one branch of the query that finds what to lock. Rows leased by others
-- are left out; `standing` marks those that are not first in line.
(select :place as place, m.due_at, m.id, m.body_bytes + m.header_bytes as bytes,
        m.body_bytes > :max_body_bytes or m.header_bytes > :max_header_bytes as too_large,
        case when m.head_key is null then m.ordering_key end as waits_for, :standing as standing
 from nightmail_messages as m force index (nightmail_claim)
 where m.queue = :queue and m.parked = 0 and m.priority = :level and m.due_at <= :now and :within
   and (m.token is null or m.lease_until <= :now) and m.id not in :tried
 order by m.due_at, m.id limit :limit)

-- name: standing
-- 0: it can be claimed: it has no ordering key, or holds it, or is the first of those that are due and no other message
-- holds it. 1: it waits in line. 2: its line begins with a parked row. The first row of each kind is read along the
-- index and compared: a condition on the id would read the whole line of a key that is free.
case when m.ordering_key is null or m.head_key is not null then 0
     when exists (
        select 1 from nightmail_messages as h where h.queue_head = concat(m.queue, x'00', m.ordering_key)) then 1
     when m.id > coalesce((
        select s.id from nightmail_messages as s force index (nightmail_line)
        where s.queue = m.queue and s.ordering_key = m.ordering_key and s.parked = 1
        order by s.id limit 1), m.id) then 2
     when m.id > coalesce((
        select s.id from nightmail_messages as s force index (nightmail_line)
        where s.queue = m.queue and s.ordering_key = m.ordering_key and s.parked = 0 and s.due_at <= :now
        order by s.id limit 1), m.id) then 1
     else 0 end

-- name: standing_beside
-- The same where something is paused: what has a paused ordering key waits in line. So others of its key are parked
-- behind it, and claims do not scan them.
case when m.ordering_key is not null and exists (
        select 1 from nightmail_controls as c
        where c.queue = m.queue and c.ordering_key = m.ordering_key and c.automatic = 0
          and (c.until is null or c.until > :now)) then 1
     else :standing end

-- name: take
-- Lock those of these messages that can still be claimed, skipping locked ones. Only the returned rows stay locked.
select m.id, m.queue, m.body, m.headers, m.timer_id, m.ordering_key, m.priority, m.due_at, m.published_at,
       m.expires_at, m.attempts, m.deliveries, m.first_attempt_at, m.last_attempt_at, m.superseded
from nightmail_messages as m force index (primary)
where m.id in :ids and m.parked = 0 and m.due_at <= :now and (m.token is null or m.lease_until <= :now)
limit :limit
for update skip locked;

-- name: take_unread
-- The same for messages that are too large to read.
select m.id from nightmail_messages as m force index (primary)
where m.id in :ids and m.parked = 0 and m.due_at <= :now and (m.token is null or m.lease_until <= :now)
limit :limit
for update skip locked;

-- name: before_parked
-- Those of these messages, just locked, in whose lines others are parked: few or none. One query for all of them: a
-- branch for each costs far more than what it reads.
select m.id from nightmail_messages as m force index (primary)
where m.id in :ids and (
    select s.id from nightmail_messages as s force index (nightmail_line)
    where s.queue = m.queue and s.ordering_key = m.ordering_key and s.parked = 1
    order by s.id limit 1) is not null;

-- name: next_in_line
-- Lock the first parked row of a line that is not locked yet: one branch per key.
(select :place as place, s.id from nightmail_messages as s force index (nightmail_line)
 where s.queue = :queue and s.ordering_key = :ordering_key and s.parked = 1
 order by s.id limit 1 for update skip locked)

-- name: any_in_line
-- Whether a line has parked rows, locked by others or not: one branch per key.
(select :place as place, s.id from nightmail_messages as s force index (nightmail_line)
 where s.queue = :queue and s.ordering_key = :ordering_key and s.parked = 1
 order by s.id limit 1)

-- name: unpark
-- Make these rows, which are locked, visible to claims again.
update nightmail_messages as m force index (primary) set m.parked = 0 where m.id in :ids and :begun;

-- name: lock_followers
-- Lock those of these rows that still wait in line, skipping locked ones.
select m.id, m.queue, m.ordering_key from nightmail_messages as m force index (primary)
where m.id in :ids and m.parked = 0 and m.ordering_key is not null and m.head_key is null and m.token is null
for update skip locked;

-- name: anchor
-- Mark rows behind which others are parked (see schema.sql).
update nightmail_messages as m force index (primary) set m.anchor = 1 - m.anchor where m.id in :ids and :begun;

-- name: park
-- Hide these rows, which are locked, from claims.
update nightmail_messages as m force index (primary) set m.parked = 1 where m.id in :ids and :begun;

-- name: lease
-- Lease these messages, which are locked. From their first claim on they hold their ordering keys.
update nightmail_messages as m force index (primary)
set m.token = :token, m.claimed_at = :now, m.lease_until = :until, m.deliveries = least(m.deliveries, 2147483646) + 1,
    m.head_key = m.ordering_key, m.lease_room = ''
where m.id in :ids and :begun;

-- name: bury_unfit
-- Copy messages that cannot be handed out to the dead letters, replacing dates that a dead letter cannot have. They get
-- no due time: a dead letter handler could not read them either.
insert into nightmail_dead
    (message_id, died_at, due_at, published_at, first_attempt_at, last_attempt_at, attempts, deliveries, priority,
     queue, timer_id, ordering_key, reason, headers, body)
select m.id, :now, null,
       case when year(m.published_at) > 0 and month(m.published_at) > 0 and day(m.published_at) between 1 and day(last_day(m.published_at))
            then m.published_at else :now end,
       case when year(m.first_attempt_at) > 0 and month(m.first_attempt_at) > 0 and day(m.first_attempt_at) between 1 and day(last_day(m.first_attempt_at))
            then m.first_attempt_at end,
       case when year(m.last_attempt_at) > 0 and month(m.last_attempt_at) > 0 and day(m.last_attempt_at) between 1 and day(last_day(m.last_attempt_at))
            then m.last_attempt_at end,
       m.attempts, m.deliveries, m.priority, m.queue, m.timer_id, m.ordering_key, :reason, m.headers, m.body
from nightmail_messages as m force index (primary) where m.id in :ids and :begun;

-- name: remove_buried
-- Remove messages that were just buried.
delete m from nightmail_messages as m force index (primary) where m.id in :ids and :begun;

-- name: levels
-- The first due time at each level of these queues (a list, in hexadecimal). For claims from many queues, so that only
-- levels at which something is due are searched.
select found.place, found.level, found.first, :now as now, :paused as paused from (
    select queues.place - 1 as place, levels.level, (
        select m.due_at from nightmail_messages as m force index (nightmail_claim)
        where m.queue = unhex(queues.queue) and m.parked = 0 and m.priority = levels.level
        order by m.due_at limit 1) as first
    from json_table(:queues, '$[*]' columns (
        place for ordinality, queue varchar(2040) character set latin1 path '$')) as queues
    straight_join json_table(:levels, '$[*]' columns (level int path '$')) as levels
) as found
where found.first is not null;

-- name: upcoming
-- When the next message of one level is due: one branch of the query that says when to look again.
(select m.due_at as at from nightmail_messages as m force index (nightmail_claim)
 where m.queue = :queue and m.parked = 0 and m.priority = :level and m.due_at > :now
 order by m.due_at, m.id limit 1)

-- name: expiring_in
-- The same for many queues.
(select min(m.lease_until) as at from nightmail_messages as m force index (nightmail_leased)
 where m.queue in :queues and m.lease_until > :now)

-- name: due
-- Whether anything in these queues is due and not leased: one branch of the query that idle processes poll with.
(select 1 from nightmail_messages as m force index (nightmail_claim)
where m.queue in :queues and m.parked = 0 and m.priority in :levels and m.due_at <= :now
  and (m.token is null or m.lease_until <= :now)
limit 1)

-- name: available
-- Whether anything can be claimed in a queue, or many wait in line that a claim should park: one branch of the query
-- that follows if something is due.
(select max(found.place) as place from (
    select :place as place, :standing as standing from nightmail_messages as m force index (nightmail_claim)
    where m.queue = :queue and m.parked = 0 and m.priority in :levels and m.due_at <= :now
      and (m.token is null or m.lease_until <= :now) and :open
    limit :limit) as found
 having count(*) = :limit or sum(found.standing <> 1) > 0)
