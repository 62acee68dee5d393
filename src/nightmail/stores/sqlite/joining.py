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
from nightmail.stores.sql.verbs import Ask, MakeVerb, Verb, carry_out, carry_out_blocking, preceded
from nightmail.stores.sqlite.blocking import BlockingCaller, blocking_caller
from nightmail.stores.sqlite.callers import Caller, caller_of
from nightmail.stores.sqlite.queries import Queries

if TYPE_CHECKING:
    from aiosqlite import Connection

T = TypeVar("T")
_FILES: Final = Ask(Statement("files", "PRAGMA database_list", ()), {})
_SAVEPOINT: Final = Ask(Statement("savepoint", "SAVEPOINT nightmail_verb", ()), {})
_UNDO: Final = Ask(Statement("undo", "ROLLBACK TO nightmail_verb", ()), {})
_RELEASE: Final = Ask(Statement("release", "RELEASE nightmail_verb", ()), {})


class Joining:
    """Carries verbs out in callers' transactions: all of a verb or nothing, since its caller may commit after an error.

    A severe error has already rolled everything back, the savepoint included.
    """

    def __init__(self, file: str, sql: Queries) -> None:
        self._file = file
        self._lock = sql("lock")
        # A connection never changes its file, so each is checked once.
        self._checked: WeakSet[Connection] = WeakSet()

    async def join(self, transaction: object, make: MakeVerb[T]) -> T:
        """Carry out a write in the transaction of asynchronous code."""
        if isinstance(transaction, Blocking):
            return self._join_blocking(transaction.session, make)
        caller = await caller_of(transaction)
        return await _to_the_end(self._join(caller, make()))

    async def read(self, transaction: object, make: MakeVerb[T]) -> T:
        """Carry out a query in this transaction, without the write lock."""
        if isinstance(transaction, Blocking):
            blocking = blocking_caller(transaction.session)
            carry_out_blocking(self._check_file(), blocking.send)
            return carry_out_blocking(make(), blocking.send)
        caller = await caller_of(transaction)
        return await _to_the_end(self._read(caller, make()))

    def _join_blocking(self, session: object, make: MakeVerb[T]) -> T:
        """Carry out a write in the transaction of synchronous code, on any thread: it touches no shared state."""
        caller = blocking_caller(session)
        carry_out_blocking(self._check_file(), caller.send)
        locked = carry_out_blocking(_begin(caller), caller.send)
        try:
            result = carry_out_blocking(self._locking(make(), locked=locked), caller.send)
        except BaseException:
            with suppress(Exception):
                caller.send(_UNDO)
                caller.send(_RELEASE)
            raise
        caller.send(_RELEASE)
        return result

    async def _join(self, caller: Caller, verb: Verb[T]) -> T:
        await self._check_once(caller)
        locked = await carry_out(_begin(caller), caller.send)
        try:
            result = await carry_out(self._locking(verb, locked=locked), caller.send)
        except BaseException:
            with suppress(Exception):
                await caller.send(_UNDO)
                await caller.send(_RELEASE)
            raise
        await caller.send(_RELEASE)
        return result

    async def _read(self, caller: Caller, verb: Verb[T]) -> T:
        await self._check_once(caller)
        return await carry_out(verb, caller.send)

    async def _check_once(self, caller: Caller) -> None:
        if caller.driver not in self._checked:
            await carry_out(self._check_file(), caller.send)
            self._checked.add(caller.driver)

    def _check_file(self) -> Verb[None]:
        """Refuse a connection to another file."""
        # A connection may return text as bytes.
        files = {os.fsdecode(name): file for _, name, file in (yield _FILES)}
        if not files.get("main") or not _same(files["main"], self._file):
            raise OtherDatabase

    def _locking(self, verb: Verb[T], *, locked: bool) -> Verb[T]:
        """The verb, after taking the write lock if it begins by reading."""

        def lock(first: Ask) -> Verb[None]:
            if not locked and first.statement.text.startswith("SELECT"):
                yield self._lock

        return preceded(verb, lock)


def _begin(caller: Caller | BlockingCaller) -> Verb[bool]:
    """Begin a savepoint. Returns whether its transaction certainly has the write lock."""
    locked = yield from caller.begin()
    yield _SAVEPOINT
    return locked


def _same(file: str | bytes, other: str) -> bool:
    try:
        return os.path.samefile(file, other)
    except FileNotFoundError:
        return False


async def _to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """Wait until this is done, even if cancelled meanwhile.

    A verb is several statements here. Cancelled between two of them, half of it would remain in a transaction that its
    caller may still commit; cancelled within one, SQLAlchemy would discard the caller's connection.
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
