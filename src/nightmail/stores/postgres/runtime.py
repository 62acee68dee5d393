"""What exists while a store is open: connections, and state kept from one call to the next."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Final

from nightmail.clock import Clock
from nightmail.message import Delivery
from nightmail.outcome import WriteResult
from nightmail.stores.postgres.callers import Callers, Tables
from nightmail.stores.postgres.claiming import Claims
from nightmail.stores.postgres.connect import Connect, Connection
from nightmail.stores.postgres.errors import is_refusal
from nightmail.stores.postgres.lane import CLAIM, KEEPER, PUBLISH, SETTLE, TIMERS, Lane
from nightmail.stores.postgres.listen import Listener
from nightmail.stores.postgres.transaction import Direct
from nightmail.stores.shared.coalescing import PublishCoalescer, Send
from nightmail.stores.shared.keeper_thread import KeeperThread
from nightmail.stores.sql.statements import Statement

MOST_BYTES: Final = 4 * 1024 * 1024


class Runtime:
    """The state of an open store, on one event loop, until it is closed."""

    def __init__(
        self,
        connect: Connect,
        statements: Mapping[str, Statement],
        clock: Clock,
        tables: Tables,
        *,
        send: Send[Connection],
        extend: Callable[[Lane, Sequence[Delivery], timedelta], Awaitable[list[WriteResult]]],
        max_body_bytes: int,
    ) -> None:
        place = tables.place
        self.claim, self.settle, self.publish, self.timers = (
            Lane(role, connect, place) for role in (CLAIM, SETTLE, PUBLISH, TIMERS)
        )
        self.claims = Claims(self.claim, statements, clock, max_body_bytes=max_body_bytes)
        self.coalescer = PublishCoalescer(self.publish, send, is_refusal=is_refusal, most_bytes=MOST_BYTES)
        self.callers = Callers(self.publish, tables)
        self.listener = Listener(connect, place, tables.channel, self._ring, self.claims.look_everywhere)
        self.keeper = KeeperThread(lambda: Lane(KEEPER, connect, place), extend)
        self._ring_statement = statements["ring"]

    async def close(self) -> None:
        """Close every connection and the thread: all at once, and soon even if the server does not answer."""
        lanes = (self.claim, self.publish, self.timers, self.settle)
        await asyncio.gather(self.listener.close(), self.keeper.close(), *(lane.close() for lane in lanes))

    async def _ring(self, channel: str) -> None:
        values = {"on_channel": channel, "queue": ""}
        await self.publish.run(lambda connection: Direct(connection).rows(self._ring_statement, values))
