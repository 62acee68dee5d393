"""A message that may have killed its process runs alone, so that it takes no neighbours along.

A process that dies takes everything in its hands with it, and each of those messages is one delivery closer to
being buried. From its third unexplained loss on a message is a suspect: it starts only when nothing else is in
hand, in its own worker and, as far as they come to rest in time, in the others of this process.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

from nightmail.hand import Hand
from nightmail.message import Delivery

SUSPECT_FROM: Final = 3
# A neighbour's long handler must not keep a suspect, and with it everybody's claims, waiting for ever.
PATIENCE_SECONDS: Final = 10.0


def is_suspect(delivery: Delivery) -> bool:
    """Whether workers were lost with this message often enough to keep it away from others."""
    return delivery.deliveries >= SUSPECT_FROM


class Solitude:
    """Shared by the workers of one process: one suspect at a time, and no claims meanwhile."""

    def __init__(self) -> None:
        self._hands: set[Hand] = set()
        self._free = asyncio.Event()
        self._free.set()

    def join(self, hand: Hand) -> None:
        """Count this worker's hand among the neighbours."""
        self._hands.add(hand)

    def leave(self, hand: Hand) -> None:
        """It has stopped."""
        self._hands.discard(hand)

    @property
    def taken(self) -> bool:
        """Whether a suspect runs, or is about to."""
        return not self._free.is_set()

    async def wait_free(self) -> None:
        """Until no suspect runs."""
        await self._free.wait()

    @asynccontextmanager
    async def alone(self, hand: Hand) -> AsyncIterator[None]:
        """Take the process for `hand`, whose worker has nothing else in it; others finish what they have."""
        self._free.clear()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE_SECONDS):
                    for neighbour in self._hands - {hand}:
                        await neighbour.wait_empty()
            yield
        finally:
            self._free.set()
