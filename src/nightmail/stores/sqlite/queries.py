"""The statements of the SQLite store, and how a verb runs on one of our own connections."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from nightmail.stores.shared.table_names import TableNames
from nightmail.stores.sql.statements import Statement, load
from nightmail.stores.sql.verbs import Ask, Verb, carry_out_blocking

T = TypeVar("T")
Row: TypeAlias = tuple[Any, ...]
_FILES: Final = (
    "publish.sql",
    "claim.sql",
    "settle.sql",
    "letters.sql",
    "timers.sql",
    "inspect.sql",
    "controls.sql",
    "redrive.sql",
    "sweep.sql",
    "shape.sql",
    "wakeups.sql",
)
_UNDER_LEASE: Final = "under_lease.sql"
"""The statements that messages and dead letters share."""


class Direct(NamedTuple):
    """A request that no statement can express, done on the connection itself: only on our own connections."""

    work: Callable[[sqlite3.Connection], None]


class OnlyAsk(Ask):
    """A statement that is a whole verb: if it fails, SQLite undoes it without a savepoint."""

    __slots__ = ()


class Queries:
    """The statements of the SQLite store, with its table names filled in."""

    def __init__(self, names: TableNames) -> None:
        self.prefix = names.prefix
        self._statements: dict[str, Statement] = {}
        for file in _FILES:
            self._statements |= load(__package__, file, names, numbered=False)
        for name, statement in load(__package__, _UNDER_LEASE, names, numbered=False).items():
            dead = statement.text.replace(names.quoted("messages"), names.quoted("dead"))
            self._statements[name] = statement
            self._statements[f"{name}_dead"] = replace(statement, name=f"{name}_dead", text=dead)

    def __call__(self, name: str, **values: Any) -> Ask:
        """The statement of this name, with its values."""
        return Ask(self._statements[name], values)


def gathered(ask: Ask) -> Verb[Any]:
    """The rows of a statement that returns them as one JSON value.

    Python releases the GIL around every row it fetches, and a busy event loop gives it back only after a millisecond or
    more: fetched one by one, the rows of a claim would take longer than handling them.
    """
    ((listed,),) = yield ask
    return json.loads(listed)


def carry_out_on(connection: sqlite3.Connection, verb: Verb[T]) -> T:
    """Run a verb on one of our own connections, on the thread that owns it."""

    def send(request: Any) -> Any:
        if isinstance(request, Direct):
            return request.work(connection)
        return connection.execute(request.statement.text, request.values).fetchall()

    return carry_out_blocking(verb, send)
