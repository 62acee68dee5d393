"""The definitions in a database, normalized for comparison.

SQLite keeps the text that created a table. The same table may be written in many ways: `nightmail migrate` and Alembic
differ in whitespace, quotes, the order of a column's clauses, and the position and names of checks.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Collection
from functools import lru_cache
from typing import Final

from nightmail.stores.sql.schema import split

_CHECK: Final = re.compile(r"(?:CONSTRAINT \S+ )?CHECK \(")
_CLOSING: Final = re.compile(r"\)")
_COMMA: Final = re.compile(",")
_NAME: Final = re.compile(r"CONSTRAINT \S+ ")


def definitions(connection: sqlite3.Connection, only: Collection[str] | None = None) -> dict[str, str]:
    """Tables, indexes and triggers by kind and name; `only` these, or all."""
    rows = connection.execute("SELECT type || ' ' || name, sql FROM sqlite_master WHERE sql IS NOT NULL")
    return {name: _definition(name, sql) for name, sql in rows if only is None or name in only}


@lru_cache(maxsize=256)
def _definition(name: str, sql: str) -> str:
    text = re.sub(r'[\s"]+', " ", sql).strip()
    return _table(text) if name.startswith("table ") else text


def _table(text: str) -> str:
    """A table with its checks last and sorted, and the clauses of each column sorted."""
    head, _, rest = text.partition("(")
    body, _, options = rest.rpartition(")")
    checks: list[str] = []
    parts: list[str] = []
    for part in split(body, _COMMA):
        remaining = part
        while found := _CHECK.search(remaining):
            condition = next(split(remaining[found.end() :], _CLOSING))
            checks.append(condition.strip())
            remaining = remaining[: found.start()] + remaining[found.end() + len(condition) + 1 :]
        if remaining.strip():
            parts.append(_clauses(_NAME.sub("", remaining)))
    checks = [f"CHECK ({condition})" for condition in sorted(checks)]
    return f"{head.strip()} ({', '.join([*parts, *checks])}) {options.strip()}".strip()


def _clauses(part: str) -> str:
    name, *words = part.split()
    # In `PRIMARY KEY (queue, timer_id)` the order matters.
    return " ".join([name, *words] if "(" in part else [name, *sorted(words)])
