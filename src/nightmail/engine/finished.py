"""Finished deliveries that wait to be written, in the order in which they finished.

A settlement leaves only after the store has answered for it: an outage delays, it never loses.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace

from nightmail.engine.in_flight import size_of
from nightmail.store import Settlement


class Finished:
    """Finished, not yet settled."""

    def __init__(self) -> None:
        self._waiting: deque[Settlement] = deque()
        self.bytes = 0
        """The size of the messages that these settle, in bytes."""
        self._some = asyncio.Event()
        self._none = asyncio.Event()
        self._none.set()
        self._next: Finished | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Settlement]:
        """The oldest first; they stay until dropped."""
        return iter(self._waiting)

    def put(self, settlement: Settlement) -> None:
        """One more is finished."""
        if self._next is not None:
            self._next.put(settlement)
            return
        self._waiting.append(settlement)
        self.bytes += size_of(settlement.delivery)
        if len(self._waiting) == 1:
            self._some.set()
            self._none.clear()

    def drop_first(self, count: int) -> None:
        """The store has answered for the `count` oldest."""
        for _ in range(count):
            self.bytes -= size_of(self._waiting.popleft().delivery)
        if not self._waiting:
            self._some.clear()
            self._none.set()

    def ask_again(self, batch: Sequence[Settlement]) -> None:
        """The reply for the oldest, `batch`, was lost: mark them as repeated."""
        for index, settlement in enumerate(batch):
            self._waiting[index] = replace(settlement, repeated=True)

    def put_all(self, settlements: Sequence[Settlement]) -> None:
        """More are finished, or could not be written yet: queue them behind all others."""
        if self._next is not None:
            self._next.put_all(settlements)
            return
        self._waiting.extend(settlements)
        self.bytes += sum([size_of(each.delivery) for each in settlements])
        if self._waiting:
            self._some.set()
            self._none.clear()

    def go_on_in(self, finished: Finished) -> None:
        """The next run of the worker has begun: it writes what still comes, of handlers that outlive their run."""
        self._next = finished

    async def wait_some(self) -> None:
        """Until there is something to write."""
        await self._some.wait()

    async def wait_none(self) -> None:
        """Until everything is written."""
        # Checked again: what could not be written is put back in the same step in which the others leave.
        while self._waiting:
            await self._none.wait()
