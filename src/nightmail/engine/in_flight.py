"""What a worker has in flight: claimed and waiting, or running."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Sequence

from nightmail.engine.result import Result
from nightmail.engine.slot import HandlerSlot
from nightmail.message import Delivery


def size_of(delivery: Delivery) -> int:
    """How many bytes of memory this message takes, as a claim counts them."""
    return len(delivery.body) + len(delivery.encoded_headers)


class InFlight:
    """Deliveries between claim and outcome."""

    def __init__(self, patience: float = math.inf) -> None:
        """`patience` is how many seconds after it was checked for pauses a message may start unchecked."""
        self._patience = patience
        self.stale_from = math.inf
        """From when on what starts next has to be checked again."""
        self._claims: deque[tuple[Delivery, float]] = deque()
        """The last message of each claim of which some wait, oldest first, and from when on they are stale."""
        self._last: Delivery | None = None
        """The last message of the oldest of those claims."""
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

    def take(self, deliveries: Sequence[Delivery], checked: float = 0.0) -> None:
        """These were claimed, by a claim sent at that moment: so far none of them was paused."""
        if not deliveries:
            return
        self._waiting.extend(deliveries)
        self.waiting_bytes += sum(map(size_of, deliveries))
        self._claims.append((deliveries[-1], checked + self._patience))
        if self._last is None:
            self._last, self.stale_from = self._claims[0]
        self._empty.clear()

    def take_alone(self, delivery: Delivery, ended: Callable[[], object]) -> None:
        """This one was claimed a while ago, to run alone; `ended` is called once it ran, was lost or handed back."""
        self._alone = delivery, ended
        self.take([delivery])

    def start(self, slot: HandlerSlot, now: float, limit: int = 1) -> None:
        """Start the next one in this slot, or the next ones together, at most `limit`.

        What has failed before goes in smaller batches, and soon alone: one message that fails its whole batch would
        otherwise fail the others with it forever.
        """
        waiting = self._waiting
        attempts = waiting[0].attempts
        slot.results = {}
        for _ in range(max(limit >> 3 * min(attempts, 10), 1)):
            if not waiting or waiting[0].attempts != attempts:
                break
            delivery = waiting.popleft()
            self.waiting_bytes -= size_of(delivery)
            slot.results[delivery] = Result()
            if delivery is self._last:
                self._next_claim()
        slot.begun = now
        slot.overdue = False
        if slot.stopped:
            slot.stopped = {}
        self.running += len(slot.results)
        self.handlers += 1

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
        if last_first:
            self._regroup(self.stale_from)
        self._note()
        return last_first[::-1]

    def take_out(self, which: Callable[[Delivery], bool]) -> list[Delivery]:
        """Those of these that have not started: they no longer wait here."""
        found = [delivery for delivery in self._waiting if which(delivery)]
        if found:
            left = set(self._waiting).difference(found)
            self._waiting = deque(delivery for delivery in self._waiting if delivery in left)
            self.waiting_bytes -= sum(map(size_of, found))
            self._regroup(self.stale_from)
            self._note()
        return found

    def were_checked(self, until: float) -> None:
        """All that wait are known not to be paused; that counts until then."""
        self._regroup(until)

    def forget(self, delivery: Delivery) -> bool:
        """Drop this one if it has not started; whether it was there."""
        if delivery not in self._waiting:
            return False
        self._waiting.remove(delivery)
        self.waiting_bytes -= size_of(delivery)
        self._regroup(self.stale_from)
        self._note()
        return True

    def find(self, id_: int) -> Delivery | None:
        """The message with this id, if it waits or runs here."""
        running = (delivery for slot in self.slots for delivery in slot.results)
        return next((delivery for delivery in (*self._waiting, *running) if delivery.id == id_), None)

    def tasks(self) -> list[asyncio.Task[None]]:
        """The tasks in which handlers run."""
        return [slot.task for slot in self.slots if slot.results]

    async def wait_empty(self) -> None:
        """Until nothing waits and nothing runs."""
        await self._empty.wait()

    def _next_claim(self) -> None:
        """All of the oldest claim have started."""
        self._claims.popleft()
        self._last, self.stale_from = self._claims[0] if self._claims else (None, math.inf)

    def _regroup(self, stale_from: float) -> None:
        """Count all that wait as one claim: what was there is gone in part, and an early check costs little."""
        self._claims.clear()
        self._last, self.stale_from = None, math.inf
        if self._waiting:
            self._last, self.stale_from = self._waiting[-1], stale_from
            self._claims.append((self._last, stale_from))

    def _note(self) -> None:
        if not self._waiting and not self.running:
            self._empty.set()
        if self._alone is not None:
            delivery, ended = self._alone
            if delivery not in self._waiting and all(delivery not in slot.results for slot in self.slots):
                self._alone = None
                ended()
