"""The tables of MariaDB and MySQL: see the MySQL store's `schema.sql`."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import BigInteger, Column, Computed, Integer, MetaData, PrimaryKeyConstraint, Table, text
from sqlalchemy.dialects.mysql import BINARY, DATETIME, INTEGER, LONGBLOB, LONGTEXT, TINYINT, VARBINARY

from nightmail.stores import TableNames
from nightmail.tables.build import LEASE, Builder, OutboxTables

_STORAGE: Final = {
    f"{dialect}_{option}": value
    for dialect in ("mysql", "mariadb")
    for option, value in (("engine", "InnoDB"), ("row_format", "dynamic"))
}


def make(metadata: MetaData, names: TableNames) -> OutboxTables:
    """The tables of the MySQL store."""
    build = Builder(metadata, names, **_STORAGE)
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
        _small("priority"),
        _small("superseded", default=0),
        _small("parked", default=0),
        _small("anchor", default=0),
        _moment("due_at", required=True),
        *_lease(),
        _moment("first_attempt_at"),
        _moment("last_attempt_at"),
        _count("attempts", default=0),
        _count("deliveries", default=0),
        _key("head_key"),
        _key("timer_key"),
        _key("queue", required=True),
        _key("timer_id"),
        _key("ordering_key"),
        _queue_and("queue_timer", "timer_key"),
        _queue_and("queue_head", "head_key"),
        *_content(),
        PrimaryKeyConstraint("id"),
        build.index("claim", "queue", "parked", "priority", "due_at", "id"),
        build.index("leased", "queue", "lease_until", "token"),
        build.index("timer", "queue_timer", unique=True),
        build.index("head", "queue_head", unique=True),
        build.index("line", "queue", "ordering_key", "parked", "id", "due_at"),
        build.check("messages_priority", "priority between 0 and 9"),
        build.check("messages_lease", LEASE),
        build.check("messages_dates", _dates("due_at", "published_at")),
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
        *_lease(),
        _count("failures", default=0),
        _count("claims", default=0),
        _count("attempts"),
        _count("deliveries"),
        _small("priority"),
        _key("queue", required=True),
        _key("timer_id"),
        _key("ordering_key"),
        _text("reason", required=True),
        _text("error"),
        *_content(),
        PrimaryKeyConstraint("id"),
        build.index("dead_queue", "queue", "id"),
        build.index("dead_leased", "queue", "lease_until", "token"),
        build.index("dead_due", "queue", "due_at", "id"),
        build.index("dead_died_at", "died_at"),
        build.check("dead_lease", LEASE),
        build.check("dead_given_up", "due_at is not null or token is null"),
    )


def _delivered(build: Builder) -> Table:
    return build.table(
        "delivered",
        _id(),
        Column("message_id", BigInteger, nullable=False),
        _moment("published_at", required=True),
        _moment("due_at", required=True),
        _moment("delivered_at", required=True),
        _count("attempts"),
        _count("deliveries"),
        _small("priority"),
        _key("queue", required=True),
        _key("timer_id"),
        _key("ordering_key"),
        _text("headers", required=True),
        Column("body", LONGBLOB, nullable=False),
        PrimaryKeyConstraint("id"),
        build.index("delivered_at", "delivered_at"),
    )


def _dedup(build: Builder) -> Table:
    return build.table(
        "dedup",
        _key("queue", required=True),
        _key("timer_id", required=True),
        _moment("until", required=True),
        PrimaryKeyConstraint("queue", "timer_id"),
        build.index("dedup_until", "until"),
    )


def _meta(build: Builder) -> Table:
    return build.table(
        "meta",
        _small("only_row", default=1),
        _count("version"),
        Column("identity", BINARY(16), nullable=False),
        _count("look_interval", default=5),
        _count("notice_horizon", default=60),
        PrimaryKeyConstraint("only_row"),
        build.check("meta_only_row", "only_row = 1"),
    )


def _id() -> Column[int]:
    return Column("id", BigInteger, nullable=False, autoincrement=True)


def _small(name: str, *, default: int | None = None) -> Column[int]:
    return Column(name, TINYINT, nullable=False, server_default=_default(default), autoincrement=False)


def _count(name: str, *, default: int | None = None) -> Column[int]:
    return Column(name, Integer, nullable=False, server_default=_default(default))


def _default(value: int | None) -> Any:
    return None if value is None else text(str(value))


def _moment(name: str, *, required: bool = False) -> Column[Any]:
    return Column(name, DATETIME(fsp=6), nullable=not required)


def _key(name: str, *, required: bool = False) -> Column[bytes]:
    return Column(name, VARBINARY(1020), nullable=not required)


def _text(name: str, *, required: bool = False) -> Column[str]:
    return Column(name, LONGTEXT(charset="utf8mb4", collation="utf8mb4_bin"), nullable=not required)


def _lease() -> tuple[Column[Any], ...]:
    return _moment("lease_until"), Column("token", BINARY(16)), _moment("claimed_at")


def _queue_and(name: str, key: str) -> Column[bytes]:
    return Column(name, VARBINARY(2041), Computed(f"concat(queue, x'00', {key})", persisted=True))


def _content() -> tuple[Column[Any], ...]:
    """Headers and body, and before them their sizes."""
    return (
        _size("body_bytes", "body"),
        _size("header_bytes", "headers"),
        _text("headers", required=True),
        Column("body", LONGBLOB, nullable=False),
    )


def _size(name: str, column: str) -> Column[int]:
    return Column(name, INTEGER(unsigned=True), Computed(f"octet_length({column})", persisted=True))


def _dates(*columns: str) -> str:
    """Dates with a year, a month and a day: others cannot be read."""
    return " and ".join(
        f"month({column}) > 0 and day({column}) > 0 and year({column}) > 0" for column in columns
    )
