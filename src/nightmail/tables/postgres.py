"""The Postgres tables: see the Postgres store's `schema.sql`."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Identity,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    Text,
    text,
)
from sqlalchemy.dialects.postgresql import BYTEA, INTERVAL, TIMESTAMP, UUID

from nightmail.stores import TableNames
from nightmail.tables.build import LEASE, Builder, OutboxTables

# Half of each page stays free, so that a claim updates its rows in place; vacuum comes often and never truncates.
_MESSAGES_STORAGE: Final[dict[str, Any]] = {
    "fillfactor": 50,
    "autovacuum_vacuum_scale_factor": 0.02,
    "autovacuum_vacuum_insert_scale_factor": 0.05,
    "autovacuum_analyze_scale_factor": 0.05,
    "autovacuum_vacuum_cost_delay": 0,
    "vacuum_truncate": "false",
    "toast.autovacuum_vacuum_scale_factor": 0.02,
    "toast.autovacuum_vacuum_cost_delay": 0,
    "toast.vacuum_truncate": "false",
}


def _times(*columns: str) -> str:
    """The years 1 to 9999, which every client can read. Infinity cannot be computed with."""
    return " and ".join(
        f"{column} between to_timestamp(-62135510400) and to_timestamp(253402214400)" for column in columns
    )


def make(metadata: MetaData, names: TableNames) -> OutboxTables:
    """The tables of the Postgres store."""
    build = Builder(metadata, names)
    return OutboxTables(
        messages=_messages(build),
        dead=_dead(build),
        delivered=_delivered(build),
        dedup=_dedup(build),
        meta=_meta(build),
    )


def _messages(build: Builder) -> Table:
    return build.table(
        "messages",
        _id(),
        _moment("published_at", required=True),
        _moment("expires_at"),
        Column("priority", SmallInteger, nullable=False),
        Column("superseded", Boolean, nullable=False, server_default=text("false")),
        _moment("due_at", required=True),
        _moment("lease_until"),
        Column("token", UUID),
        _moment("claimed_at"),
        _moment("first_attempt_at"),
        _moment("last_attempt_at"),
        Column("attempts", Integer, nullable=False, server_default=text("0")),
        Column("deliveries", Integer, nullable=False, server_default=text("0")),
        _key("head_key"),
        _key("timer_key"),
        _key("queue", required=True),
        _key("timer_id"),
        _key("ordering_key"),
        Column("headers", Text, nullable=False),
        Column("body", BYTEA, nullable=False),
        PrimaryKeyConstraint("id", name=build.name("messages_pkey")),
        build.check("messages_priority", "priority between 0 and 9"),
        build.check("messages_lease", LEASE),
        build.check("messages_counters", "attempts >= 0 and deliveries >= 0"),
        build.check(
            "messages_times",
            _times(
                "due_at",
                "expires_at",
                "published_at",
                "lease_until",
                "claimed_at",
                "first_attempt_at",
                "last_attempt_at",
            ),
        ),
        build.index(
            "claim",
            "queue",
            "priority",
            "due_at",
            "id",
            where="priority >= 0 and (ordering_key is null or head_key is not null)",
        ),
        build.index(
            "waiting",
            "queue",
            "priority",
            "due_at",
            "id",
            where="priority >= 0 and ordering_key is not null and head_key is null",
        ),
        build.index("timer", "queue", "timer_key", unique=True, where="timer_key is not null"),
        build.index("head", "queue", "head_key", unique=True, where="head_key is not null"),
        build.index("line", "queue", "ordering_key", text("(id + 0)"), where="ordering_key is not null"),
        postgresql_with=_MESSAGES_STORAGE,
    )


def _dead(build: Builder) -> Table:
    return build.table(
        "dead",
        _id(),
        Column("message_id", BigInteger, nullable=False),
        _moment("died_at", required=True),
        _moment("published_at", required=True),
        _moment("first_attempt_at"),
        _moment("last_attempt_at"),
        _moment("due_at"),
        _moment("lease_until"),
        Column("token", UUID),
        _moment("claimed_at"),
        Column("failures", Integer, nullable=False, server_default=text("0")),
        Column("claims", Integer, nullable=False, server_default=text("0")),
        Column("attempts", Integer, nullable=False),
        Column("deliveries", Integer, nullable=False),
        Column("priority", SmallInteger, nullable=False),
        _key("queue", required=True),
        _key("timer_id"),
        _key("ordering_key"),
        Column("reason", Text, nullable=False),
        Column("error", Text),
        Column("headers", Text, nullable=False),
        Column("body", BYTEA, nullable=False),
        PrimaryKeyConstraint("id", name=build.name("dead_pkey")),
        build.check("dead_lease", LEASE),
        build.check("dead_counters", "failures >= 0 and claims >= 0"),
        build.check(
            "dead_times",
            _times(
                "died_at",
                "due_at",
                "published_at",
                "lease_until",
                "claimed_at",
                "first_attempt_at",
                "last_attempt_at",
            ),
        ),
        build.index("dead_queue", "queue", "id"),
        build.index("dead_due", "queue", "due_at", "id", where="due_at is not null"),
        build.index("dead_at", "died_at"),
    )


def _delivered(build: Builder) -> Table:
    return build.table(
        "delivered",
        _id(),
        Column("message_id", BigInteger, nullable=False),
        _moment("published_at", required=True),
        _moment("due_at", required=True),
        _moment("delivered_at", required=True),
        Column("attempts", Integer, nullable=False),
        Column("deliveries", Integer, nullable=False),
        Column("priority", SmallInteger, nullable=False),
        _key("queue", required=True),
        _key("timer_id"),
        _key("ordering_key"),
        Column("headers", Text, nullable=False),
        Column("body", BYTEA, nullable=False),
        PrimaryKeyConstraint("id", name=build.name("delivered_pkey")),
        build.index("delivered_at", "delivered_at"),
    )


def _dedup(build: Builder) -> Table:
    return build.table(
        "dedup",
        _key("queue", required=True),
        _key("timer_id", required=True),
        _moment("until", required=True),
        PrimaryKeyConstraint("queue", "timer_id", name=build.name("dedup_pkey")),
        build.index("dedup_until", "until"),
    )


def _meta(build: Builder) -> Table:
    return build.table(
        "meta",
        Column("only_row", Boolean, nullable=False, server_default=text("true")),
        Column("version", Integer, nullable=False),
        Column("identity", UUID, nullable=False, server_default=text("gen_random_uuid()")),
        Column("look_interval", INTERVAL, nullable=False, server_default=text("interval '5 seconds'")),
        Column("notice_horizon", INTERVAL, nullable=False, server_default=text("interval '60 seconds'")),
        PrimaryKeyConstraint("only_row", name=build.name("meta_pkey")),
        build.check("meta_only_row_check", "only_row"),
    )


def _id() -> Column[int]:
    return Column("id", BigInteger, Identity(always=True), nullable=False)


def _moment(name: str, *, required: bool = False) -> Column[Any]:
    return Column(name, TIMESTAMP(timezone=True), nullable=not required)


def _key(name: str, *, required: bool = False) -> Column[str]:
    return Column(name, Text(collation="C"), nullable=not required)
