"""The SQLite store: its parts, and its life from `open` to `close`."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from nightmail.clock import Clock, StoreClock
from nightmail.controls import MessageFacts, WorkerReport
from nightmail.errors import NotOpen, SchemaMissing, StoreUnavailable
from nightmail.findings import Finding
from nightmail.limits import MAX_BODY_BYTES
from nightmail.records import Swept
from nightmail.store import Capabilities
from nightmail.stores.shared.meta import LOOK_INTERVAL
from nightmail.stores.shared.table_names import TableNames
from nightmail.stores.sql.store import SQLStore
from nightmail.stores.sql.verbs import MakeVerb
from nightmail.stores.sqlite.check import LOCK_SECONDS, Schema
from nightmail.stores.sqlite.claiming import Claims
from nightmail.stores.sqlite.connect import database_file
from nightmail.stores.sqlite.controlling import Controlling
from nightmail.stores.sqlite.examining import examine
from nightmail.stores.sqlite.inspecting import Inspecting
from nightmail.stores.sqlite.joining import Joining
from nightmail.stores.sqlite.letters import Letters
from nightmail.stores.sqlite.publishing import Publishing
from nightmail.stores.sqlite.queries import Queries
from nightmail.stores.sqlite.redriving import Redriving
from nightmail.stores.sqlite.runtime import Runtime, SQLiteVerbs
from nightmail.stores.sqlite.settling import Settling
from nightmail.stores.sqlite.sweeping import Sweeping
from nightmail.stores.sqlite.timers import Timers
from nightmail.stores.sqlite.times import StoreTime
from nightmail.stores.sqlite.wakeups import WakeupPoller

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

T = TypeVar("T")
_OWN_CLOCK: Final = StoreClock()
_CAPABILITIES: Final = Capabilities(
    name="sqlite",
    transactions=True,
    concurrent_writers=False,
    locks_rows=True,
    repeatable_read=False,
    blocking=True,
    pushes_wakeups=True,
    embedded=True,
    connections=2,
)


class SQLiteStore(SQLStore):
    """Messages in an SQLite file, shared by any number of processes on one machine.

    Two connections, each on its own thread: one writes, claims and renews leases, one serves operators' reads.
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | AsyncEngine,
        *,
        tables: str | None = None,
        clock: Clock = _OWN_CLOCK,
        keep_delivered: bool = False,
        max_body_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        names = TableNames.parse(tables)
        if names.schema is not None:
            raise ValueError(f"SQLite has no schemas: give a prefix for the tables, not {tables!r}")
        self.file = database_file(source)
        sql, time = Queries(names), StoreTime(clock)
        claims = Claims(sql, time, max_body_bytes)
        settling = Settling(sql, time, keep_delivered=keep_delivered, handed_back=claims.look_from_the_start)
        letters = Letters(sql, time, max_body_bytes)
        verbs = SQLiteVerbs(
            publishing=Publishing(sql, time, messages=settling, letters=letters),
            messages=settling,
            letters=letters,
            timers=Timers(sql, time),
            inspecting=Inspecting(sql, time),
            redriving=Redriving(sql, time),
            sweeping=Sweeping(sql, time),
            controlling=Controlling(sql, time),
            claims=claims,
        )
        self._callers = Joining(self.file, sql)
        super().__init__(verbs, self._callers, max_body_bytes=max_body_bytes)
        self._schema = Schema(names, sql)
        tower = WakeupPoller(self.file, sql, f"{names.prefix}_messages", self._watch)
        self._make_runtime = partial(Runtime, self.file, tower, verbs)
        self._opened: Runtime | None = None

    @property
    def capabilities(self) -> Capabilities:
        """What this store can do."""
        return _CAPABILITIES

    @property
    def look_interval(self) -> timedelta:
        """The longest an idle worker goes without looking."""
        return LOOK_INTERVAL

    @property
    def _runtime(self) -> Runtime:
        if self._opened is None:
            raise NotOpen
        return self._opened

    # ----------------------------------------------------------------------------------------- life

    async def open(self) -> None:
        """Connect to the file, if it exists. If not, `migrate` creates it."""
        if self._opened is not None and self._opened.usable:
            return
        self._opened = runtime = self._make_runtime()
        try:
            await runtime.connect()
        except BaseException:
            await self.close()
            raise
        runtime.watch()

    async def close(self) -> None:
        """Finish pending work, close every connection and end every thread."""
        runtime, self._opened = self._opened, None
        if runtime is not None:
            await runtime.stop()

    async def ping(self) -> None:
        """Read something from the file."""
        try:
            _ = await self._runtime.writer.read(_read_something)
        except SchemaMissing as error:
            raise StoreUnavailable(str(error)) from error

    def schema_sql(self, *, found: int | None = None) -> str:
        """See `Store.schema_sql`."""
        return self._schema.script(found=found)

    async def migrate(self, *, repair: bool = False) -> None:
        """Create the file and the tables, or what is missing of them. A missing index is always recreated."""
        self._runtime.create_file()
        _ = await self._runtime.writer.write(
            self._schema.migrate, look=self._schema.current, patience=LOCK_SECONDS
        )

    async def check(self, *, adopt: bool = True) -> None:
        """Compare the tables with this version's schema.

        Tables that Alembic created are completed first: see `Schema.is_adoptable`.
        """
        if await self._runtime.reader.read(self._schema.is_adoptable):
            if not adopt:
                return
            await self.migrate()
        problem = await self._runtime.reader.read(self._schema.problem)
        if problem is not None:
            raise problem

    async def examine(self, *, processes: int = 0) -> list[Finding]:
        """See `Examined.examine`."""
        found = await asyncio.to_thread(examine, self.file)
        with suppress(SchemaMissing):
            found += await self._runtime.reader.read(self._schema.findings)
        return found

    # ------------------------------------------------------------------------------- what it does alone

    async def sweep(self, *, older_than: timedelta, limit: int) -> Swept:
        """See `Inspection.sweep`. A sweep that finds nothing does not ask for the write lock."""
        return await self._runtime.sweep(older_than=older_than, limit=limit)

    async def report(self, worker: WorkerReport) -> None:
        """See `Control.report`."""
        await self._runtime.report(partial(self._verbs.controlling.report, worker))

    async def facts(self, id_: int) -> MessageFacts:
        """See `Control.facts`."""
        return await self._runtime.read_at_one_moment(partial(self._verbs.controlling.facts, id_))

    async def _read(self, make: MakeVerb[T], transaction: object | None) -> T:
        # A query in a caller's transaction must not take the write lock, as everything else there does.
        if transaction is not None:
            return await self._callers.read(transaction, make)
        return await self._runtime.read(make)

    def _watch(self) -> None:
        if self._opened is not None:
            self._opened.watch()


def _read_something(connection: sqlite3.Connection) -> int:
    ((pages,),) = connection.execute("PRAGMA page_count").fetchall()
    return int(pages)
