"""The numbers behind docs/adr/0001-table-design.md: how the Postgres table of messages is best laid out.

    python -m benchmarks.table_designs --quick      under a minute: do all parts still run?
    python -m benchmarks.table_designs              a few minutes
    python -m benchmarks.table_designs --messages 500000 --future 1000000     as for the ADR; an hour on a busy machine

The designs are in a.sql, b.sql and c.sql: a table and its statements each. Every design has a schema of its own, so
that a statement can say `messages` wherever it runs.

    designs     which file, how full a page is packed, whether claims keep a mark
    load        a table full of messages, a worker that drains it, and what the server counted meanwhile
    explain     the plan of a statement, and what running it touched
    report      medians, ranges, tables

    claiming    the claim statement by itself: what it locks, what it looks at, what it costs when there is little
    packing     fillfactor, body size, and the order of the columns
    plans       what the planner makes of the statements when its statistics are wrong
    vacuum      what dead rows cost, and what removing them costs
    snapshot    draining while another transaction holds a snapshot, so that nothing dead can be removed
    cost        one message's way through each table: time, WAL, HOT updates, size

Times by the clock are those of the median batch, since the machine may be shared. The server's processor time, WAL
bytes, buffers and HOT updates hardly vary.
"""
