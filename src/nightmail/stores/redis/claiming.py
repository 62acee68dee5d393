"""Claims: which queue is next, and in which order the messages found are delivered."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from enum import IntEnum
from typing import ClassVar, Final
from uuid import UUID

from nightmail.limits import MAX_STORED_HEADERS_BYTES
from nightmail.message import Delivery
from nightmail.store import Claimed
from nightmail.stores.redis.lane import Lane
from nightmail.stores.redis.records import deliveries
from nightmail.stores.redis.registry import Registry
from nightmail.stores.redis.requests import Call
from nightmail.stores.redis.script_calls import ScriptCalls
from nightmail.stores.redis.times import micros
from nightmail.stores.shared.fairness import ONE_IN, FairShare
from nightmail.stores.shared.wanted import Wanted

_ASKED_AT_ONCE: Final = 50
"""How many queues a look ahead reads in one call: they take the server 3 ms, in which it serves no other client."""


class End(IntEnum):
    """How a claim's script ended."""

    ALL = 0
    """It took all there was."""
    MORE = 1
    """There may be more."""
    PROBE = 2
    """It took one message, as the probe of a paused queue."""
    PROBE_FIRST = 3
    """It took nothing: a queue is to be probed, but the claim has messages of another slot already."""


class QueueRotation:
    """The rotation among queues that are claimed from together."""

    def __init__(self) -> None:
        self._claims: defaultdict[frozenset[str], int] = defaultdict(int)

    def next(self, wanted: Wanted) -> Wanted:
        """The same, its queues beginning with another one each time."""
        queues = wanted.queues
        key = frozenset(queues)
        first = self._claims[key] % len(queues)
        self._claims[key] += 1
        return replace(wanted, queues=queues[first:] + queues[:first])


class Claiming(ABC):
    """Claims of one kind, messages or dead letters: one call of a script each."""

    recall_script: ClassVar[str]

    def __init__(
        self, lane: Lane, calls: ScriptCalls, read: Callable[[bytes, Sequence[str], UUID], list[Delivery]]
    ) -> None:
        self.lane = lane
        self.calls = calls
        self.read = read
        """What was claimed, from the answer of the script, the queues and the token."""
        self.rotation = QueueRotation()

    async def claim(self, wanted: Wanted) -> Claimed:
        """See `Store.claim`."""
        wanted = self.rotation.next(wanted)
        ((wait, found, end),) = await self.lane.run(await self.prepared(wanted, first=True))
        claimed = self.read(found, wanted.queues, wanted.token)
        self.put_in_order(claimed, wanted.queues)
        next_in = timedelta(microseconds=int(wait)) if wait and not end else None
        return Claimed(claimed, next_in, end != End.ALL, end == End.PROBE)

    async def recall(self, queues: Sequence[str], token: UUID) -> int:
        """See `Store.recall`."""
        return await self.hand_back(self.tags(tuple(dict.fromkeys(queues))), token.bytes) if queues else 0

    async def hand_back(self, tags: Sequence[str], token: bytes) -> int:
        """Recall what was claimed under this token from the queues with these tags, all in one slot; how many.

        In portions: while a script runs, no other client is served, and there may be many leases to look at.
        """
        count, cursor = 0, b""
        while True:
            call = self.calls.call(self.recall_script, tags, token, cursor, letter=await self.first_letter())
            ((part, cursor),) = await self.lane.run(call)
            count += int(part)
            if not cursor:
                return count

    def tags(self, queues: Sequence[str]) -> list[str]:
        """What the keys of these queues begin with."""
        return [self.calls.keys.tag(queue) for queue in queues]

    @abstractmethod
    async def first_letter(self) -> int:
        """An id for the first dead letter that a call makes."""

    @abstractmethod
    async def prepared(self, wanted: Wanted, *, first: bool) -> Call:
        """The call that claims this. `first`: nothing was claimed before it, so that the first message is taken
        whatever its size, and a queue may be probed.
        """

    @abstractmethod
    def put_in_order(self, claimed: list[Delivery], queues: Sequence[str]) -> None:
        """Sort them as they are to be delivered."""


def limits(wanted: Wanted, *, first: bool) -> tuple[int | bytes, ...]:
    """The arguments that every claim has."""
    return wanted.limit, micros(wanted.lease), wanted.token.bytes, wanted.max_bytes, int(first)


class Claims(Claiming):
    """Claims of messages, and what one process remembers between them: shares, and the rotation of queues."""

    recall_script = "recall"

    def __init__(self, lane: Lane, registry: Registry, calls: ScriptCalls, max_body_bytes: int) -> None:
        super().__init__(lane, calls, deliveries)
        self._registry = registry
        self._max_body_bytes = max_body_bytes
        self._shares = FairShare()

    async def first_letter(self) -> int:
        """See `Claiming`. Unreadable messages become dead letters, under our ids."""
        return (await self._registry.ids()).next()

    async def look_ahead(self, queues: Sequence[str]) -> dict[str, timedelta]:
        """See `LooksAhead.look_ahead`. All these queues are in one slot."""
        expected: dict[str, timedelta] = {}
        for start in range(0, len(queues), _ASKED_AT_ONCE):
            some = queues[start : start + _ASKED_AT_ONCE]
            (waits,) = await self.lane.run(self.calls.call("look_ahead", self.tags(some)))
            expected |= {
                queue: timedelta(microseconds=int(wait))
                for queue, wait in zip(some, waits, strict=True)
                if wait
            }
        return expected

    async def prepared(self, wanted: Wanted, *, first: bool) -> Call:
        """See `Claiming`."""
        return self.calls.call(
            "claim",
            self.tags(wanted.queues),
            *limits(wanted, first=first),
            self._max_body_bytes,
            MAX_STORED_HEADERS_BYTES,
            *(self._until_oldest(queue) for queue in wanted.queues),
            letter=await self.first_letter(),
        )

    def put_in_order(self, claimed: list[Delivery], queues: Sequence[str]) -> None:
        """Queue by queue; of each the share of the oldest first, then by priority."""
        self._shares.put_in_order(claimed, queues)

    def _until_oldest(self, queue: str) -> int:
        """Which of the next messages is the oldest, whatever its priority."""
        return next(count for count in range(1, ONE_IN + 1) if self._shares.reserved(queue, count))
