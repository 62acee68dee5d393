"""What a worker has in hand: claimed and waiting, or running."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable

from nightmail.message import Delivery


class Hand:
    """Deliveries between claim and outcome."""

    def __init__(self) -> None:
        self._waiting: deque[Delivery] = deque()
        self._running: dict[Delivery, asyncio.Task[None]] = {}
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def waiting(self) -> int:
        """Claimed, not started."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Started, not finished."""
        return len(self._running)

    @property
    def is_empty(self) -> bool:
        """Nothing waits and nothing runs."""
        return self._empty.is_set()

    def take(self, deliveries: Iterable[Delivery]) -> None:
        """These were claimed."""
        self._waiting.extend(deliveries)
        if self._waiting:
            self._empty.clear()

    def start_next(self, task: asyncio.Task[None]) -> Delivery:
        """The next one, which runs in this task from now on."""
        delivery = self._waiting.popleft()
        self._running[delivery] = task
        return delivery

    def finish(self, delivery: Delivery) -> None:
        """This one runs no more; an earlier run of the worker may have left it behind."""
        self._running.pop(delivery, None)
        self._note()

    def give_back(self, keep: int = 0) -> list[Delivery]:
        """What has not started, except for the `keep` that would start next."""
        last_first = [self._waiting.pop() for _ in range(len(self._waiting) - keep)]
        self._note()
        return last_first[::-1]

    def forget(self, delivery: Delivery) -> bool:
        """Drop this one if it has not started; whether it was there."""
        if delivery not in self._waiting:
            return False
        self._waiting.remove(delivery)
        self._note()
        return True

    def tasks(self) -> list[asyncio.Task[None]]:
        """Those in which handlers run."""
        return list(self._running.values())

    async def wait_empty(self) -> None:
        """Until nothing waits and nothing runs."""
        await self._empty.wait()

    def _note(self) -> None:
        if not self._waiting and not self._running:
            self._empty.set()
