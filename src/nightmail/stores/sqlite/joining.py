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
from nightmail.stores.sqlite.blocking import blocking_caller
from nightmail.stores.sqlite.callers import Caller, caller_of
from nightmail.stores.sqlite.queries import OnlyAsk, Queries

if TYPE_CHECKING:
    from aiosqlite import Connection

T = TypeVar("T")
_FILES: Final = Ask(Statement("files", "PRAGMA database_list", ()), {})
_SAVEPOINT: Final = Ask(Statement("savepoint", "SAVEPOINT nightmail_verb", ()), {})
_UNDO: Final = Ask(Statement("undo", "ROLLBACK TO nightmail_verb", ()), {})
_RELEASE: Final = Ask(Statement("release", "RELEASE nightmail_verb", ()), {})


class Joining:
    """Carries verbs out in callers' transactions: all of a verb or nothing, since its caller may commit after an error.

    A severe error has already rolled everything back, the savepoint included. A verb of one statement needs none,
    unless something in the database asks for halves of statements to be kept: each connection is asked once, and again
    after an error.
    """

    def __init__(self, file: str, sql: Queries) -> None:
        self._file = file
        self._lock = sql("lock")
        self._keeps_halves = sql("keeps_halves")
        # A connection never changes its file, so each is checked once.
        self._checked: WeakSet[Connection] = WeakSet()
        self._looked_at: WeakSet[Connection] = WeakSet()
        self._undoing: WeakSet[Connection] = WeakSet()

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
        locked = carry_out_blocking(caller.begin(), caller.send)
        savepoint = _Savepoint(self._lock, locked=locked)
        try:
            result = carry_out_blocking(preceded(make(), savepoint.begin), caller.send)
        except BaseException:
            with suppress(Exception):
                carry_out_blocking(savepoint.undo(), caller.send)
            raise
        carry_out_blocking(savepoint.release(), caller.send)
        return result

    async def _join(self, caller: Caller, verb: Verb[T]) -> T:
        await self._check_once(caller)
        locked = await carry_out(caller.begin(), caller.send)
        savepoint = _Savepoint(self._lock, locked=locked, undoes_statements=caller.driver in self._undoing)
        try:
            result = await carry_out(preceded(verb, savepoint.begin), caller.send)
        except BaseException:
            self._looked_at.discard(caller.driver)
            self._undoing.discard(caller.driver)
            with suppress(Exception):
                await carry_out(savepoint.undo(), caller.send)
            raise
        await carry_out(savepoint.release(), caller.send)
        if savepoint.maybe_needless and caller.driver not in self._looked_at:
            await self._look_at(caller)
        return result

    async def _look_at(self, caller: Caller) -> None:
        """Note whether statements undo themselves. After a write: one that comes after reading may be refused."""
        with suppress(Exception):
            if not await caller.send(self._keeps_halves):
                self._undoing.add(caller.driver)
            self._looked_at.add(caller.driver)

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


class _Savepoint:
    """Around a verb, unless it is a single statement that undoes itself if it fails."""

    def __init__(self, lock: Ask, *, locked: bool, undoes_statements: bool = False) -> None:
        """`locked`: whether the transaction certainly has the write lock; else `lock` takes it before a read."""
        self._lock = lock
        self._locked = locked
        self._undoes_statements = undoes_statements
        self._begun = False
        self.maybe_needless = False
        """Whether it was begun for a single statement, which may not need it."""

    def begin(self, first: Ask) -> Verb[None]:
        """Before the first statement."""
        if isinstance(first, OnlyAsk):
            if self._undoes_statements:
                return
            self.maybe_needless = True
        yield _SAVEPOINT
        self._begun = True
        if not self._locked and first.statement.text.startswith("SELECT"):
            yield self._lock

    def undo(self) -> Verb[None]:
        """After an error."""
        if self._begun:
            yield _UNDO
            yield _RELEASE

    def release(self) -> Verb[None]:
        """After the last statement."""
        if self._begun:
            yield _RELEASE


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
