"""What exists while a store is open: its threads, each with a connection, and which of them runs what."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Final, TypeVar

from nightmail.bell import Bell
from nightmail.errors import PublishUncertain, Refused, StoreUnavailable
from nightmail.message import Message
from nightmail.outcome import WriteResult
from nightmail.records import Swept
from nightmail.store import Claimed, Settlement
from nightmail.stores.shared.wanted import Wanted
from nightmail.stores.sql.store import Verbs
from nightmail.stores.sql.verbs import Change, MakeVerb, Verb
from nightmail.stores.sqlite.claiming import Claims
from nightmail.stores.sqlite.connect import connect, create_file, look_at_file
from nightmail.stores.sqlite.errors import CommitInDoubt
from nightmail.stores.sqlite.keeper import Keeper, Renewals, keeper
from nightmail.stores.sqlite.letters import Letters
from nightmail.stores.sqlite.link import SLICE_SECONDS
from nightmail.stores.sqlite.publishing import Publishing
from nightmail.stores.sqlite.queries import carry_out_on
from nightmail.stores.sqlite.settling import settle_apart
from nightmail.stores.sqlite.sweeping import Sweeping
from nightmail.stores.sqlite.thread import ConnectionThread
from nightmail.stores.sqlite.wakeups import WakeupPoller

T = TypeVar("T")
_EXTEND_SECONDS: Final = 0.2
"""How long `extend` waits for the lock: long enough for another commit, too short for a whole transaction."""
_READER_STOP_SECONDS: Final = 1.0
"""Operators' reads that take longer are interrupted when the store closes."""


@dataclass(frozen=True, slots=True)
class SQLiteVerbs(Verbs):
    """The verbs; claims and sweeps look before they ask for the lock."""

    publishing: Publishing
    letters: Letters
    sweeping: Sweeping
    claims: Claims


