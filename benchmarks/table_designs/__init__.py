"""The numbers behind docs/adr/0001-table-design.md: how the Postgres table of messages is best laid out.

    python -m benchmarks.table_designs --quick      under a minute: do all parts still run?
    python -m benchmarks.table_designs              a few minutes
    python -m benchmarks.table_designs --messages 500000 --future 1000000 --rounds 3     as in the ADR

    designs     the tables and statements that are compared
    load        a connection, the messages put into a table, and what the server counted meanwhile
    cost        one message's way through each table: time, WAL, HOT updates, size
    snapshot    the same while another transaction holds a snapshot, so that nothing dead can be removed
    plans       what the planner makes of the statements when its statistics are wrong
    claiming    the claim statement on its own: what it locks, what it looks at, what it costs
    report      medians, ranges, tables

Each design has a schema of its own, so that every statement can say `messages`. Times are the median batch's, since
the machine may be shared; WAL bytes, buffers and HOT updates are counted by the server and hardly vary.
"""
