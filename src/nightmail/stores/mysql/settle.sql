-- Outcomes of messages, under the fence of under_lease.sql. They go in one packet between a begin and a commit, after the
-- rows were locked.

-- name: bury
-- Copy these messages to the dead letters: a list of ids, reasons, errors, and 1 where the handler ran, else 0.
insert into nightmail_dead
    (message_id, died_at, due_at, published_at, first_attempt_at, last_attempt_at, attempts, deliveries, priority,
     queue, timer_id, ordering_key, reason, error, headers, body)
select m.id, :now, :now, m.published_at,
       case when letter.ran then coalesce(m.first_attempt_at, m.claimed_at) else m.first_attempt_at end,
       case when letter.ran then m.claimed_at else m.last_attempt_at end,
       least(m.attempts, 2147483646) + letter.ran, m.deliveries, m.priority, m.queue, m.timer_id, m.ordering_key,
       letter.reason, letter.error, m.headers, m.body
from json_table(:letters, '$[*]' columns (
    id bigint path '$[0]', ran int path '$[1]',
    reason longtext character set utf8mb4 path '$[2]', error longtext character set utf8mb4 path '$[3]'
)) as letter
straight_join nightmail_messages as m force index (primary) on m.id = letter.id
where :leases;

-- name: keep
-- Copy these messages to the delivered history.
insert into nightmail_delivered
    (message_id, published_at, due_at, delivered_at, attempts, deliveries, priority,
     queue, timer_id, ordering_key, headers, body)
select m.id, m.published_at, m.due_at, :now, m.attempts, m.deliveries, m.priority,
       m.queue, m.timer_id, m.ordering_key, m.headers, m.body
from nightmail_messages as m force index (primary) where :leases;

-- name: bring_back
-- Return these messages to the queue: a list of ids, kinds (which decide the counters), delays in microseconds, and
-- errors.
-- No assignment reads what an earlier one wrote: whether it would see the old or the new value is not defined.
update json_table(:returned, '$[*]' columns (
    id bigint path '$[0]', kind varchar(10) path '$[1]', after_us bigint path '$[2]',
    error varchar(255) character set utf8mb4 path '$[3]'
)) as back
straight_join nightmail_messages as m force index (primary) on m.id = back.id
set m.first_attempt_at = case back.kind
        when 'retry' then coalesce(m.first_attempt_at, m.claimed_at) when 'release' then m.first_attempt_at end,
    m.last_attempt_at = case back.kind when 'retry' then m.claimed_at when 'release' then m.last_attempt_at end,
    m.last_error = case back.kind when 'retry' then cast(back.error as binary) when 'release' then m.last_error end,
    m.attempts = case back.kind when 'retry' then least(m.attempts, 2147483646) + 1 when 'postpone' then 0 else m.attempts end,
    m.deliveries = case back.kind when 'release' then greatest(m.deliveries - 1, 0) else 0 end,
    m.due_at = case when back.kind = 'release' then m.due_at when m.superseded then :now
        else :now + interval back.after_us microsecond end,
    m.token = null, m.lease_until = null, m.claimed_at = null
where :leases;
