-- Moving dead letters back among the messages. They are locked first, so each statement finds them as the one before did.
-- `:begun`: the transaction is open. Else a letter would be copied and stay, or be removed though its copy was undone.

-- name: lock_letters
-- Those of these letters that nobody holds and that nobody else has locked, locked. In the order of their ids.
select d.id, d.queue, d.priority, d.timer_id, d.ordering_key from nightmail_dead as d force index (primary)
where d.id in :ids and (d.token is null or d.lease_until <= :now)
for update skip locked;

-- name: named_already
-- Those of these letters whose name is borne by a message of the queue to which they would go. Not locked: a name that is
-- taken after this was asked is found out by inserting, and then everything is asked again.
select d.id from nightmail_dead as d force index (primary)
straight_join nightmail_messages as m force index (nightmail_timer)
    on m.queue_timer = concat(coalesce(:to, d.queue), x'00', d.timer_id)
where d.id in :ids;

-- name: revive
-- Make a message of a letter. Fails with a duplicate key if somebody bears the name. One by one, so that each tells its
-- id, and not from a select: while rows of unknown number are stored, MariaDB gives nobody else an id. Without a body,
-- because the transaction is not open any more, it is refused.
insert into nightmail_messages
    (queue, priority, due_at, published_at, expires_at, timer_id, timer_key, ordering_key, headers, body)
values (:queue, :priority, :now, :now, null, :timer_id, :timer_id, :ordering_key, :headers,
        (select d.body from nightmail_dead as d where d.id = :id and :begun));

-- name: remove_letters
-- Remove letters that were just locked. By a join: of a small table, a list of ids alone would have every row read, and
-- the delete would wait for rows of others.
delete d from json_table(:ids, '$[*]' columns (id bigint path '$')) as gone
straight_join nightmail_dead as d force index (primary) on d.id = gone.id
where :begun;
