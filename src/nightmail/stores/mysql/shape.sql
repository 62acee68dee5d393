-- The actual schema, for `check` to compare with the expected one.

-- name: columns
-- Every column of our tables: its type, whether it may be null, its collation, and whether it has a default.
select c.table_name, c.column_name, c.column_type, c.is_nullable, c.collation_name,
       c.column_default is not null, c.extra
from information_schema.columns as c
where c.table_schema = :database and c.table_name in :tables;

-- name: indexes
-- Every index of our tables, with its columns in order, and how much of each.
select s.table_name, s.index_name, s.non_unique,
       group_concat(if(s.sub_part is null, s.column_name, concat(s.column_name, '(', s.sub_part, ')'))
                    order by s.seq_in_index separator ', ')
from information_schema.statistics as s
where s.table_schema = :database and s.table_name in :tables
group by s.table_name, s.index_name, s.non_unique;

-- name: constraints
-- The names of the constraints of our tables. An account with rights on single tables only sees none, not even the
-- primary keys.
select t.table_name, t.constraint_name
from information_schema.table_constraints as t
where t.table_schema = :database and t.table_name in :tables;

-- name: engines
-- The storage engines of our tables.
select t.table_name, t.engine from information_schema.tables as t
where t.table_schema = :database and t.table_name in :tables;

-- name: meta
-- What every process must agree on.
select look_interval, notice_horizon from nightmail_meta;

-- name: may_read_messages
-- Fails unless we may read messages. These statements change nothing.
select id from nightmail_messages where false;

-- name: may_read_letters
-- The same for dead letters.
select id from nightmail_dead where false;

-- name: may_read_controls
-- The same for pauses.
select queue from nightmail_controls where false;

-- name: may_write_messages
-- The same for changing messages.
update nightmail_messages set id = id where false;

-- name: may_remove_messages
-- The same for removing them.
delete from nightmail_messages where false;

-- name: may_store_messages
-- The same for storing them. Not all columns: the server fills some.
insert into nightmail_messages (queue, priority, due_at, published_at, headers, body)
select queue, priority, due_at, published_at, headers, body from nightmail_messages where false;

-- name: may_bury
-- The same for storing dead letters.
insert into nightmail_dead (message_id, died_at, published_at, attempts, deliveries, priority, queue, reason, headers, body)
select message_id, died_at, published_at, attempts, deliveries, priority, queue, reason, headers, body
from nightmail_dead where false;
