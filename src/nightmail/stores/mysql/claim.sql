-- Claiming. What to take is found without a lock, each priority by itself, along the index from a place to now and no
-- further. Then these rows are locked by their ids. Found and locked in one statement, InnoDB would also keep locked, until
-- the commit, every row it looked at through this index and did not want: the leased ones, whose settlements would wait.
-- Constants instead of a join with a list of priorities: only constants give a range on the due time.

-- name: candidates
-- What could be claimed at one level of a queue, in order: a branch of the question what to lock.
(select :place as place, m.due_at, m.id from nightmail_messages as m force index (nightmail_claim)
 where m.queue = :queue and m.priority = :level and m.due_at <= :now and :within
   and (m.token is null or m.lease_until <= :now) and :in_line and m.id not in :tried
 order by m.due_at, m.id limit :limit)

-- name: take
-- Lock those of these messages that can still be claimed and that nobody else has locked. Exactly these stay locked.
select m.id, m.queue, m.body, m.headers, m.timer_id, m.ordering_key, m.priority, m.due_at, m.published_at,
       m.expires_at, m.attempts, m.deliveries, m.first_attempt_at, m.last_attempt_at, m.superseded
from nightmail_messages as m force index (primary)
where m.id in :ids and m.due_at <= :now and (m.token is null or m.lease_until <= :now)
limit :limit
for update skip locked;

-- name: in_line
-- A condition: without an ordering key; or holding it; or the first of those who are due, if nobody holds it.
(m.ordering_key is null or m.head_key is not null or (
    not exists (
        select 1 from nightmail_messages as h where h.queue_head = concat(m.queue, x'00', m.ordering_key))
    and not exists (
        select 1 from nightmail_messages as s force index (nightmail_line)
        where s.queue = m.queue and s.ordering_key = m.ordering_key and s.id < m.id and s.due_at <= :now)))

-- name: lease
-- Lease these messages, which are locked. From their first claim on they hold their ordering keys.
update nightmail_messages as m force index (primary)
set m.token = :token, m.claimed_at = :now, m.lease_until = :until, m.deliveries = m.deliveries + 1,
    m.head_key = m.ordering_key
where m.id in :ids;

-- name: coming
-- When the next message of one level is due: a branch of the question when to look again.
(select m.due_at as at from nightmail_messages as m force index (nightmail_claim)
 where m.queue = :queue and m.priority = :level and m.due_at > :now
 order by m.due_at, m.id limit 1)

-- name: expiring
-- When the next lease in a queue ends: another such branch. What is leased was due; a thousand are enough to sleep well.
(select min(running.lease_until) as at from (
    select m.lease_until from nightmail_messages as m force index (nightmail_claim)
    where m.queue = :queue and m.priority in :levels and m.due_at <= :now and m.lease_until > :now
    limit 1000) as running)

-- name: recall
-- What a claim under this token leased.
select m.id, m.queue, m.body, m.headers, m.timer_id, m.ordering_key, m.priority, m.due_at, m.published_at,
       m.expires_at, m.attempts, m.deliveries, m.first_attempt_at, m.last_attempt_at, m.superseded, m.claimed_at
from nightmail_messages as m force index (nightmail_claim)
where m.queue in :queues and m.priority in :levels and m.due_at <= :now and m.token = :token;

-- name: available
-- Whether anything can be claimed in a queue: a branch of the question that is asked all the time while idle.
(select :place as place from nightmail_messages as m force index (nightmail_claim)
 where m.queue = :queue and m.priority in :levels and m.due_at <= :now
   and (m.token is null or m.lease_until <= :now) and :in_line
 limit 1)
