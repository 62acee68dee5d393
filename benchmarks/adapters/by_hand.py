"""The limit: a loop written by hand on the bare driver, as durable as the rest, that does nothing but the necessary.

Each batch is leased, decoded, validated, handled one by one, and deleted. No retries, no fencing, no wake-ups, no
renewal of leases, no handler that may take long: a system that adds those is slower than this.
"""

from __future__ import annotations

import asyncio
import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Final

from benchmarks.adapters.harness import Adapter, Unsupported
from benchmarks.adapters.payload import Order
from benchmarks.adapters.tally import Tally

BATCH: Final = 500
NOTHING_SECONDS: Final = 0.002


class ByHand(Adapter):
    """A database says how it leases and deletes a batch."""

    def __init__(self) -> None:
        self._loop: asyncio.Task[None] | None = None
        self._stopping = False

    @abstractmethod
    async def insert(self, bodies: Sequence[bytes]) -> None:
        """Many in one transaction."""

    @abstractmethod
    async def lease(self) -> Sequence[tuple[Any, bytes]]:
        """Up to `BATCH` messages, as id and body, leased for a minute."""

    @abstractmethod
    async def delete(self, ids: Sequence[Any]) -> None:
        """They are done."""

    async def publish_many(self, bodies: list[dict[str, Any]], queue: str, due: float | None) -> None:
        if due is not None:
            raise Unsupported("due times")
        await self.insert([json.dumps(body).encode() for body in bodies])

    async def start(self, handlers: Mapping[str, str], tallies: Mapping[str, Tally]) -> None:
        if list(handlers.values()) != ["batch"]:
            raise Unsupported(f"{len(handlers)} queues, or handlers other than for batches")
        (tally,) = tallies.values()
        self._stopping = False
        self._loop = asyncio.create_task(self._drain(tally))

    async def _drain(self, tally: Tally) -> None:
        while not self._stopping:
            rows = await self.lease()
            if not rows:
                await asyncio.sleep(NOTHING_SECONDS)
                continue
            for _, body in rows:
                await _take(Order.model_validate_json(body))
            # Handled, and counted as soon as that: a handler of the others counts before its message is settled.
            tally.some(len(rows))
            await self.delete([id_ for id_, _ in rows])

    async def stop(self) -> None:
        """After the batch that it has."""
        self._stopping = True
        if self._loop is not None:
            await self._loop
            self._loop = None


async def _take(order: Order) -> None: ...
