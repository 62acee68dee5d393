"""What exists while a store is open: connections, and what is remembered between calls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Final

from nightmail.clock import Clock
from nightmail.message import Delivery
from nightmail.outcome import WriteResult
from nightmail.stores.mysql.callers import Callers, Known
from nightmail.stores.mysql.claiming import Claims
from nightmail.stores.mysql.connect import Connect
from nightmail.stores.mysql.errors import is_refusal
from nightmail.stores.mysql.lane import CLAIM, KEEPER, PUBLISH, SETTLE, WATCH, Lane
from nightmail.stores.mysql.letters import LetterClaims
from nightmail.stores.mysql.link import Link
from nightmail.stores.mysql.retries import Retries
from nightmail.stores.mysql.text import Sql
from nightmail.stores.mysql.watch import WakeupPoller
from nightmail.stores.shared.coalescing import PublishCoalescer, Send
from nightmail.stores.shared.keeper_thread import KeeperThread
from nightmail.stores.sql.statements import Statement

MOST_BYTES: Final = 2 * 1024 * 1024
"""On the wire it is twice that, and by default servers accept packets up to 16 MB."""


class Runtime:
    """On one event loop, until it is closed."""

    def __init__(
        self,
        connect: Connect,
        statements: Mapping[str, Statement],
        letters: Mapping[str, Statement],
        clock: Clock,
        retries: Retries,
        known: Known,
        *,
        max_body_bytes: int,
        send: Send[Link],
        extend: Callable[[Lane, Sequence[Delivery], timedelta], Awaitable[list[WriteResult]]],
    ) -> None:
        self.claim, self.settle, self.publish = (
            Lane(role, connect, retries) for role in (CLAIM, SETTLE, PUBLISH)
        )
        self.tower = WakeupPoller(Lane(WATCH, connect, retries), statements, letters, clock)
        self.claims = Claims(self.claim, statements, clock, retries, max_body_bytes=max_body_bytes)
        self.letters = LetterClaims(self.claim, letters, clock, max_body_bytes=max_body_bytes)
        self.coalescer = PublishCoalescer(self.publish, send, is_refusal=is_refusal, most_bytes=MOST_BYTES)
        self.callers = Callers(self.publish, Sql(statements["identity"].text), known)
        self.keeper = KeeperThread(lambda: Lane(KEEPER, connect, retries), extend)

    async def close(self) -> None:
        """Close every connection, and stop the thread."""
        # Concurrently: if the server hangs, each one takes its full timeout.
        await asyncio.gather(
            self.tower.close(),
            self.keeper.close(),
            *(lane.close() for lane in (self.claim, self.publish, self.settle)),
        )
