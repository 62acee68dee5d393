"""What a worker has in flight: claimed and waiting, or running."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from nightmail.engine.result import Result
from nightmail.engine.slot import HandlerSlot
from nightmail.message import Delivery


def size_of(delivery: Delivery) -> int:
    """How many bytes of memory this message takes, as a claim counts them."""
    return len(delivery.body) + len(delivery.encoded_headers)


class InFlight:
    """Deliveries between claim and outcome."""

    def __init__(self) -> None:
        self._waiting: deque[Delivery] = deque()
        self.slots: list[HandlerSlot] = []
        """The handler slots, each with what it runs."""
        self.waiting_bytes = 0
        """The size of those that have not started, in bytes."""
        self.running = 0
        """Started, not finished."""
        self.handlers = 0
        """How many handlers those run in."""
        self._empty = asyncio.Event()
        self._empty.set()
        self._alone: tuple[Delivery, Callable[[], object]] | None = None

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
        for delivery in deliveries:
            self._waiting.append(delivery)
            self.waiting_bytes += size_of(delivery)
        if self._waiting:
            self._empty.clear()

    def take_alone(self, delivery: Delivery, ended: Callable[[], object]) -> None:
        """This one was claimed to run alone; `ended` is called once it ran, was lost, or was handed back."""
        self._alone = delivery, ended
        self.take([delivery])

    def start_next(self, slot: HandlerSlot, now: float) -> Delivery:
        """Start the next one in this slot."""
        delivery = self._waiting.popleft()
        self.waiting_bytes -= size_of(delivery)
        slot.results = {delivery: Result()}
        slot.begun = now
        slot.overdue = False
        self.running += 1
        self.handlers += 1
        return delivery

    def start_batch(self, slot: HandlerSlot, now: float, limit: int) -> list[Delivery]:
        """Start the next ones, at most `limit`, together in this slot.

        What has failed before goes in smaller batches, and soon alone: one message that fails its whole batch would
        otherwise fail the others with it forever.
        """
        attempts = self._waiting[0].attempts
        size = max(limit >> 3 * min(attempts, 10), 1)
        batch = [self._waiting.popleft()]
        while len(batch) < size and self._waiting and self._waiting[0].attempts == attempts:
            batch.append(self._waiting.popleft())
        self.waiting_bytes -= sum(map(size_of, batch))
        slot.results = {delivery: Result() for delivery in batch}
        slot.begun = now
        slot.overdue = False
        self.running += len(batch)
        self.handlers += 1
        return batch

    def narrow(self, slot: HandlerSlot, held: Sequence[Delivery]) -> None:
        """Keep only these of the batch in this slot, at least one: the others were lost before they could start."""
        self.running -= len(slot.results) - len(held)
        slot.results = {delivery: slot.results[delivery] for delivery in held}

    def finish(self, slot: HandlerSlot) -> None:
        """What ran in this slot has ended."""
        self.running -= len(slot.results)
        self.handlers -= 1
        slot.results = {}
        if not self.running or self._alone is not None:
            self._note()

    def give_back(self, keep: int = 0) -> list[Delivery]:
        """What has not started, except for the `keep` that would start next."""
        last_first = [self._waiting.pop() for _ in range(len(self._waiting) - keep)]
        self.waiting_bytes -= sum(map(size_of, last_first))
        self._note()
        return last_first[::-1]

    def forget(self, delivery: Delivery) -> bool:
        """Drop this one if it has not started; whether it was there."""
        if delivery not in self._waiting:
            return False
        self._waiting.remove(delivery)
        self.waiting_bytes -= size_of(delivery)
        self._note()
        return True

    def tasks(self) -> list[asyncio.Task[None]]:
        """The tasks in which handlers run."""
        return [slot.task for slot in self.slots if slot.results]

    async def wait_empty(self) -> None:
        """Until nothing waits and nothing runs."""
        await self._empty.wait()

    def _note(self) -> None:
        if not self._waiting and not self.running:
            self._empty.set()
        if self._alone is not None:
            delivery, ended = self._alone
            if delivery not in self._waiting and all(delivery not in slot.results for slot in self.slots):
                self._alone = None
                ended()
