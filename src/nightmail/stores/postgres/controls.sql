-- Pauses, the workers that reported, and what is known about one message.

-- name: pause
-- Note a pause, in place of the one before it, and ring.
with moment as materialized (
    select now, now at time zone 'UTC' as utc from (select coalesce(:now::timestamptz, clock_timestamp())) as t(now)
), noted as (
    insert into nightmail_controls as c (queue, ordering_key, automatic, since, until, length, paused_by, reason)
    select :queue, :ordering_key, :automatic::boolean, now,
           coalesce(:due_at::timestamptz, (utc + :delay::interval) at time zone 'UTC'),
           case when :automatic then :delay end, :by, :reason::text
    from moment
    on conflict (queue, ordering_key, automatic) do update set
        -- One that had ended, and that no claim has deleted, is another pause.
        since = case when c.automatic or c.until is null or c.until > (select now from moment)
                     then c.since else excluded.since end,
        until = excluded.until, length = excluded.length, paused_by = excluded.paused_by, reason = excluded.reason
)
select pg_notify(:channel, :queue)::text as rung;

-- name: resume
-- Delete a pause, and ring. `ended`: it was in force.
with gone as (
    delete from nightmail_controls as c
    where c.queue = :queue and c.ordering_key = :ordering_key and c.automatic = :automatic::boolean
    returning c.automatic or c.until is null or c.until > coalesce(:now::timestamptz, statement_timestamp()) as in_force
)
select exists (select from gone where in_force) as ended, pg_notify(:channel, :queue)::text as rung;

-- name: pauses
-- The pauses in force, in order.
select c.queue, c.ordering_key, c.automatic, c.since, c.until, c.paused_by, c.reason
from nightmail_controls as c
where (:queue::text is null or c.queue = :queue)
  and (c.automatic or c.until is null or c.until > coalesce(:now::timestamptz, statement_timestamp()))
order by c.queue, c.ordering_key, c.automatic;

-- name: see_to_pauses
-- Delete the pauses of these queues that have ended, and return the queues to be probed: those whose automatic pause is
-- past its end, and that no person has paused. Another claim may be deleting the same pauses: it is not waited for.
with ended as (
    delete from nightmail_controls as c
    where c.ctid = any(array(
        select c.ctid from nightmail_controls as c
        where c.queue = any(:queues::text[]) and not c.automatic
          and c.until <= coalesce(:now::timestamptz, statement_timestamp())
        for update skip locked))
)
select c.queue
from nightmail_controls as c
where c.queue = any(:queues) and c.ordering_key = '' and c.automatic
  and c.until <= coalesce(:now, statement_timestamp())
  and (select p.queue from nightmail_controls as p
       where p.queue = c.queue and p.ordering_key = '' and not p.automatic
         and (p.until is null or p.until > coalesce(:now, statement_timestamp()))
       limit 1) is null;

-- name: renew_pause
-- Renew the automatic pause of a queue for as long as it was last set for, if it is past its end, and return both ends.
-- Of several claims that try, one gets a row, and may take a probe.
update nightmail_controls as c
set until = (coalesce(:now::timestamptz, statement_timestamp()) at time zone 'UTC' + c.length) at time zone 'UTC'
from (
    select c.ctid, c.until from nightmail_controls as c
    where c.queue = :queue and c.ordering_key = '' and c.automatic
      and c.until <= coalesce(:now, statement_timestamp())
    for update skip locked
) as before
where c.queue = :queue and c.ordering_key = '' and c.automatic and c.ctid = before.ctid
returning c.until, before.until as before;

-- name: put_pause_back
-- Undo a renewal, unless the pause was changed since.
update nightmail_controls as c
set until = :before::timestamptz
where c.queue = :queue and c.ordering_key = '' and c.automatic and c.until = :until::timestamptz;

-- name: probe_again
-- A probe that was claimed at :claimed_at did not run: let the next one through, and ring. A pause that was set or
-- renewed after that is left alone.
with opened as (
    update nightmail_controls as c
    set until = coalesce(:now::timestamptz, statement_timestamp())
    where c.queue = :queue and c.ordering_key = '' and c.automatic
      and c.until > coalesce(:now, statement_timestamp())
      and (c.until at time zone 'UTC' - c.length) at time zone 'UTC' <= :claimed_at::timestamptz
)
select pg_notify(:channel, :queue)::text as rung;

-- name: request_stop
-- Note on a running message who wants it stopped.
update nightmail_messages as m
set stop_requested_by = :by
where m.id = :id::bigint and m.lease_until > coalesce(:now::timestamptz, statement_timestamp())
returning m.id;

