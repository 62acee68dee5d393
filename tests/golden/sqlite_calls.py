"""What is asked of SQLite. There is no wire: each call of the library counts as a round trip."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, ClassVar, Final, Self

import pytest

from tests.golden.record import ANOTHER, Line, Record, Sent

OURS: Final = "nightmail-sqlite-"


@contextmanager
def recorded(record: Record) -> Iterator[None]:
    """In this block every connection that is opened is recorded, the callers' too."""
    real: Callable[..., sqlite3.Connection] = sqlite3.connect

    def connect(*arguments: Any, **options: Any) -> sqlite3.Connection:
        if arguments == (":memory:",):
            return real(*arguments, **options)  # Nothing of it gets to the file.
        return real(*arguments, **{"factory": _Recorded, **options})

    _Recorded.record = record
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite3, "connect", connect)
        patch.setattr(sqlite3.dbapi2, "connect", connect)
        yield


class _Inside(threading.local):
    """A connection's `execute` may go through its cursor's, or not, depending on the release of Python."""

    depth = 0


_inside = _Inside()


@contextmanager
def _noted(line: Line, text: str) -> Iterator[None]:
    if _inside.depth == 0:
        line.sends(Sent(text))
        line.is_answered()
    _inside.depth += 1
    try:
        yield
    finally:
        _inside.depth -= 1


class _Recorded(sqlite3.Connection):
    record: ClassVar[Record]

    def __init__(self, *arguments: Any, **options: Any) -> None:
        # A store's connection belongs to a thread, and that has a name.
        thread = threading.current_thread().name
        named = thread.startswith(OURS) and self.record.opening != ANOTHER
        self.line = Line(self.record, thread.removeprefix(OURS) if named else "")
        self._is_open = ExitStack()
        super().__init__(*arguments, **options)
        self._is_open.enter_context(self.line.open())

    def close(self) -> None:
        super().close()
        self._is_open.close()

    def cursor(self, *arguments: Any, **options: Any) -> Any:
        return super().cursor(*(arguments or (_RecordedCursor,)), **options)

    def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
        with _noted(self.line, sql):
            return super().execute(sql, *arguments)

    def executemany(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
        with _noted(self.line, sql):
            return super().executemany(sql, *arguments)

    def executescript(self, sql: str) -> sqlite3.Cursor:
        with _noted(self.line, sql):
            return super().executescript(sql)

    def commit(self) -> None:
        with _noted(self.line, "commit"):
            super().commit()

    def rollback(self) -> None:
        with _noted(self.line, "rollback"):
            super().rollback()


class _RecordedCursor(sqlite3.Cursor):
    def execute(self, sql: str, *arguments: Any) -> Self:
        with _noted(_line_of(self), sql):
            super().execute(sql, *arguments)
            return self

    def executemany(self, sql: str, parameters: Any, /) -> Self:
        with _noted(_line_of(self), sql):
            super().executemany(sql, parameters)
            return self

    def executescript(self, sql: str) -> sqlite3.Cursor:
        with _noted(_line_of(self), sql):
            return super().executescript(sql)


def _line_of(cursor: sqlite3.Cursor) -> Line:
    connection = cursor.connection
    assert isinstance(connection, _Recorded)
    return connection.line
