-- Moving dead letters back to the messages. They are locked first, so every statement sees the same rows. `:begun`: the
-- transaction is open. Else a dead letter would be copied and stay, or be removed though its copy was rolled back.

-- name: lock_letters
-- Lock those of these dead letters that are not leased, skipping locked ones. In id order.
select d.id, d.queue, d.priority, d.timer_id, d.ordering_key from nightmail_dead as d force index (primary)
where d.id in :ids and (d.token is null or d.lease_until <= :now)
for update skip locked;

-- name: owned_already
-- Those of these dead letters whose timer id has an owner in the target queue. Not locked: a timer id that is taken
-- after this makes the insert fail, and then everything is tried again.
select d.id from nightmail_dead as d force index (primary)
straight_join nightmail_messages as m force index (nightmail_timer)
    on m.queue_timer = concat(coalesce(:to, d.queue), x'00', d.timer_id)
where d.id in :ids;

-- name: redrive
-- Make a message of a dead letter. Fails with a duplicate key if the timer id has an owner. One by one, so that each
-- returns its id, and not by INSERT ... SELECT: while that stores an unknown number of rows, MariaDB gives no other
-- session an id. If the transaction is no longer open, the body is null and the insert is refused.
insert into nightmail_messages
    (queue, priority, due_at, published_at, expires_at, timer_id, timer_key, ordering_key, headers, body)
values (:queue, :priority, :now, :now, null, :timer_id, :timer_id, :ordering_key, :headers,
        (select d.body from nightmail_dead as d where d.id = :id and :begun));

-- name: remove_letters
-- Remove dead letters that were just locked. By a join: with a list of ids alone, a small table is scanned in full, and
-- the delete waits for rows that others have locked.
delete d from json_table(:ids, '$[*]' columns (id bigint path '$')) as gone
straight_join nightmail_dead as d force index (primary) on d.id = gone.id
where :begun;
