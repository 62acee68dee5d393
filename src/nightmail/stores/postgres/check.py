"""Checks that the tables are those of this version. Harmless additions by others are ignored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, Final

from nightmail.errors import SchemaDrift, SchemaMissing, SchemaOutdated
from nightmail.stores.postgres.link import Link
from nightmail.stores.postgres.migrate import VERSION, version
from nightmail.stores.postgres.place import Place
from nightmail.stores.shared.table_names import TABLES, TableNames
from nightmail.stores.sql.statements import Statement
from nightmail.stores.sql.verbs import Ask

LOOK_INTERVAL: Final = timedelta(seconds=5)
NOTICE_HORIZON: Final = timedelta(seconds=60)

_KEY: Final = 'text collate "C"'
_KEY_SET: Final = f"{_KEY} not null"
_ID: Final = "bigint not null identity"
_AT: Final = "timestamp with time zone"
_AT_SET: Final = f"{_AT} not null"
_LEASE: Final = (
    "CHECK ((((token IS NULL) = (lease_until IS NULL)) AND ((token IS NULL) = (claimed_at IS NULL))))"
)


def _times(*columns: str) -> str:
    """The constraint that these are in the years 1 to 9999, as Postgres prints it."""
    earliest, latest = (
        f"to_timestamp(('{second}'::bigint)::double precision)" for second in (-62135510400, 253402214400)
    )
    within = (f"(({column} >= {earliest}) AND ({column} <= {latest}))" for column in columns)
    return f"CHECK (({' AND '.join(within)}))"


COLUMNS: Final[dict[str, dict[str, str]]] = {
    "meta": {
        "only_row": "boolean not null default",
        "version": "integer not null",
        "identity": "uuid not null default",
        "look_interval": "interval not null default",
        "notice_horizon": "interval not null default",
    },
    "messages": {
        "id": _ID,
        "published_at": _AT_SET,
        "expires_at": _AT,
        "priority": "smallint not null",
        "superseded": "boolean not null default",
        "due_at": _AT_SET,
        "lease_until": _AT,
        "token": "uuid",
        "claimed_at": _AT,
        "first_attempt_at": _AT,
        "last_attempt_at": _AT,
        "attempts": "integer not null default",
        "deliveries": "integer not null default",
        "head_key": _KEY,
        "timer_key": _KEY,
        "queue": _KEY_SET,
        "timer_id": _KEY,
        "ordering_key": _KEY,
        "headers": "text not null",
        "body": "bytea not null",
    },
    "dead": {
        "id": _ID,
        "message_id": "bigint not null",
        "died_at": _AT_SET,
        "published_at": _AT_SET,
        "first_attempt_at": _AT,
        "last_attempt_at": _AT,
        "due_at": _AT,
        "lease_until": _AT,
        "token": "uuid",
        "claimed_at": _AT,
        "failures": "integer not null default",
        "claims": "integer not null default",
        "attempts": "integer not null",
        "deliveries": "integer not null",
        "priority": "smallint not null",
        "queue": _KEY_SET,
        "timer_id": _KEY,
        "ordering_key": _KEY,
        "reason": "text not null",
        "error": "text",
        "headers": "text not null",
        "body": "bytea not null",
    },
    "delivered": {
        "id": _ID,
        "message_id": "bigint not null",
        "published_at": _AT_SET,
        "due_at": _AT_SET,
        "delivered_at": _AT_SET,
        "attempts": "integer not null",
        "deliveries": "integer not null",
        "priority": "smallint not null",
        "queue": _KEY_SET,
        "timer_id": _KEY,
        "ordering_key": _KEY,
        "headers": "text not null",
        "body": "bytea not null",
    },
    "dedup": {"queue": _KEY_SET, "timer_id": _KEY_SET, "until": _AT_SET},
}

INDEXES: Final[dict[str, str]] = {
    "meta_pkey": "unique btree (only_row)",
    "messages_pkey": "unique btree (id)",
    "claim": (
        "btree (queue, priority, due_at, id) "
        "WHERE ((priority >= 0) AND ((ordering_key IS NULL) OR (head_key IS NOT NULL)))"
    ),
    "waiting": (
        "btree (queue, priority, due_at, id) "
        "WHERE ((priority >= 0) AND (ordering_key IS NOT NULL) AND (head_key IS NULL))"
    ),
    "timer": "unique btree (queue, timer_key) WHERE (timer_key IS NOT NULL)",
    "head": "unique btree (queue, head_key) WHERE (head_key IS NOT NULL)",
    "line": "btree (queue, ordering_key, ((id + 0))) WHERE (ordering_key IS NOT NULL)",
    "dead_pkey": "unique btree (id)",
    "dead_queue": "btree (queue, id)",
    "dead_due": "btree (queue, due_at, id) WHERE (due_at IS NOT NULL)",
    "dead_at": "btree (died_at)",
    "delivered_pkey": "unique btree (id)",
    "delivered_at": "btree (delivered_at)",
    "dedup_pkey": "unique btree (queue, timer_id)",
    "dedup_until": "btree (until)",
}

CONSTRAINTS: Final[dict[str, str]] = {
    "meta_only_row_check": "CHECK (only_row)",
    "messages_priority": "CHECK (((priority >= 0) AND (priority <= 9)))",
    "messages_lease": _LEASE,
    "messages_counters": "CHECK (((attempts >= 0) AND (deliveries >= 0)))",
    "messages_times": _times(
        "due_at",
        "expires_at",
        "published_at",
        "lease_until",
        "claimed_at",
        "first_attempt_at",
        "last_attempt_at",
    ),
    "dead_lease": _LEASE,
    "dead_counters": "CHECK (((failures >= 0) AND (claims >= 0)))",
    "dead_times": _times(
        "died_at",
        "due_at",
        "published_at",
        "lease_until",
        "claimed_at",
        "first_attempt_at",
        "last_attempt_at",
    ),
}


async def check(link: Link, names: TableNames, statements: Mapping[str, Statement], place: Place) -> None:
    """Raise unless the tables are those of this version."""
    found = await version(link, names)
    if found == 0:
        raise SchemaMissing
    if found < VERSION:
        raise SchemaOutdated(found, VERSION)
    if found > VERSION:
        raise SchemaDrift([f"they are at version {found}, made by newer code than this (version {VERSION})"])
    differences = [difference async for difference in _differences(link, names, statements, place)]
    if differences:
        raise SchemaDrift(differences)


async def _differences(
    link: Link, names: TableNames, statements: Mapping[str, Statement], place: Place
) -> Any:
    tables = {table: place.quoted(table) for table in sorted(TABLES)}
    missing = [
        table
        for table, quoted in tables.items()
        if await link.fetchval("select to_regclass($1)", quoted) is None
    ]
    for table in missing:
        yield f"the table {names.quoted(table)} is missing"
    values = {
        "prefix": names.prefix,
        "tables": [quoted for table, quoted in tables.items() if table not in missing],
        "messages": place.quoted("messages"),
    }

    async def ask(name: str) -> list[Any]:
        found: list[Any] = await link.send(Ask(statements[name], values))
        return found

    for difference in _columns(await ask("columns")):
        yield difference
    for difference in _indexes(await ask("indexes"), names.prefix):
        yield difference
    for difference in _compared(
        f"the constraint {names.prefix}_", CONSTRAINTS, _named(await ask("constraints"))
    ):
        yield difference
    if "messages" not in missing and "fillfactor=50" not in (await ask("options"))[0]["options"]:
        yield "the messages have another fillfactor than 50"
    meta = (await ask("meta"))[0]
    if (meta["look_interval"], meta["notice_horizon"]) != (LOOK_INTERVAL, NOTICE_HORIZON):
        yield "the look interval or the notice horizon is not the one of this version"


def _columns(rows: list[Any]) -> Iterator[str]:
    found: dict[str, dict[str, str]] = {}
    for row in rows:
        found.setdefault(row["table"], {})[row["name"]] = row["definition"]
    for table, columns in found.items():
        expected = COLUMNS[table]
        yield from _compared(f"the column {table}.", expected, columns)
        for name in columns.keys() - expected.keys():
            # Our statements do not fill it: a column that is not ours must do without a value.
            if "not null" in columns[name] and "default" not in columns[name]:
                yield f"the column {table}.{name} is not ours and must not be null"


def _indexes(rows: list[Any], prefix: str) -> Iterator[str]:
    found = _named(rows)
    yield from _compared(f"the index {prefix}_", INDEXES, found)
    for row in rows:
        if row["is_unique"] and row["name"] not in INDEXES:
            yield f"the unique index {row['name']} on {row['table']} is not ours and may refuse messages"


def _named(rows: list[Any]) -> dict[str, str]:
    return {row["name"]: row["definition"] for row in rows}


def _compared(what: str, expected: Mapping[str, str], found: Mapping[str, str]) -> Iterator[str]:
    """`what` is the start of each description, followed by the name."""
    for name, definition in expected.items():
        if name not in found:
            yield f"{what}{name} is missing or unusable"
        elif found[name] != definition:
            yield f"{what}{name} is {found[name]!r} instead of {definition!r}"