-- name: report
-- Note what a worker says about itself, and forget those that were not seen for :forgotten_after. Other workers may be
-- forgetting the same ones: they are not waited for. The queues of those, and the queues that this worker no longer
-- consumes, keep a record of who consumed them last, for :kept_for. Where there is none to write, none is read.
with moment as materialized (
    select coalesce(:now::timestamptz, clock_timestamp()) as now
), forgotten as (
    delete from nightmail_workers as w
    where w.id = any(array(
        select w.id from nightmail_workers as w
        where w.id <> :id and w.seen_at < (select now from moment) - :forgotten_after::interval
        for update skip locked))
    returning w.queues, w.host, w.pid, w.seen_at, '[]' as still
), leaving as materialized (
    select distinct on (q.queue) q.queue, l.seen_at, l.host, l.pid
    from (
        select f.queues, f.host, f.pid, f.seen_at, f.still from forgotten as f
        union all
        select w.queues, w.host, w.pid, w.seen_at, :queues::text from nightmail_workers as w
        where w.id = :id and w.queues <> :queues
    ) as l
    cross join lateral json_array_elements_text(l.queues::json) as q(queue)
    where l.seen_at >= (select now from moment) - :kept_for::interval
      and q.queue not in (select s.queue from json_array_elements_text(l.still::json) as s(queue))
    order by q.queue, l.seen_at desc
), noted as (
    insert into nightmail_consumers as c (queue, seen_at, host, pid)
    select l.queue, l.seen_at, l.host, l.pid from leaving as l order by l.queue
    on conflict (queue) do update set seen_at = excluded.seen_at, host = excluded.host, pid = excluded.pid
    where c.seen_at < excluded.seen_at
), outdated as (
    delete from nightmail_consumers as c
    where exists (select from leaving)
      and c.queue = any(array(
        select c.queue from nightmail_consumers as c
        where c.seen_at < (select now from moment) - :kept_for and c.queue not in (select l.queue from leaving as l)
        for update skip locked))
)
insert into nightmail_workers as w (id, host, pid, version, queues, state, started_at, seen_at)
select :id, :host, :pid::integer, :version, :queues, :state, now, now from moment
on conflict (id) do update set
    host = excluded.host, pid = excluded.pid, version = excluded.version, queues = excluded.queues,
    state = excluded.state, seen_at = excluded.seen_at;

-- name: sign_off
-- Forget a worker. Its queues keep a record of it, as in `report`.
with moment as materialized (
    select coalesce(:now::timestamptz, clock_timestamp()) as now
), gone as (
    delete from nightmail_workers where id = :id returning queues, host, pid, seen_at
), leaving as materialized (
    select distinct q.queue, g.seen_at, g.host, g.pid
    from gone as g cross join lateral json_array_elements_text(g.queues::json) as q(queue)
    where g.seen_at >= (select now from moment) - :kept_for::interval
), noted as (
    insert into nightmail_consumers as c (queue, seen_at, host, pid)
    select l.queue, l.seen_at, l.host, l.pid from leaving as l order by l.queue
    on conflict (queue) do update set seen_at = excluded.seen_at, host = excluded.host, pid = excluded.pid
    where c.seen_at < excluded.seen_at
)
delete from nightmail_consumers as c
where c.queue = any(array(
    select c.queue from nightmail_consumers as c
    where c.seen_at < (select now from moment) - :kept_for and c.queue not in (select l.queue from leaving as l)
    for update skip locked));

-- name: workers
-- Those seen within :forgotten_after.
select w.id, w.host, w.pid, w.version, w.queues, w.state, w.started_at, w.seen_at
from nightmail_workers as w
where w.seen_at >= coalesce(:now::timestamptz, statement_timestamp()) - :forgotten_after::interval
order by w.host collate "C", w.pid, w.id;

-- name: last_consumers
-- Who consumed each queue last within :kept_for: of those that no longer do, and of the workers that reported.
select distinct on (found.queue) found.queue, found.host, found.pid, found.seen_at
from (
    select c.queue, c.host, c.pid, c.seen_at from nightmail_consumers as c
    union all
    select q.queue, w.host, w.pid, w.seen_at
    from nightmail_workers as w cross join lateral json_array_elements_text(w.queues::json) as q(queue)
) as found
where found.seen_at >= coalesce(:now::timestamptz, statement_timestamp()) - :kept_for::interval
order by found.queue, found.seen_at desc;

