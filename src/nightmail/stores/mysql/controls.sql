-- Pauses, the registry of workers, and what is known about one message. Claims read pauses without a lock, and change
-- them in transactions of their own. `:begun`: the transaction is still open (see `Dialect.begun`).

-- name: pause
-- Set a pause, in place of the one before it. One that is still in force keeps its beginning. First of the assignments:
-- the later ones change what it reads.
insert into nightmail_controls (queue, ordering_key, automatic, since, until, length, paused_by, reason)
values (:queue, :ordering_key, :automatic, :now, :until, :length, :by, :reason)
on duplicate key update
    since = case when automatic = 0 and until <= :now then :now else since end,
    until = :until, length = :length, paused_by = :by, reason = :reason;

-- name: lock_pause
-- Lock a pause: whether it is in force.
select :in_force from nightmail_controls as c
where c.queue = :queue and c.ordering_key = :ordering_key and c.automatic = :automatic
for update;

-- name: resume
-- End the pause that was just locked.
delete from nightmail_controls
where queue = :queue and ordering_key = :ordering_key and automatic = :automatic and :begun;

-- name: in_force
-- A condition on pauses.
(c.automatic = 1 or c.until is null or c.until > :now)

-- name: pauses
-- Pauses in force.
select c.queue, c.ordering_key, c.paused_by, c.reason, c.since, c.until, c.automatic
from nightmail_controls as c
where :in_force and (:queue is null or c.queue = :queue)
order by c.queue, c.ordering_key, c.automatic;

-- name: any_paused
-- Whether there is any pause in these queues: part of the first statement of a claim.
exists (select 1 from nightmail_controls as c where c.queue in :queues)

-- name: beside
-- The pauses of these queues, as a claim needs them: that of a person, the automatic one, and those of ordering keys
-- together. How many have ended, how many hold, when the next one ends, and the end of the first.
select c.queue, c.ordering_key = '' as whole, c.automatic, sum(not :in_force) as ended, sum(:in_force) as held,
       min(case when c.until > :now then c.until end) as next_end, min(c.until) as first_end
from nightmail_controls as c
where c.queue in :queues
group by c.queue, whole, c.automatic;

-- name: forget_ended
-- Remove pauses that have ended: once there are none, claims need not read them.
delete from nightmail_controls where queue in :queues and automatic = 0 and until <= :now;

-- name: is_open
-- A condition: the queue is not paused, or may be probed.
not exists (
    select 1 from nightmail_controls as c
    where c.queue = :queue and c.ordering_key = '' and (c.until is null or c.until > :now))

-- name: lock_probe
-- Lock an automatic pause: its end, and where that is over the end of the next one.
select c.until, case when c.until <= :now then :now + interval c.length microsecond end from nightmail_controls as c
where c.queue = :queue and c.ordering_key = '' and c.automatic = 1
for update;

-- name: renew
-- Renew the pause that was just locked, if it is past its end: of several processes one does, and takes the probe.
update nightmail_controls set until = :now + interval length microsecond
where queue = :queue and ordering_key = '' and automatic = 1 and until <= :now and :begun;

-- name: put_back
-- There was nothing to take: the pause is as it was, unless it was changed meanwhile.
update nightmail_controls set until = :before
where queue = :queue and ordering_key = '' and automatic = 1 and until = :renewed;

-- name: probe_again
-- A probe that was claimed then did not run: let the next one through. A pause that was set or renewed since is left
-- alone.
update nightmail_controls set until = :now
where queue = :queue and ordering_key = '' and automatic = 1 and until > :now
  and until - interval length microsecond <= :claimed_at;

-- name: lock_running
-- Lock this message if it runs.
select m.id from nightmail_messages as m force index (primary) where m.id in :ids and m.lease_until > :now for update;

-- name: request_stop
-- Ask the holder of the message that was just locked to stop it.
update nightmail_messages set stop_requested_by = :by where id = :id;

-- name: report
-- Note a worker.
insert into nightmail_workers (id, host, pid, version, queues, state, started_at, seen_at)
values (:id, :host, :pid, :version, :queues, :state, :now, :now)
on duplicate key update
    host = :host, pid = :pid, version = :version, queues = :queues, state = :state, seen_at = :now;

-- name: leaving
-- This worker, and those that were not seen for so long, not locked: there are none, as a rule.
select w.id, w.queues, w.host, w.pid, w.seen_at from nightmail_workers as w
where w.id = :id or w.seen_at < :now - interval :longest microsecond;

-- name: forget_unseen
-- Forget them, unless they have reported meanwhile.
delete from nightmail_workers where id in :ids and seen_at < :now - interval :longest microsecond;

