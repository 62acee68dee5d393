-- What can be wrong with a server, or with how it is set up. Nothing here locks a row or reads a message.

-- name: settings
-- The settings of the server that decide about loss, isolation and connections. No server has all of them.
show global variables where variable_name in (
    'innodb_flush_log_at_trx_commit', 'sync_binlog', 'log_bin', 'tx_isolation', 'transaction_isolation',
    'max_connections', 'rpl_semi_sync_master_enabled', 'rpl_semi_sync_source_enabled', 'read_only'
);

-- name: tables_version
-- Which version the tables are of, and for which code they serve.
select m.version, m.serves from nightmail_meta as m;

-- name: connections
-- How many connections there are.
show global status where variable_name = 'Threads_connected';

-- name: replicas
-- How many replicas read this server's log.
select count(*) from information_schema.processlist where command like 'Binlog Dump%';

-- name: long_transaction
-- The transaction that has been open for longest. Its start is in the server's own time zone, whatever ours is.
select t.trx_mysql_thread_id, p.user, p.command, t.trx_rows_locked,
       timestampdiff(second, t.trx_started, convert_tz(utc_timestamp(), '+00:00', 'SYSTEM'))
from information_schema.innodb_trx as t
left join information_schema.processlist as p on p.id = t.trx_mysql_thread_id
where t.trx_mysql_thread_id not in (0, connection_id())
order by t.trx_started
limit 1;