class Runtime:
    """A writer and a reader, each with a connection, and a keeper that runs while there are leases to renew."""

    def __init__(self, file: str, tower: WakeupPoller, verbs: SQLiteVerbs) -> None:
        self._file = file
        self._tower = tower
        self._verbs = verbs
        connect_to_write = partial(connect, file, busy_seconds=SLICE_SECONDS)
        self.writer = ConnectionThread("writer", connect_to_write, tower, file=file)
        self.reader = ConnectionThread("reader", partial(connect, file, checkpoints=False), file=file)
        self.keeper: Keeper = keeper(Renewals(self.writer, verbs, connect_to_write, file))

    @property
    def usable(self) -> bool:
        """Whether its threads accept work."""
        return self.writer.usable

    async def connect(self) -> None:
        """Open the connections, so that problems show at once.

        Without a file there is nothing to connect to: only `migrate` creates it.
        """
        if look_at_file(self._file):
            await self.writer.read(_nothing)
            await self.reader.read(_nothing)

    def create_file(self) -> None:
        """Create the file if it does not exist."""
        create_file(self._file)

    async def stop(self) -> None:
        """Stop all threads."""
        self._tower.rest()
        # The writer last: the last connection to close checkpoints the write-ahead log.
        try:
            await self.keeper.close()
        finally:
            # Each is told to stop before it is waited for: a caller that gives up leaves none of them running.
            try:
                await self.reader.stop(_READER_STOP_SECONDS)
            finally:
                await self.writer.stop()

    # ---------------------------------------------------------------------------------- carrying out

    async def publish_one(self, message: Message) -> int:
        """Store a message. The writer commits all that wait together."""
        verb = partial(self._verbs.publishing.publish_one, message)
        return (await self.write(verb, lost=PublishUncertain)).result

    async def write(
        self, make: MakeVerb[T], *, lost: type[StoreUnavailable] = StoreUnavailable, timer: bool = False
    ) -> T:
        """Carry out a write, commit it, and ring."""
        try:
            return await self.writer.write(
                lambda connection: carry_out_on(connection, make()), then=self._ring_for
            )
        except CommitInDoubt as error:
            if isinstance(error, lost):
                raise
            raise lost from error

    def read(self, make: MakeVerb[T]) -> Coroutine[Any, Any, T]:
        """Carry out a query."""
        return self.reader.read(lambda connection: carry_out_on(connection, make()))

    def read_at_one_moment(self, make: MakeVerb[T]) -> Coroutine[Any, Any, T]:
        """Carry out queries that must not see each other's future."""

        def work(connection: sqlite3.Connection) -> T:
            connection.execute("BEGIN")
            try:
                return carry_out_on(connection, make())
            finally:
                connection.rollback()

        return self.reader.read(work)

    def report(self, make: MakeVerb[None]) -> Coroutine[Any, Any, None]:
        """Note that a worker is alive. Every process does it every few seconds, so it does not wait for the disk."""
        return self.writer.write(lambda connection: carry_out_on(connection, make()), lasting=False)

    def claim(self, wanted: Wanted) -> Coroutine[Any, Any, Claimed]:
        """Lease messages. A lease need not survive a power cut, which leaves no holder."""
        writer, claims = self.writer, self._verbs.claims
        return writer.write(
            lambda connection: carry_out_on(
                connection, claims.take(wanted, writer.locked_out_for(wanted.lease), writer.waited_lately)
            ),
            look=None if claims.is_busy else lambda connection: carry_out_on(connection, claims.look(wanted)),
            lasting=False,
        )

    def claim_dead(self, wanted: Wanted) -> Coroutine[Any, Any, Claimed]:
        """Lease dead letters."""
        writer, letters = self.writer, self._verbs.letters
        return writer.write(
            lambda connection: carry_out_on(
                connection, letters.take(wanted, writer.locked_out_for(wanted.lease), writer.waited_lately)
            ),
            look=lambda connection: carry_out_on(connection, letters.look(wanted)),
            lasting=False,
        )

    async def recall(self, make: MakeVerb[Change[int]]) -> int:
        """Hand back what a claim leased."""
        return (await self.write(make)).result

    async def settle(
        self,
        batch: Sequence[Settlement],
        settle: Callable[[Sequence[Settlement]], Verb[Change[list[WriteResult]]]],
    ) -> Change[list[WriteResult]]:
        """Write outcomes: in one go, or one by one if SQLite refuses a row."""

        def busy() -> Change[list[WriteResult]]:
            return Change([WriteResult.BUSY] * len(batch))

        try:
            return await self.writer.write(
                lambda connection: carry_out_on(connection, settle(batch)),
                then=self._ring_for,
                when_locked_out=busy,
            )
        except Refused:
            return await self.writer.write(
                partial(settle_apart, settle=settle, batch=batch), then=self._ring_for, when_locked_out=busy
            )

    def settled(self, batch: Sequence[Settlement]) -> None:
        """Do nothing: the verb itself tells the claims, before it commits."""

    def extend(self, make: MakeVerb[list[WriteResult]], count: int) -> Coroutine[Any, Any, list[WriteResult]]:
        """Extend leases."""
        return self.writer.write(
            lambda connection: carry_out_on(connection, make()),
            when_locked_out=lambda: [WriteResult.BUSY] * count,
            patience=_EXTEND_SECONDS,
            lasting=False,
            urgent=True,
        )

    def sweep(self, *, older_than: timedelta, limit: int) -> Coroutine[Any, Any, Swept]:
        """Delete what is old. Need not survive a power cut: what comes back is swept again."""
        sweeping = self._verbs.sweeping
        return self.writer.write(
            lambda connection: carry_out_on(connection, sweeping.sweep(older_than=older_than, limit=limit)),
            look=lambda connection: carry_out_on(connection, sweeping.is_clean(older_than)),
            lasting=False,
        )

    # ------------------------------------------------------------------------------------- wake-ups

    def bell(self, queues: Sequence[str]) -> Bell:
        """A bell for these queues."""
        return self._tower.bell(*queues)

    def ring(self, queues: Iterable[str]) -> None:
        """Do nothing: the commit has already rung, and would have if the caller had been cancelled meanwhile."""

    def _ring_for(self, result: object) -> None:
        if isinstance(result, Change):
            self._tower.ring_each(*result.rings)

    def watch(self) -> None:
        """Have the writer look at once for what others have written, if a bell hangs."""
        if not self._tower.empty:
            self.writer.run_errand(self._tower.look)


def _nothing(connection: sqlite3.Connection) -> None:
    """Do nothing: being called means being connected."""