-- name: leaver
-- What a worker that signs off consumed.
select w.id, w.queues, w.host, w.pid, w.seen_at from nightmail_workers as w where w.id = :id;

-- name: note_consumer
-- Note who consumed a queue last, unless another was seen there later. The time last: the others compare it.
insert into nightmail_consumers (queue, seen_at, host, pid) values (:queue, :seen_at, :host, :pid)
on duplicate key update
    host = case when seen_at < :seen_at then :host else host end,
    pid = case when seen_at < :seen_at then :pid else pid end,
    seen_at = greatest(seen_at, :seen_at);

-- name: outdated_consumers
-- Queues whose last consumer was not seen for so long, not locked.
select c.queue from nightmail_consumers as c where c.seen_at < :now - interval :longest microsecond;

-- name: forget_consumers
-- Forget those, unless they were consumed meanwhile.
delete from nightmail_consumers where queue in :queues and seen_at < :now - interval :longest microsecond;

-- name: last_consumers
-- Who consumed each queue last, within so long, of those that no longer do.
select c.queue, c.host, c.pid, c.seen_at from nightmail_consumers as c
where c.seen_at >= :now - interval :longest microsecond;

-- name: sign_off
-- Forget a worker.
delete from nightmail_workers where id = :id;

-- name: workers
-- Workers seen within so long.
select w.id, w.host, w.pid, w.version, w.queues, w.state, w.started_at, w.seen_at
from nightmail_workers as w
where w.seen_at >= :now - interval :longest microsecond
order by w.host, w.pid, w.id;

-- name: running
-- The running messages of these queues.
select m.id, m.queue, m.token, m.attempts, m.deliveries, m.claimed_at, m.lease_until
from nightmail_messages as m force index (nightmail_leased)
where m.queue in :queues and m.lease_until > :now
order by m.claimed_at, m.id
limit :limit;

-- name: moment
-- The store's clock.
select :now as moment;

-- name: newest_letter
-- The newest dead letter of a message, without its body.
select d.id, d.message_id, d.queue, d.reason, d.error, d.timer_id, d.ordering_key, d.priority, d.attempts,
       d.deliveries, d.published_at, d.first_attempt_at, d.last_attempt_at, d.died_at, x'' as body, d.headers
from nightmail_dead as d force index (nightmail_dead_message)
where d.message_id = :id
order by d.id desc
limit 1;

-- name: delivered_at
-- When a message was delivered.
select d.delivered_at from nightmail_delivered as d force index (nightmail_delivered_message)
where d.message_id = :id
limit 1;

-- name: held_back_by
-- What holds a message back: its token, who asked for a stop, the message that holds its ordering key, the first of the
-- key that is due in either part of its line, and the owner of its timer id.
select m.token, m.stop_requested_by,
       (select h.id from nightmail_messages as h where h.queue_head = concat(m.queue, x'00', m.ordering_key)) as holder,
       (select s.id from nightmail_messages as s force index (nightmail_line)
        where s.queue = m.queue and s.ordering_key = m.ordering_key and s.parked = 0 and s.due_at <= :now
        order by s.id limit 1) as first_seen,
       (select s.id from nightmail_messages as s force index (nightmail_line)
        where s.queue = m.queue and s.ordering_key = m.ordering_key and s.parked = 1 and s.due_at <= :now
        order by s.id limit 1) as first_parked,
       case when m.superseded then (
        select o.id from nightmail_messages as o where o.queue_timer = concat(m.queue, x'00', m.timer_id)) end as owner
from nightmail_messages as m force index (primary)
where m.id = :id;

-- name: lock_if_free
-- Lock a message unless it is locked: then nothing is returned.
select m.id from nightmail_messages as m force index (primary) where m.id = :id for update skip locked;

-- name: pauses_of
-- Pauses in force of a queue and of an ordering key in it.
select c.queue, c.ordering_key, c.paused_by, c.reason, c.since, c.until, c.automatic
from nightmail_controls as c
where c.queue = :queue and c.ordering_key in :keys and :in_force
order by c.ordering_key, c.automatic;

-- name: ahead
-- How many messages of a queue go before this one.
select count(*) from (:branches limit :limit) as found;

-- name: ahead_in
-- Waiting messages of one level before this one: one branch of `ahead`.
(select m.id from nightmail_messages as m force index (nightmail_claim)
 where m.queue = :queue and m.parked = :parked and m.priority = :level and :within
   and not m.superseded and (m.token is null or m.lease_until <= :now)
 limit :limit)