-- name: leases
-- Running messages, the longest running first. No index has leases: that would make every claim and every renewal
-- write to it. Running messages are among the first of their level by due time, so the first :most of each level are
-- read, and no others.
with recursive queues(queue) as (
    select (
        select m.queue from nightmail_messages as m
        where m.priority >= 0 and (m.ordering_key is null or m.head_key is not null)
        order by m.queue limit 1)
    union all
    select (
        select m.queue from nightmail_messages as m
        where m.priority >= 0 and (m.ordering_key is null or m.head_key is not null)
          and m.queue > queues.queue
        order by m.queue limit 1)
    from queues
    where queues.queue is not null
)
select found.id, found.queue, found.token, found.attempts, found.deliveries, found.claimed_at, found.lease_until
from queues cross join generate_series(0, 9) as l(level),
lateral (
    select m.id, m.queue, m.token, m.attempts, m.deliveries, m.claimed_at, m.lease_until
    from nightmail_messages as m
    where m.priority >= 0 and (m.ordering_key is null or m.head_key is not null)
      and m.queue = queues.queue and m.priority = l.level
      and m.due_at <= coalesce(:now::timestamptz, statement_timestamp())
    order by m.due_at, m.id
    limit :most::integer
) as found
where found.lease_until > coalesce(:now, statement_timestamp())
order by found.claimed_at, found.id
limit :limit::integer;

-- name: facts
-- A message and, behind it, the one that goes before it: the holder of its ordering key, or else the first that is due.
with moment as materialized (
    select coalesce(:now::timestamptz, statement_timestamp()) as now
), asked as materialized (
    select m.id, m.queue, m.ordering_key, m.timer_id, m.superseded, m.due_at,
           coalesce(m.lease_until > moment.now, false) as running
    from nightmail_messages as m, moment
    where m.id = :id::bigint
), before as materialized (
    select coalesce(
        (select h.id from nightmail_messages as h
         where h.queue = asked.queue and h.head_key = asked.ordering_key limit 1),
        (select s.id from nightmail_messages as s
         where s.queue = asked.queue and s.ordering_key = asked.ordering_key and s.due_at <= (select now from moment)
         order by s.id + 0 limit 1)) as id
    from asked
    where not asked.running
)
select moment.now, m.id, m.queue, m.timer_id, m.ordering_key, m.priority, m.due_at, m.published_at, m.expires_at,
       m.attempts, m.body, m.headers, m.deliveries, m.superseded, m.claimed_at, m.lease_until,
       coalesce(m.lease_until > moment.now, false) as running, m.first_attempt_at, m.last_attempt_at,
       m.last_error, m.token, m.stop_requested_by,
       (select o.id from nightmail_messages as o, asked
        where asked.superseded and o.queue = asked.queue and o.timer_key = asked.timer_id limit 1) as superseded_by,
       (select count(*)
        from (
            select ahead.id
            from asked, generate_series(0, 9) as l(level),
            lateral (
                select free.id
                from (
                    select m.id from nightmail_messages as m
                    where m.priority >= 0 and (m.ordering_key is null or m.head_key is not null)
                      and m.queue = asked.queue and m.priority = l.level
                      and (m.due_at, m.id) < (asked.due_at, asked.id) and not m.superseded
                      and (m.token is null or m.lease_until <= (select now from moment))
                    order by m.due_at, m.id
                    limit :most::integer
                ) as free
                union all
                select waiting.id
                from (
                    select m.id from nightmail_messages as m
                    where m.priority >= 0 and m.ordering_key is not null and m.head_key is null
                      and m.queue = asked.queue and m.priority = l.level
                      and (m.due_at, m.id) < (asked.due_at, asked.id) and not m.superseded
                      and (m.token is null or m.lease_until <= (select now from moment))
                    order by m.due_at, m.id
                    limit :most::integer
                ) as waiting
            ) as ahead
            where not asked.running
            limit :most::integer
        ) as counted) as ahead
from nightmail_messages as m, moment
where m.id = any(array(select asked.id from asked union all select before.id from before))
order by m.id <> :id;

-- name: gone
-- What became of a message that is gone: its newest dead letter, without the body, and when it was delivered.
select moment.now, delivered.delivered_at, letter.*
from (select coalesce(:now::timestamptz, statement_timestamp()) as now) as moment
left join lateral (
    select v.delivered_at from nightmail_delivered as v where v.message_id = :id::bigint order by v.id desc limit 1
) as delivered on true
left join lateral (
    select d.id, d.message_id, d.queue, d.reason, d.error, d.timer_id, d.ordering_key, d.priority, d.attempts,
           d.deliveries, d.published_at, d.first_attempt_at, d.last_attempt_at, d.died_at, ''::bytea as body, d.headers
    from nightmail_dead as d where d.message_id = :id order by d.id desc limit 1
) as letter on true;

-- name: unlocked
-- A row if no open transaction has locked the message. On its own: the lock that this takes ends with the statement.
select m.id from nightmail_messages as m where m.id = :id::bigint for update skip locked;
