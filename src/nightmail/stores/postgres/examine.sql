-- What can be wrong with a server, or with how it is set up. Nothing here locks a row or reads a message.

-- name: dead_rows
-- Rows of our tables that are alive and dead, when they were last vacuumed, and whether autovacuum looks after them.
select s.relname::text as name, s.n_live_tup as live, s.n_dead_tup as dead,
       greatest(s.last_vacuum, s.last_autovacuum) as vacuumed_at,
       current_setting('autovacuum') = 'on' and not exists (
           select from unnest(c.reloptions) as option where option ~ '^autovacuum_enabled=(false|off|no|0)$'
       ) as vacuums
from pg_stat_user_tables as s
join pg_class as c on c.oid = s.relid
where s.relid in (select to_regclass(named) from unnest(:tables::text[]) as named)
order by s.n_dead_tup desc, s.relname;

-- name: oldest_snapshot
-- The transaction of this database that has been open for longest and keeps dead rows from being removed.
select found.* from (
    select 'session ' || a.pid as who, a.application_name as application, a.usename::text as account,
           a.state, extract(epoch from clock_timestamp() - a.xact_start)::float8 as seconds,
           format('select pg_terminate_backend(%s)', a.pid) as remedy
    from pg_stat_activity as a
    where a.datname = current_database() and a.pid <> pg_backend_pid() and a.backend_type = 'client backend'
      and a.xact_start is not null and (a.backend_xmin is not null or a.backend_xid is not null)
    union all
    select 'prepared transaction ' || p.gid, '', p.owner::text, 'prepared',
           extract(epoch from clock_timestamp() - p.prepared)::float8,
           format('rollback prepared %L', p.gid)
    from pg_prepared_xacts as p
    where p.database = current_database()
) as found
order by found.seconds desc
limit 1;

-- name: replication_slots
-- What each replication slot keeps the whole server from removing: log, dead rows of tables, and of system tables.
select s.slot_name::text as name, s.slot_type as kind, s.active,
       coalesce(pg_wal_lsn_diff(
           case when pg_is_in_recovery() then pg_last_wal_replay_lsn() else pg_current_wal_lsn() end, s.restart_lsn
       ), 0)::bigint as bytes,
       coalesce(age(s.xmin), 0) as transactions,
       coalesce(age(s.catalog_xmin), 0) as catalog_transactions,
       format('select pg_drop_replication_slot(%L)', s.slot_name) as remedy
from pg_replication_slots as s
order by s.slot_name;

-- name: notify_queue
-- How full the queue of notifications is: 0 to 1. It belongs to the whole server.
select pg_notification_queue_usage() as used;

-- name: settings
-- What a new session gets: our own connections set some of these for themselves.
select name, reset_val as value from pg_settings
where name in ('fsync', 'full_page_writes', 'synchronous_commit', 'default_transaction_isolation');

-- name: standbys
-- Who copies this server's log, and for how many of them a commit waits.
select count(*) as all_of_them, count(*) filter (where r.sync_state in ('sync', 'quorum')) as waited_for,
       string_agg(r.application_name, ', ' order by r.application_name) as names
from pg_stat_replication as r
where r.sync_state is not null;

-- name: has_tables
-- Whether there are tables, and this account may read which version they are of.
select coalesce(has_table_privilege(to_regclass(:meta::text), 'select'), false) as found;

-- name: tables_version
-- Which version the tables are of, and for which code they serve.
select m.version, m.serves from nightmail_meta as m;

-- name: writable
-- Whether this server can be written to, and if not, whether that is because it is a standby.
select current_setting('transaction_read_only') = 'off' as writable, pg_is_in_recovery() as standby;

-- name: connections
-- How many connections there are, how many of them are not Nightmail's, and how many there may be for ordinary accounts.
select count(*) as used,
       count(*) filter (where a.application_name not like 'nightmail %') as others,
       current_setting('max_connections')::integer - current_setting('superuser_reserved_connections')::integer
           as most
from pg_stat_activity as a
where a.backend_type = 'client backend';
