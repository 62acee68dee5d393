"""Claims: which queue is next, and in which order the messages found are delivered."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import timedelta
from operator import attrgetter
from typing import Final
from uuid import UUID

from nightmail.errors import StoreUnavailable
from nightmail.limits import MAX_STORED_HEADERS_BYTES
from nightmail.message import Delivery
from nightmail.store import Claimed
from nightmail.stores.redis.by_node import AGAIN_SOON, ByNode
from nightmail.stores.redis.lane import Lane
from nightmail.stores.redis.nodes import Nodes, by_slot
from nightmail.stores.redis.records import records
from nightmail.stores.redis.registry import Registry
from nightmail.stores.redis.script_calls import ScriptCalls
from nightmail.stores.redis.times import micros
from nightmail.stores.shared.fairness import ONE_IN, FairShare

NOTHING: Final = Claimed((), None)

_AGE: Final = attrgetter("due_at", "id")
_PRIORITY: Final = attrgetter("priority")


class QueueRotation:
    """The rotation among queues that are claimed from together."""

    def __init__(self) -> None:
        self._rotation: defaultdict[frozenset[str], int] = defaultdict(int)

    def next(self, queues: tuple[str, ...]) -> tuple[str, ...]:
        """These queues, beginning with another one each time."""
        key = frozenset(queues)
        first = self._rotation[key] % len(queues)
        self._rotation[key] += 1
        return queues[first:] + queues[:first]


class Claims:
    """What the claims of one process remember between calls: shares, and the rotation of queues."""

    def __init__(
        self, lane: Lane, registry: Registry, calls: ScriptCalls, nodes: Nodes, max_body_bytes: int
    ) -> None:
        self._lane = lane
        self._max_body_bytes = max_body_bytes
        self._by_node = ByNode(lane, calls, nodes, "recall")
        self._registry = registry
        self._calls = calls
        self._nodes = nodes
        self._shares = FairShare()
        self._rotation = QueueRotation()

    async def claim(
        self, queues: Sequence[str], *, limit: int, lease: timedelta, token: UUID, max_bytes: int
    ) -> Claimed:
        """See `Store.claim`. One call for each slot, in turn, until there are enough."""
        wanted = tuple(dict.fromkeys(queues))
        if not wanted or limit <= 0:
            return NOTHING
        # Unreadable messages become dead letters, under our ids.
        ids = await self._registry.ids()
        handed_out: list[Delivery] = []
        next_in: timedelta | None = None
        failure: StoreUnavailable | None = None
        asked = full = False
        groups = self._groups(self._rotation.next(wanted))
        alone = await self._by_node.alone([[tag for tag, _ in group] for group in groups])
        for group in groups:
            room, left = limit - len(handed_out), max_bytes - size_of(handed_out)
            if full := full or room <= 0 or (left <= 0 and bool(handed_out)):
                break
            call = self._calls.call(
                "claim",
                [tag for tag, _ in group],
                room,
                micros(lease),
                token.bytes,
                left,
                int(not handed_out),
                self._max_body_bytes,
                MAX_STORED_HEADERS_BYTES,
                *(self._until_oldest(queue) for _, queue in group),
                letter=ids.next(),
            )
            try:
                wait, found, more = await self._by_node.claim(call, token, lease, alone=alone)
            except StoreUnavailable as error:
                if alone:
                    raise
                # Other queues need not wait for it.
                failure = error
                continue
            handed_out += self._in_order(group, found, token)
            asked = True
            full = bool(more)
            if wait:
                waiting = timedelta(microseconds=int(wait))
                next_in = waiting if next_in is None else min(next_in, waiting)
        if failure is not None:
            if not asked:
                raise failure
            next_in = AGAIN_SOON if next_in is None else min(next_in, AGAIN_SOON)
        return Claimed(handed_out, None if full else next_in, full)

    async def recall(self, queues: Sequence[str], token: UUID) -> int:
        """See `Store.recall`."""
        ids = await self._registry.ids()
        return await recalled("recall", self._lane, self._calls, self._groups(queues), token, ids.next())

    def _groups(self, queues: Iterable[str]) -> list[list[tuple[str, str]]]:
        wanted = dict.fromkeys(queues)
        return by_slot(self._nodes, ((self._calls.keys.tag(queue), queue) for queue in wanted))

    def _until_oldest(self, queue: str) -> int:
        """Which of the next messages is the oldest, whatever its priority."""
        return next(count for count in range(1, ONE_IN + 1) if self._shares.reserved(queue, count))

    def _in_order(self, group: Sequence[tuple[str, str]], found: bytes, token: UUID) -> list[Delivery]:
        by_queue: defaultdict[str, list[Delivery]] = defaultdict(list)
        for record in records(found):
            queue = group[record.place - 1][1]
            by_queue[queue].append(record.delivery(queue, token))
        handed_out: list[Delivery] = []
        for _, queue in group:
            if taken := by_queue.get(queue):
                # The share of the oldest first, then by priority. The sort is stable.
                taken.sort(key=_AGE)
                share = self._shares.reserved(queue, len(taken))
                self._shares.claimed(queue, len(taken))
                handed_out += taken[:share]
                handed_out += sorted(taken[share:], key=_PRIORITY, reverse=True)
        return handed_out


async def recalled(
    script: str,
    lane: Lane,
    calls: ScriptCalls,
    groups: Sequence[Sequence[tuple[str, str]]],
    token: UUID,
    letter: int,
) -> int:
    """Recall in each slot; returns how many. A node that does not answer holds up none of the others."""
    requests = [calls.call(script, [tag for tag, _ in group], token.bytes, letter=letter) for group in groups]
    answers = await asyncio.gather(*(lane.call(call) for call in requests), return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    return sum(int(answer[0]) for answer in answers if not isinstance(answer, BaseException))


def size_of(deliveries: Sequence[Delivery]) -> int:
    """How many bytes these took to read."""
    return sum(len(delivery.body) + len(delivery.encoded_headers) for delivery in deliveries)
