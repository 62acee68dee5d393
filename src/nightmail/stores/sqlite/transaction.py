"""Joins a caller's transaction.

SQLite lets one connection write at a time. A transaction that has only read so far and now writes is refused at once,
without waiting, if another connection has written since it read; so whatever we do in it begins with a write.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakSet

from nightmail.errors import OtherDatabase
from nightmail.store import Blocking
from nightmail.stores.sql.statements import Statement
from nightmail.stores.sqlite.blocking import blocking_caller
from nightmail.stores.sqlite.callers import AwaitedCaller, Caller, caller_of
from nightmail.stores.sqlite.steps import Ask, Queries, Steps

if TYPE_CHECKING:
    from aiosqlite import Connection

T = TypeVar("T")
_FILES: Final = Ask(Statement("files", "PRAGMA database_list", ()), {})
_SAVEPOINT: Final = Ask(Statement("savepoint", "SAVEPOINT nightmail_verb", ()), {})
_UNDO: Final = Ask(Statement("undo", "ROLLBACK TO nightmail_verb", ()), {})
_RELEASE: Final = Ask(Statement("release", "RELEASE nightmail_verb", ()), {})


class CallersTransactions:
    """The callers' transactions that one store joins."""

    def __init__(self, file: str, sql: Queries) -> None:
        self._file = file
        self._sql = sql
        # A connection never changes its file, so each is checked once.
        self._known: WeakSet[Connection] = WeakSet()

    async def write(self, transaction: object, steps: Steps[T]) -> T:
        """Run these steps in the caller's transaction."""
        caller = await caller_of(transaction)
        return await _to_the_end(self._write(caller, steps))

    async def read(self, transaction: object, steps: Steps[T]) -> T:
        """Run these read-only steps in the caller's transaction."""
        caller = await caller_of(transaction)
        return await _to_the_end(self._read(caller, steps))

    async def write_blocking(self, transaction: Blocking, steps: Steps[T]) -> T:
        """Run these steps in a synchronous transaction, without ever suspending.

        It cannot be cancelled in between, and may run on any thread: it touches no shared state.
        """
        caller = blocking_caller(transaction.session)
        await self._refuse_other_files(caller)
        return await self._all_or_nothing(caller, steps)

    async def _write(self, caller: AwaitedCaller, steps: Steps[T]) -> T:
        await self._make_sure_of_the_file(caller)
        return await self._all_or_nothing(caller, steps)

    async def _read(self, caller: AwaitedCaller, steps: Steps[T]) -> T:
        await self._make_sure_of_the_file(caller)
        return await self._carry_out(caller, steps, locked=True)

    async def _all_or_nothing(self, caller: Caller, steps: Steps[T]) -> T:
        """Run all of these steps, or none: a caller that catches the error may still commit."""
        locked = await caller.begin()
        _ = await caller.ask(_SAVEPOINT)
        try:
            result = await self._carry_out(caller, steps, locked=locked)
        except BaseException:
            # A severe error has already rolled everything back, the savepoint included.
            with suppress(Exception):
                _ = await caller.ask(_UNDO)
                _ = await caller.ask(_RELEASE)
            raise
        _ = await caller.ask(_RELEASE)
        return result

    async def _make_sure_of_the_file(self, caller: AwaitedCaller) -> None:
        if caller.driver in self._known:
            return
        await self._refuse_other_files(caller)
        self._known.add(caller.driver)

    async def _refuse_other_files(self, caller: Caller) -> None:
        # A connection may return text as bytes.
        files = {os.fsdecode(name): file for _, name, file in await caller.ask(_FILES)}
        if not files.get("main") or not _same(files["main"], self._file):
            raise OtherDatabase

    async def _carry_out(self, caller: Caller, steps: Steps[T], *, locked: bool) -> T:
        try:
            ask = next(steps)
            if not locked and ask.statement.text.startswith("SELECT"):
                _ = await caller.ask(self._sql("lock"))
            while True:
                ask = steps.send(await caller.ask(ask))
        except StopIteration as end:
            result: T = end.value
            return result


def _same(file: str | bytes, other: str) -> bool:
    try:
        return os.path.samefile(file, other)
    except FileNotFoundError:
        return False


async def _to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """Wait until this is done, even if cancelled meanwhile.

    An operation is several statements here. Cancelled between two of them, half of it would remain in a transaction
    that its caller may still commit; cancelled within one, SQLAlchemy would discard the caller's connection.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            _ = await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is None:
        return task.result()
    # Retrieved, so that asyncio does not log an exception that was never retrieved.
    _ = task.exception()
    raise cancelled
