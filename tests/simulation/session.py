"""A transaction of a handler's own, as the server has it: open until committed, dropped or idle for too long."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from nightmail.errors import StoreUnavailable
from nightmail.message import Delivery
from nightmail.stores.memory import MemoryTransaction
from tests.simulation.events import Acked, Committed
from tests.simulation.loop import Timer

if TYPE_CHECKING:
    from tests.simulation.server import Server

IDLE_SECONDS: Final = 1.0
"""How long a transaction may be idle before the server rolls it back: it keeps others waiting."""


class _RolledBack(Exception):
    pass


class Session:
    """One transaction. Its locks hold until it ends, whatever becomes of the process that opened it."""

    def __init__(self, server: Server, worker: str) -> None:
        self._server = server
        self._worker = worker
        self._transaction: MemoryTransaction | None = None
        self._acked: list[Delivery] = []
        self._ending: asyncio.Future[bool] | None = None
        self._over: asyncio.Task[None] | None = None
        self._idle: Timer | None = None

    async def begin(self) -> None:
        """Open it, once it has its turn."""
        loop = self._server.loop
        opened = loop.create_future()
        self._ending = loop.create_future()
        self._over = loop.create_task(self._hold(opened))
        await opened
        self._busy()

    async def ack(self, deliveries: Sequence[Delivery]) -> None:
        """Settle these as done when it commits."""
        await self._server.store.ack(deliveries, transaction=self._open())
        self._acked += deliveries
        for delivery in deliveries:
            self._server.note(Acked, id=delivery.id, token=self._server.token(delivery.token))

    async def commit(self) -> None:
        """End it, with all that was done in it."""
        self._open()
        await self._end(commit=True)

    def drop(self) -> None:
        """Its connection is gone."""
        if self._ending is not None and not self._ending.done():
            self._ending.set_result(False)

    def _open(self) -> MemoryTransaction:
        if (
            self._transaction is None
            or not self._transaction.open
            or self._ending is None
            or self._ending.done()
        ):
            raise StoreUnavailable("the transaction was rolled back")
        self._busy()
        return self._transaction

    async def _end(self, *, commit: bool) -> None:
        assert self._ending is not None
        assert self._over is not None
        self._ending.set_result(commit)
        await self._over

    def _busy(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        self._idle = self._server.loop.call_later(IDLE_SECONDS, self.drop)

    async def _hold(self, opened: asyncio.Future[None]) -> None:
        assert self._ending is not None
        self._server.transactions += 1
        try:
            async with self._server.data.transaction() as self._transaction:
                opened.set_result(None)
                if not await self._ending:
                    raise _RolledBack
        except _RolledBack:
            return
        finally:
            self._server.transactions -= 1
        for delivery in self._acked:
            self._server.note(
                Committed, worker=self._worker, id=delivery.id, token=self._server.token(delivery.token)
            )
