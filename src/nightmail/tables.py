"""The tables as SQLAlchemy knows them, for those who make theirs with Alembic.

`nightmail migrate` makes the same ones from the Postgres store's own file, and a test holds the two together. An
embedded store makes its tables by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Identity,
    Index,
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

IncludeObject: TypeAlias = Callable[[Any, str | None, Any, bool, Any], bool]
"""What Alembic asks about each table, column, index and constraint: whether to compare it."""

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
# A lease is there as a whole or not at all.
_LEASE: Final = "(token is null) = (lease_until is null) and (token is null) = (claimed_at is null)"


def _times(*columns: str) -> str:
    """The years 1 to 9999, which every client can read. Infinity cannot be reckoned with."""
    return " and ".join(
        f"{column} between to_timestamp(-62135510400) and to_timestamp(253402214400)" for column in columns
    )


class OutboxTables(NamedTuple):
    """Our tables in a `MetaData`."""

    messages: Table
    dead: Table
    delivered: Table
    dedup: Table
    meta: Table


def make_outbox_tables(metadata: MetaData, tables: str | None = None) -> OutboxTables:
    """Add our Postgres tables to `metadata`, so that Alembic makes them with yours.

    `tables` is what the broker is given: a prefix, or `schema.prefix`.
    """
    return _Maker(metadata, TableNames.parse(tables)).all()


def skip_outbox_tables(
    tables: str | None = None, *, include_object: IncludeObject | None = None
) -> IncludeObject:
    """An `include_object` for Alembic's `env.py` that leaves our tables to `nightmail migrate`.

    Without it, autogenerate proposes to drop them. `include_object` is your own, asked about everything else.
    """
    names = TableNames.parse(tables)
    ours = {f"{names.prefix}_{table}" for table in (*OutboxTables._fields, "bells")}

    def include(thing: Any, name: str | None, kind: str, reflected: bool, compare_to: Any) -> bool:
        table = thing if kind == "table" else getattr(thing, "table", None)
        if table is not None and table.name in ours and table.schema in (names.schema, None):
            return False
        return include_object is None or include_object(thing, name, kind, reflected, compare_to)

    return include


class _Maker:
    def __init__(self, metadata: MetaData, names: TableNames) -> None:
        self._metadata = metadata
        self._names = names

    def all(self) -> OutboxTables:
        return OutboxTables(
            messages=self._messages(),
            dead=self._dead(),
            delivered=self._delivered(),
            dedup=self._dedup(),
            meta=self._meta(),
        )

    def _name(self, name: str) -> str:
        return f"{self._names.prefix}_{name}"

    def _table(self, name: str, *parts: Any, **options: Any) -> Table:
        return Table(self._name(name), self._metadata, *parts, schema=self._names.schema, **options)

    def _index(self, name: str, *columns: Any, unique: bool = False, where: str | None = None) -> Index:
        predicate: dict[str, Any] = {} if where is None else {"postgresql_where": text(where)}
        return Index(self._name(name), *columns, unique=unique, **predicate)

    def _messages(self) -> Table:
        return self._table(
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
            PrimaryKeyConstraint("id", name=self._name("messages_pkey")),
            CheckConstraint("priority between 0 and 9", name=self._name("messages_priority")),
            CheckConstraint(_LEASE, name=self._name("messages_lease")),
            CheckConstraint("attempts >= 0 and deliveries >= 0", name=self._name("messages_counters")),
            CheckConstraint(
                _times(
                    "due_at",
                    "expires_at",
                    "published_at",
                    "lease_until",
                    "claimed_at",
                    "first_attempt_at",
                    "last_attempt_at",
                ),
                name=self._name("messages_times"),
            ),
            self._index(
                "claim",
                "queue",
                "priority",
                "due_at",
                "id",
                where="priority >= 0 and (ordering_key is null or head_key is not null)",
            ),
            self._index(
                "waiting",
                "queue",
                "priority",
                "due_at",
                "id",
                where="priority >= 0 and ordering_key is not null and head_key is null",
            ),
            self._index("timer", "queue", "timer_key", unique=True, where="timer_key is not null"),
            self._index("head", "queue", "head_key", unique=True, where="head_key is not null"),
            self._index("line", "queue", "ordering_key", text("(id + 0)"), where="ordering_key is not null"),
            postgresql_with=_MESSAGES_STORAGE,
        )

    def _dead(self) -> Table:
        return self._table(
            "dead",
            _id(),
            Column("message_id", BigInteger, nullable=False),
            _moment("died_at", required=True),
            _moment("published_at", required=True),
            _moment("first_attempt_at"),
            _moment("last_attempt_at"),
            _moment("care_due_at"),
            _moment("lease_until"),
            Column("token", UUID),
            _moment("claimed_at"),
            Column("care_attempts", Integer, nullable=False, server_default=text("0")),
            Column("care_deliveries", Integer, nullable=False, server_default=text("0")),
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
            PrimaryKeyConstraint("id", name=self._name("dead_pkey")),
            CheckConstraint(_LEASE, name=self._name("dead_lease")),
            CheckConstraint("care_attempts >= 0 and care_deliveries >= 0", name=self._name("dead_counters")),
            CheckConstraint(
                _times(
                    "died_at",
                    "care_due_at",
                    "published_at",
                    "lease_until",
                    "claimed_at",
                    "first_attempt_at",
                    "last_attempt_at",
                ),
                name=self._name("dead_times"),
            ),
            self._index("dead_queue", "queue", "id"),
            self._index("dead_due", "queue", "care_due_at", "id", where="care_due_at is not null"),
            self._index("dead_at", "died_at"),
        )

    def _delivered(self) -> Table:
        return self._table(
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
            PrimaryKeyConstraint("id", name=self._name("delivered_pkey")),
            self._index("delivered_at", "delivered_at"),
        )

    def _dedup(self) -> Table:
        return self._table(
            "dedup",
            _key("queue", required=True),
            _key("timer_id", required=True),
            _moment("until", required=True),
            PrimaryKeyConstraint("queue", "timer_id", name=self._name("dedup_pkey")),
            self._index("dedup_until", "until"),
        )

    def _meta(self) -> Table:
        return self._table(
            "meta",
            Column("only_row", Boolean, nullable=False, server_default=text("true")),
            Column("version", Integer, nullable=False),
            Column("identity", UUID, nullable=False, server_default=text("gen_random_uuid()")),
            Column("look_interval", INTERVAL, nullable=False, server_default=text("interval '5 seconds'")),
            Column("notice_horizon", INTERVAL, nullable=False, server_default=text("interval '60 seconds'")),
            PrimaryKeyConstraint("only_row", name=self._name("meta_pkey")),
            CheckConstraint("only_row", name=self._name("meta_only_row_check")),
        )


def _id() -> Column[int]:
    return Column("id", BigInteger, Identity(always=True), nullable=False)


def _moment(name: str, *, required: bool = False) -> Column[Any]:
    return Column(name, TIMESTAMP(timezone=True), nullable=not required)


def _key(name: str, *, required: bool = False) -> Column[str]:
    return Column(name, Text(collation="C"), nullable=not required)
