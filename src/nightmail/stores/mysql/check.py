"""Whether the tables are what this version makes, and whether we may use them.

Harmless additions by others are left alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from nightmail.errors import NotAllowed, SchemaDrift, SchemaMissing, SchemaOutdated
from nightmail.stores.mysql.errors import does_not_fit, is_denied
from nightmail.stores.mysql.link import Link
from nightmail.stores.mysql.migrate import VERSION, note_version, version
from nightmail.stores.mysql.text import Queries, Sql, Value, literal
from nightmail.stores.mysql.times import NOTICE_HORIZON
from nightmail.stores.shared.table_names import TABLES, TableNames

LOOK_INTERVAL: Final = timedelta(seconds=5)

_ID: Final = "bigint not null auto_increment"
_AT: Final = "datetime(6)"
_AT_SET: Final = "datetime(6) not null"
_KEY: Final = "varbinary(1020)"
_KEY_SET: Final = "varbinary(1020) not null"
_BOTH: Final = "varbinary(2041) stored generated"
_BYTES: Final = "int unsigned stored generated"
_TEXT: Final = "longtext utf8mb4_bin"
_TEXT_SET: Final = "longtext utf8mb4_bin not null"
_COUNT: Final = "int not null"
_BODY: Final = "longblob not null"

COLUMNS: Final[dict[str, dict[str, str]]] = {
    "meta": {
        "only_row": "tinyint not null default",
        "version": _COUNT,
        "identity": "binary(16) not null",
        "look_interval": "int not null default",
        "notice_horizon": "int not null default",
    },
    "messages": {
        "id": _ID,
        "published_at": _AT_SET,
        "expires_at": _AT,
        "priority": "tinyint not null",
        "superseded": "tinyint not null default",
        "parked": "tinyint not null default",
        "anchor": "tinyint not null default",
        "due_at": _AT_SET,
        "lease_until": _AT,
        "token": "binary(16)",
        "claimed_at": _AT,
        "first_attempt_at": _AT,
        "last_attempt_at": _AT,
        "attempts": "int not null default",
        "deliveries": "int not null default",
        "head_key": _KEY,
        "timer_key": _KEY,
        "queue": _KEY_SET,
        "timer_id": _KEY,
        "ordering_key": _KEY,
        "queue_timer": _BOTH,
        "queue_head": _BOTH,
        "body_bytes": _BYTES,
        "header_bytes": _BYTES,
        "headers": _TEXT_SET,
        "body": _BODY,
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
        "token": "binary(16)",
        "claimed_at": _AT,
        "failures": "int not null default",
        "claims": "int not null default",
        "attempts": _COUNT,
        "deliveries": _COUNT,
        "priority": "tinyint not null",
        "queue": _KEY_SET,
        "timer_id": _KEY,
        "ordering_key": _KEY,
        "reason": _TEXT_SET,
        "error": _TEXT,
        "body_bytes": _BYTES,
        "header_bytes": _BYTES,
        "headers": _TEXT_SET,
        "body": _BODY,
    },
    "delivered": {
        "id": _ID,
        "message_id": "bigint not null",
        "published_at": _AT_SET,
        "due_at": _AT_SET,
        "delivered_at": _AT_SET,
        "attempts": _COUNT,
        "deliveries": _COUNT,
        "priority": "tinyint not null",
        "queue": _KEY_SET,
        "timer_id": _KEY,
        "ordering_key": _KEY,
        "headers": _TEXT_SET,
        "body": _BODY,
    },
    "dedup": {"queue": _KEY_SET, "timer_id": _KEY_SET, "until": _AT_SET},
}

INDEXES: Final[dict[tuple[str, str], str]] = {
    ("meta", "PRIMARY"): "unique (only_row)",
    ("messages", "PRIMARY"): "unique (id)",
    ("messages", "claim"): "(queue, parked, priority, due_at, id)",
    ("messages", "leased"): "(queue, lease_until, token)",
    ("messages", "timer"): "unique (queue_timer)",
    ("messages", "head"): "unique (queue_head)",
    ("messages", "line"): "(queue, ordering_key, parked, id, due_at)",
    ("dead", "PRIMARY"): "unique (id)",
    ("dead", "dead_queue"): "(queue, id)",
    ("dead", "dead_leased"): "(queue, lease_until, token)",
    ("dead", "dead_due"): "(queue, due_at, id)",
    ("dead", "dead_died_at"): "(died_at)",
    ("delivered", "PRIMARY"): "unique (id)",
    ("delivered", "delivered_at"): "(delivered_at)",
    ("dedup", "PRIMARY"): "unique (queue, timer_id)",
    ("dedup", "dedup_until"): "(until)",
}

CONSTRAINTS: Final = (
    "messages_priority",
    "messages_lease",
    "messages_dates",
    "dead_lease",
    "dead_given_up",
    "meta_only_row",
)
_PUBLISHER: Final = {
    "may_read_messages": "SELECT on messages",
    "may_store_messages": "INSERT on messages",
}
_WORKER: Final = {
    "may_read_messages": "SELECT on messages",
    "may_write_messages": "UPDATE on messages",
    "may_remove_messages": "DELETE on messages",
    "may_read_letters": "SELECT on dead",
    "may_bury": "INSERT on dead",
}
ROLES: Final = {"publish": _PUBLISHER, "work": _WORKER}
"""The privileges that an account needs for either role. What it needs beyond that, for timers or as an operator, is
reported when it is missing."""
# The display width of a number: some servers report it, and it means nothing.
_WIDTH: Final = re.compile(r"^(tinyint|int|bigint)\(\d+\)")


async def check(link: Link, names: TableNames, sql: Queries) -> None:
    """Raise unless the tables are what this version makes and we may use them."""
    found = await version(link, names)
    if found == 0:
        raise SchemaMissing
    if found is not None and found < VERSION:
        raise SchemaOutdated(found, VERSION)
    if found is not None and found > VERSION:
        raise SchemaDrift([f"they are at version {found}, made by newer code than this (version {VERSION})"])
    # First: what we may not use we may not see either, and would report as missing.
    await _ask_for_permits(link, sql)
    if found is None and await _lacks_tables(link, names, sql):
        raise SchemaMissing
    differences = await _differences(link, names, sql)
    if differences:
        raise SchemaDrift(differences)
    if found is None:
        # Alembic makes tables, not rows.
        await note_version(link, names)


async def _ask_for_permits(link: Link, sql: Queries) -> None:
    """Refuse an account that may neither publish nor work."""
    denied: set[str] = set()
    for permit in dict.fromkeys(permit for role in ROLES.values() for permit in role):
        try:
            await link.ask(sql(permit))
        except Exception as error:
            if is_denied(error):
                denied.add(permit)
            # How the tables differ is reported below.
            elif not does_not_fit(error):
                raise
    missing = {name: [role[each] for each in role if each in denied] for name, role in ROLES.items()}
    if all(missing.values()):
        needed = "; ".join(f"to {name}, it lacks {', '.join(rights)}" for name, rights in missing.items())
        raise NotAllowed(f"the account may neither publish nor work: {needed}")


async def _lacks_tables(link: Link, names: TableNames, sql: Queries) -> bool:
    """Whether making the tables was never finished."""
    (engines,) = await link.ask(sql("engines", **_place(names)))
    return len(engines.rows) < len(TABLES)


def _place(names: TableNames) -> dict[str, Value]:
    return {
        "database": Sql("database()") if names.schema is None else Sql(literal(names.schema)),
        "tables": [f"{names.prefix}_{table}" for table in sorted(TABLES)],
    }


async def _differences(link: Link, names: TableNames, sql: Queries) -> list[str]:
    values = _place(names)
    asked = [sql(name, **values) for name in ("columns", "indexes", "constraints", "engines", "meta")]
    columns, indexes, constraints, engines, meta = [answer.rows for answer in await link.ask(*asked)]

    def bare(name: str) -> str:
        return name.removeprefix(f"{names.prefix}_")

    found = {bare(table): engine for table, engine in engines}
    unseen = [table for table in sorted(TABLES - found.keys()) if not await _is_denied(link, names, table)]
    differences = [f"the table {names.quoted(table)} is missing" for table in unseen]
    differences += [
        f"the table {table} is stored by {engine}, which has no transactions we could use"
        for table, engine in found.items()
        if engine != "InnoDB"
    ]
    differences += _columns([(bare(row[0]), *row[1:]) for row in columns])
    differences += _indexes(
        [(bare(row[0]), bare(row[1]), *row[2:]) for row in indexes], found.keys(), names.prefix
    )
    told = {bare(table) for table, _ in constraints}
    differences += [
        f"the constraint {names.prefix}_{name} is missing"
        for name in CONSTRAINTS
        if name.partition("_")[0] in told and name not in {bare(row[1]) for row in constraints}
    ]
    if meta and tuple(meta[0]) != (LOOK_INTERVAL.total_seconds(), NOTICE_HORIZON.total_seconds()):
        differences.append("the look interval or the notice horizon is not the one of this version")
    return differences


async def _is_denied(link: Link, names: TableNames, table: str) -> bool:
    """Whether the table only seems missing because the account may not see it."""
    try:
        await link.ask(f"select 1 from {names.quoted(table)} where false")  # noqa: S608 - our own names
    except Exception as error:
        if is_denied(error):
            return True
        if not does_not_fit(error):
            raise
    return False


def _columns(rows: Sequence[Sequence[Any]]) -> Iterator[str]:
    found: dict[str, dict[str, str]] = {}
    for table, name, type_, nullable, collation, has_default, extra in rows:
        parts = [_WIDTH.sub(r"\1", type_), collation or "", "not null" if nullable == "NO" else ""]
        parts.append("auto_increment" if "auto_increment" in extra else "")
        # Only these words, without the rest: a computed default is called generated, too.
        parts += [kind for kind in ("stored generated", "virtual generated") if kind in extra.lower()]
        # A nullable column has the default NULL, which some servers report.
        parts.append("default" if has_default and nullable == "NO" else "")
        found.setdefault(table, {})[name] = " ".join(part for part in parts if part)
    for table, columns in found.items():
        expected = COLUMNS[table]
        yield from _compared(f"the column {table}.", expected, columns)
        for name in columns.keys() - expected.keys():
            # Our statements do not fill it: a foreign column must not need a value.
            if re.search("not null(?!.* (default|generated))", columns[name]):
                yield f"the column {table}.{name} is not ours and must not be null"


def _indexes(rows: Sequence[Sequence[Any]], tables: Any, prefix: str) -> Iterator[str]:
    found: dict[tuple[str, str], str] = {}
    columns: dict[tuple[str, str], list[str]] = {}
    for table, name, non_unique, column, part in rows:
        columns.setdefault((table, name), []).append(column if part is None else f"{column}({part})")
        unique = "" if int(non_unique) else "unique "
        found[table, name] = f"{unique}({', '.join(columns[table, name])})"
    expected = {key: definition for key, definition in INDEXES.items() if key[0] in tables}

    def called(key: tuple[str, str]) -> str:
        table, name = key
        own = name if name == "PRIMARY" else f"{prefix}_{name}"
        return f"{own} on {prefix}_{table}"

    yield from _compared(
        "the index ",
        {called(key): value for key, value in expected.items()},
        {called(key): value for key, value in found.items()},
    )
    for (table, name), definition in found.items():
        if definition.startswith("unique") and (table, name) not in INDEXES:
            yield f"the unique index {name} on {table} is not ours and may refuse messages"


def _compared(what: str, expected: Mapping[str, str], found: Mapping[str, str]) -> Iterator[str]:
    for name, definition in expected.items():
        if name not in found:
            yield f"{what}{name} is missing"
        elif found[name] != definition:
            yield f"{what}{name} is {found[name]!r} instead of {definition!r}"
