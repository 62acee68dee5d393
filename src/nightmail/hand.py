"""What a worker has in hand: claimed and waiting, or running."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable

from nightmail.message import Delivery
from nightmail.run import Run


class Hand:
    """Deliveries between claim and outcome."""

    def __init__(self) -> None:
        self._waiting: deque[Delivery] = deque()
        self.runs: list[Run] = []
        """The runners, each with what it runs."""
        self.running = 0
        """Started, not finished."""
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def waiting(self) -> int:
        """Claimed, not started."""
        return len(self._waiting)

    @property
    def is_empty(self) -> bool:
        """Nothing waits and nothing runs."""
        return self._empty.is_set()

    def take(self, deliveries: Iterable[Delivery]) -> None:
        """These were claimed."""
        self._waiting.extend(deliveries)
        if self._waiting:
            self._empty.clear()

    def start_next(self, run: Run, now: float) -> Delivery:
        """The next one, which runs here from now on."""
        run.delivery = delivery = self._waiting.popleft()
        run.begun = now
        run.overdue = False
        self.running += 1
        return delivery

    def finish(self, run: Run) -> None:
        """What ran here runs no more."""
        run.delivery = None
        self.running -= 1
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
        return [run.task for run in self.runs if run.delivery is not None]

    async def wait_empty(self) -> None:
        """Until nothing waits and nothing runs."""
        await self._empty.wait()

    def _note(self) -> None:
        if not self._waiting and not self.running:
            self._empty.set()
