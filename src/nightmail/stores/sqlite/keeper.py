"""Keeping leases alive beside the event loop.

A handler that blocks the event loop blocks everything that runs on it. Leases must be renewed all the same, or another
worker takes over what this one is still working on. The keeper has an event loop on a thread of its own. The write is
done by the writing thread: SQLite has one write lock, and a second connection of this process would only compete for
it. There a renewal goes before everything else, in the next transaction, whoever else that one is for.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, TypeAlias

from nightmail.message import Delivery
from nightmail.outcome import WriteResult
from nightmail.store import RENEW_AGAIN_SECONDS
from nightmail.stores._keeper_thread import KeeperThread
from nightmail.stores.sqlite.leases import Leases
from nightmail.stores.sqlite.steps import carry_out
from nightmail.stores.sqlite.thread import ConnectionThread

_PATIENCE: Final = timedelta(seconds=1)
"""How long a renewal waits for the lock. While it waits it asks for it more often than any other writer does."""
_PARTS: Final = 6
"""Of a short lease it waits for this part only: the keeper wants an answer while there is still time to ask again."""


@dataclass(slots=True)
class Renewals:
    """Renewing leases on the writing thread; once the store is closed, on one that is made for it."""

    writer: ConnectionThread
    leases: Leases
    connect: Callable[[], sqlite3.Connection]
    file: str
    own: ConnectionThread | None = None

    async def extend(self, deliveries: Sequence[Delivery], lease: timedelta) -> list[WriteResult]:
        """Let these leases run on; `BUSY` for all when another connection keeps the lock for too long."""
        if not deliveries:
            return []
        return await self._thread().write(
            lambda connection: carry_out(connection, self.leases.extend(deliveries, lease)),
            when_locked_out=lambda: [WriteResult.BUSY] * len(deliveries),
            patience=min(lease / _PARTS, _PATIENCE).total_seconds(),
            lasting=False,
            urgent=True,
            # Until the keeper asks again: a claim of this process must not get the lock first and take these over.
            owed_for=RENEW_AGAIN_SECONDS,
        )

    async def close(self) -> None:
        """Give back the thread that was made for it, if there is one."""
        if self.own is not None:
            await self.own.stop()

    def _thread(self) -> ConnectionThread:
        if self.writer.usable:
            return self.writer
        if self.own is None:
            self.own = ConnectionThread("keeper", self.connect, file=self.file)
        return self.own


Keeper: TypeAlias = KeeperThread[Renewals]


def keeper(renewals: Renewals) -> Keeper:
    """The keeper of an open store."""
    return KeeperThread(lambda: renewals, Renewals.extend)
