"""Renews leases independently of the main event loop.

A handler that blocks the event loop blocks everything that runs on it. Leases must still be renewed, or another worker
takes over what this one is working on. The keeper has an event loop on its own thread. The writer thread does the
write: SQLite has one write lock, and a second connection of this process would only compete for it. There a renewal
goes before everything else, in the next transaction, whatever else is in it.
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
from nightmail.stores.shared.keeper_thread import KeeperThread
from nightmail.stores.sql.store import Verbs
from nightmail.stores.sqlite.queries import carry_out_on
from nightmail.stores.sqlite.thread import ConnectionThread

_PATIENCE: Final = timedelta(seconds=1)
"""How long a renewal waits for the lock. Meanwhile it polls for it more often than any other writer."""
_PARTS: Final = 6
"""It waits for at most this fraction of the lease: the keeper needs an answer while there is still time to retry."""


@dataclass(slots=True)
class Renewals:
    """Renews leases on the writer thread, or, once the store is closed, on a thread of its own."""

    writer: ConnectionThread
    verbs: Verbs
    connect: Callable[[], sqlite3.Connection]
    file: str
    own: ConnectionThread | None = None

    async def extend(self, deliveries: Sequence[Delivery], lease: timedelta) -> list[WriteResult]:
        """Extend these leases; `BUSY` for all if another connection keeps the lock for too long."""
        if not deliveries:
            return []
        return await self._thread().write(
            lambda connection: carry_out_on(connection, self.verbs.of(deliveries).extend(deliveries, lease)),
            when_locked_out=lambda: [WriteResult.BUSY] * len(deliveries),
            patience=min(lease / _PARTS, _PATIENCE).total_seconds(),
            lasting=False,
            urgent=True,
            # Until the keeper retries: a claim of this process must not get the lock first and take these over.
            owed_for=RENEW_AGAIN_SECONDS,
        )

    async def close(self) -> None:
        """Stop its own thread, if there is one."""
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
