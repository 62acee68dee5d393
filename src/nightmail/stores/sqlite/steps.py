"""How a verb is written down: as steps that ask one statement after the other, wherever they are carried out.

The same steps run on a thread of ours, on our connection, and in a caller's transaction, on the caller's connection.
They decide what to ask by the rows they get; whoever carries them out decides how to ask.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

from nightmail.stores._names import TableNames
from nightmail.stores._sql import Statement, load

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
"""Asks, is sent the rows, and ends with a result."""


class Direct(NamedTuple):
    """What no statement can say, done on the connection itself."""

    work: Callable[[sqlite3.Connection], None]


OwnSteps: TypeAlias = Generator[Ask | Direct, list[Row], T]
"""Steps that are only ever taken on a connection of ours."""


@dataclass(frozen=True, slots=True)
class Change(Generic[T]):
    """What a writing verb answers, and which queues have something to look at once it is committed."""

    result: T
    rings: frozenset[str] = frozenset()


class Queries:
    """The statements of the SQLite store, with the names of its tables put in."""

    def __init__(self, names: TableNames) -> None:
        self.prefix = names.prefix
        self._statements: dict[str, Statement] = {}
        for file in _FILES:
            self._statements |= load(__package__, file, names, numbered=False)

    def __call__(self, name: str, **values: Any) -> Ask:
        """Ask the statement of this name."""
        return Ask(self._statements[name], values)


def gathered(ask: Ask) -> Steps[Any]:
    """The rows of a statement that gives them as one value, in JSON.

    Around every row it fetches Python lets go of the interpreter's lock, and a busy event loop gives it back only
    after a millisecond or more: fetched one by one, the rows of a claim would take longer than handling them.
    """
    ((listed,),) = yield ask
    return json.loads(listed)


def carry_out(connection: sqlite3.Connection, steps: OwnSteps[T]) -> T:
    """Take these steps on a connection of ours."""
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
