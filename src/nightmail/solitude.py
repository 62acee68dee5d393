"""A message that may have killed its process runs alone, so that it takes no neighbours along.

A process that dies takes everything in its hands with it, and each of those messages is one delivery closer to
being buried. From its third unexplained loss on a message is a suspect: it starts only when nothing else is in
hand, in its own worker and, as far as they come to rest in time, in the others of this process.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final, Protocol

from nightmail.message import Delivery

SUSPECT_FROM: Final = 3
# A neighbour's long handler must not keep a suspect, and with it everybody's claims, waiting for ever.
PATIENCE_SECONDS: Final = 10.0
# Polled: a suspect is rare, and a message leaves its worker in too many places to ring a bell in each.
_POLL_SECONDS: Final = 0.005


def is_suspect(delivery: Delivery) -> bool:
    """Whether workers were lost with this message often enough to keep it away from others."""
    return delivery.deliveries >= SUSPECT_FROM


class Neighbour(Protocol):
    """A worker, as far as the others of its process are concerned."""

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing is leased to it that could be taken along."""
        ...


class Solitude:
    """Shared by the workers of one process: one suspect at a time, and no claims meanwhile."""

    def __init__(self) -> None:
        self._workers: set[Neighbour] = set()
        self._free = asyncio.Event()
        self._free.set()

    def join(self, worker: Neighbour) -> None:
        """Count this worker among the neighbours."""
        self._workers.add(worker)

    def leave(self, worker: Neighbour) -> None:
        """It has stopped."""
        self._workers.discard(worker)

    @property
    def taken(self) -> bool:
        """Whether a suspect runs, or is about to."""
        return not self._free.is_set()

    async def wait_free(self) -> None:
        """Until no suspect runs."""
        while self.taken:
            await self._free.wait()

    @asynccontextmanager
    async def alone(self, worker: Neighbour) -> AsyncIterator[None]:
        """Take the process for `worker`, which has nothing else in hand; the others finish what they have."""
        self._free.clear()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE_SECONDS):
                    while not all(other.is_at_rest for other in self._workers - {worker}):  # noqa: ASYNC110
                        await asyncio.sleep(_POLL_SECONDS)
            yield
        finally:
            self._free.set()
