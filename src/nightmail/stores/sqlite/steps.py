"""Store operations as steps: generators that yield one statement after the other, independent of the connection.

The same steps run on our thread and connection, and in a caller's transaction on the caller's connection. They decide
from the rows they get what to execute next; their driver decides how to execute it.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

from nightmail.stores.shared.table_names import TableNames
from nightmail.stores.sql.statements import Statement, load

T = TypeVar("T")
Row: TypeAlias = tuple[Any, ...]
_FILES: Final = (
    "publish.sql",
    "claim.sql",
    "settle.sql",
    "letters.sql",
    "timers.sql",
    "inspect.sql",
    "redrive.sql",
    "sweep.sql",
    "tables.sql",
)


class Ask(NamedTuple):
    """One statement with its values."""

    statement: Statement
    values: Mapping[str, Any]


Steps: TypeAlias = Generator[Ask, list[Row], T]
"""Yields statements, is sent the rows, and returns a result."""


class Direct(NamedTuple):
    """Work that no statement can express, done on the connection itself."""

    work: Callable[[sqlite3.Connection], None]


OwnSteps: TypeAlias = Generator[Ask | Direct, list[Row], T]
"""Steps that run only on our own connections."""


@dataclass(frozen=True, slots=True)
class Change(Generic[T]):
    """The result of a write, and the queues to ring once it is committed."""

    result: T
    rings: frozenset[str] = frozenset()


class Queries:
    """The statements of the SQLite store, with its table names filled in."""

    def __init__(self, names: TableNames) -> None:
        self.prefix = names.prefix
        self._statements: dict[str, Statement] = {}
        for file in _FILES:
            self._statements |= load(__package__, file, names, numbered=False)

    def __call__(self, name: str, **values: Any) -> Ask:
        """The statement of this name, with its values."""
        return Ask(self._statements[name], values)


def gathered(ask: Ask) -> Steps[Any]:
    """The rows of a statement that returns them as one JSON value.

    Python releases the GIL around every row it fetches, and a busy event loop gives it back only after a millisecond or
    more: fetched one by one, the rows of a claim would take longer than handling them.
    """
    ((listed,),) = yield ask
    return json.loads(listed)


def carry_out(connection: sqlite3.Connection, steps: OwnSteps[T]) -> T:
    """Run these steps on one of our own connections."""
    try:
        ask = next(steps)
        while True:
            if isinstance(ask, Direct):
                ask.work(connection)
                ask = steps.send([])
            else:
                ask = steps.send(connection.execute(ask.statement.text, ask.values).fetchall())
    except StopIteration as end:
        result: T = end.value
        return result
