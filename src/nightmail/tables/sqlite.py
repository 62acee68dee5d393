"""The SQLite tables: see the SQLite store's `schema.sql`, whose checks are repeated here verbatim.

Triggers are not here: SQLAlchemy cannot describe them. The store adds them when it is checked for the first time.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    CheckConstraint,
    Column,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    text,
)

from nightmail.stores import TableNames
from nightmail.tables.build import Builder, OutboxTables

_INTEGER: Final = "typeof({0}) = 'integer'"
_COUNT: Final = f"{_INTEGER} AND {{0}} BETWEEN 0 AND 2147483647"
_PRIORITY: Final = f"{_INTEGER} AND {{0}} BETWEEN 0 AND 9"
_FLAG: Final = "{0} IN (0, 1)"
# The years 1 to 9999.
_MOMENT: Final = f"{_INTEGER} AND {{0}} BETWEEN -62135596800000000 AND 253402300799999999"
_MOMENT_OR_NULL: Final = f"{{0}} IS NULL OR ({_MOMENT})"
_TEXT: Final = "typeof({0}) = 'text'"
_TEXT_OR_NULL: Final = f"{{0}} IS NULL OR {_TEXT}"
_TOKEN_OR_NULL: Final = "{0} IS NULL OR (typeof({0}) = 'blob' AND length({0}) = 16)"  # noqa: S105 - a condition
_LEASE: Final = "(token IS NULL) = (lease_until IS NULL) AND (token IS NULL) = (claimed_at IS NULL)"

_MESSAGES: Final = {
    "queue": _TEXT,
    "follows": _FLAG,
    "priority": _PRIORITY,
    "due_at": _MOMENT,
    "lease_until": _MOMENT_OR_NULL,
    "token": _TOKEN_OR_NULL,
    "claimed_at": _MOMENT_OR_NULL,
    "superseded": _FLAG,
    "attempts": _COUNT,
    "deliveries": _COUNT,
    "published_at": _MOMENT,
    "expires_at": _MOMENT_OR_NULL,
    "first_attempt_at": _MOMENT_OR_NULL,
    "last_attempt_at": _MOMENT_OR_NULL,
    "timer_id": _TEXT_OR_NULL,
    "timer_key": "{0} IS NULL OR {0} IS timer_id",
    "ordering_key": _TEXT_OR_NULL,
    "head_key": "{0} IS NULL OR {0} IS ordering_key",
    "lease": _LEASE,
}
_DEAD: Final = {
    "message_id": _INTEGER,
    "queue": _TEXT,
    "priority": _PRIORITY,
    "due_at": _MOMENT_OR_NULL,
    "lease_until": _MOMENT_OR_NULL,
    "token": _TOKEN_OR_NULL,
    "claimed_at": _MOMENT_OR_NULL,
    "failures": _COUNT,
    "claims": _COUNT,
    "attempts": _COUNT,
    "deliveries": _COUNT,
    "published_at": _MOMENT,
    "first_attempt_at": _MOMENT_OR_NULL,
    "last_attempt_at": _MOMENT_OR_NULL,
    "died_at": _MOMENT,
    "timer_id": _TEXT_OR_NULL,
    "ordering_key": _TEXT_OR_NULL,
    "reason": _TEXT,
    "error": _TEXT_OR_NULL,
    "lease": _LEASE,
    "given_up": "token IS NULL OR due_at IS NOT NULL",
}


def make(metadata: MetaData, names: TableNames) -> OutboxTables:
    """The tables of the SQLite store."""
    if names.schema is not None:
        raise ValueError(f"SQLite has no schemas: leave out {names.schema!r}")
    build = Builder(metadata, names)
    return OutboxTables(
        messages=_messages(build),
        dead=_dead(build),
        delivered=_delivered(build),
        dedup=_dedup(build),
        meta=_meta(build),
        bells=_bells(build),
    )


def _messages(build: Builder) -> Table:
    return build.table(
        "messages",
        _integer("id", required=True),
        _text("queue", required=True),
        _integer("follows", default=0),
        _integer("priority", required=True),
        _integer("due_at", required=True),
        _integer("lease_until"),
        Column("token", LargeBinary),
        _integer("claimed_at"),
        _integer("superseded", default=0),
        _integer("attempts", default=0),
        _integer("deliveries", default=0),
        _integer("published_at", required=True),
        _integer("expires_at"),
        _integer("first_attempt_at"),
        _integer("last_attempt_at"),
        _text("timer_id"),
        _text("timer_key"),
        _text("ordering_key"),
        _text("head_key"),
        _text("headers", required=True),
        Column("body", LargeBinary, nullable=False),
        PrimaryKeyConstraint("id"),
        *_checks(build, "messages", _MESSAGES),
        build.index("messages_due", "queue", "follows", "priority", "due_at", "id"),
        build.index("messages_leased", "queue", "lease_until", where="lease_until IS NOT NULL"),
        build.index("messages_timer", "queue", "timer_key", unique=True, where="timer_key IS NOT NULL"),
        build.index("messages_head", "queue", "head_key", unique=True, where="head_key IS NOT NULL"),
        build.index("messages_line", "queue", "ordering_key", "id", where="ordering_key IS NOT NULL"),
        build.index(
            "messages_front",
            "queue",
            "ordering_key",
            "due_at",
            "id",
            where="ordering_key IS NOT NULL AND follows = 0",
        ),
        sqlite_autoincrement=True,
    )


def _dead(build: Builder) -> Table:
    return build.table(
        "dead",
        _integer("id", required=True),
        _integer("message_id", required=True),
        _text("queue", required=True),
        _integer("priority", required=True),
        _integer("due_at"),
        _integer("lease_until"),
        Column("token", LargeBinary),
        _integer("claimed_at"),
        _integer("failures", default=0),
        _integer("claims", default=0),
        _integer("attempts", required=True),
        _integer("deliveries", required=True),
        _integer("published_at", required=True),
        _integer("first_attempt_at"),
        _integer("last_attempt_at"),
        _integer("died_at", required=True),
        _text("timer_id"),
        _text("ordering_key"),
        _text("reason", required=True),
        _text("error"),
        _text("headers", required=True),
        Column("body", LargeBinary, nullable=False),
        PrimaryKeyConstraint("id"),
        *_checks(build, "dead", _DEAD),
        build.index("dead_queue", "queue", "id"),
        build.index("dead_due", "queue", "due_at", "id", where="due_at IS NOT NULL"),
        build.index("dead_leased", "queue", "lease_until", where="lease_until IS NOT NULL"),
        build.index("dead_age", "died_at"),
        sqlite_autoincrement=True,
    )


def _delivered(build: Builder) -> Table:
    return build.table(
        "delivered",
        _integer("id", required=True),
        _integer("message_id", required=True),
        _text("queue", required=True),
        _integer("priority", required=True),
        _integer("attempts", required=True),
        _integer("deliveries", required=True),
        _integer("published_at", required=True),
        _integer("due_at", required=True),
        _integer("delivered_at", required=True),
        _text("timer_id"),
        _text("ordering_key"),
        _text("headers", required=True),
        Column("body", LargeBinary, nullable=False),
        PrimaryKeyConstraint("id"),
        build.index("delivered_age", "delivered_at"),
        sqlite_autoincrement=True,
    )


def _dedup(build: Builder) -> Table:
    return build.table(
        "dedup",
        _text("queue", required=True),
        _text("timer_id", required=True),
        _integer("until", required=True),
        PrimaryKeyConstraint("queue", "timer_id"),
        build.index("dedup_until", "until"),
        sqlite_with_rowid=False,
    )


def _bells(build: Builder) -> Table:
    return build.table(
        "bells",
        _text("queue", required=True),
        _integer("rings", required=True),
        PrimaryKeyConstraint("queue"),
        sqlite_with_rowid=False,
    )


def _meta(build: Builder) -> Table:
    return build.table(
        "meta",
        _integer("only", required=True),
        _integer("version", required=True),
        _text("identity", required=True),
        _integer("look_interval", required=True),
        _integer("notice_horizon", required=True),
        PrimaryKeyConstraint("only"),
        build.check("meta_only", "only = 1"),
    )


def _integer(name: str, *, required: bool = False, default: int | None = None) -> Column[int]:
    """A column with a default is required."""
    if default is not None:
        return Column(name, Integer, nullable=False, server_default=text(str(default)))
    return Column(name, Integer, nullable=not required)


def _text(name: str, *, required: bool = False) -> Column[str]:
    return Column(name, Text, nullable=not required)


def _checks(build: Builder, table: str, conditions: dict[str, str]) -> list[CheckConstraint]:
    # On the table, not on a column: Alembic leaves out column checks.
    return [build.check(f"{table}_{name}", condition.format(name)) for name, condition in conditions.items()]
