"""Claims: whose turn it is, and in which order what was found is handed out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import timedelta
from operator import attrgetter
from typing import Final
from uuid import UUID

from nightmail.message import Delivery
from nightmail.store import Claimed
from nightmail.stores._fairness import ONE_IN, FairShare
from nightmail.stores.redis.asking import Asking
from nightmail.stores.redis.errors import Moving
from nightmail.stores.redis.lane import Lane
from nightmail.stores.redis.moments import micros
from nightmail.stores.redis.nodes import Nodes, by_slot
from nightmail.stores.redis.records import records
from nightmail.stores.redis.registry import Registry

NOTHING: Final = Claimed((), None)
AGAIN_SOON: Final = timedelta(seconds=1)
"""When to look again at a queue that could not be asked."""

_AGE: Final = attrgetter("due_at", "id")
_PRIORITY: Final = attrgetter("priority")


class Turns:
    """Whose turn it is among queues that are claimed from together."""

    def __init__(self) -> None:
        self._turns: defaultdict[frozenset[str], int] = defaultdict(int)

    def next(self, queues: tuple[str, ...]) -> tuple[str, ...]:
        """These queues, beginning with another one each time."""
        key = frozenset(queues)
        first = self._turns[key] % len(queues)
        self._turns[key] += 1
        return queues[first:] + queues[:first]


class Claims:
    """What claims of one process remember from one to the next: shares, and whose turn it is."""

    def __init__(self, lane: Lane, registry: Registry, asking: Asking, nodes: Nodes) -> None:
        self._lane = lane
        self._registry = registry
        self._asking = asking
        self._nodes = nodes
        self._shares = FairShare()
        self._turns = Turns()

    async def claim(self, queues: Sequence[str], *, limit: int, lease: timedelta, token: UUID) -> Claimed:
        """See `Store.claim`. One call for each slot, in turn, until there are enough."""
        wanted = tuple(dict.fromkeys(queues))
        if not wanted or limit <= 0:
            return NOTHING
        # What was tampered with is buried, under ids of ours.
        ids = await self._registry.enter()
        handed_out: list[Delivery] = []
        next_in: timedelta | None = None
        moving: Moving | None = None
        asked = False
        for group in self._groups(self._turns.next(wanted)):
            room = limit - len(handed_out)
            if room <= 0:
                break
            call = self._asking.call(
                "claim",
                [tag for tag, _ in group],
                room,
                micros(lease),
                token.bytes,
                *(self._until_oldest(queue) for _, queue in group),
                letter=ids.next(),
            )
            try:
                ((wait, found),) = await self._lane.call(call)
            except Moving as error:
                # Nothing was taken there, and other queues need not wait for it.
                moving = error
                continue
            handed_out += self._in_order(group, found, token)
            asked = True
            if wait:
                waiting = timedelta(microseconds=int(wait))
                next_in = waiting if next_in is None else min(next_in, waiting)
        if moving is not None:
            if not asked:
                raise moving
            next_in = AGAIN_SOON if next_in is None else min(next_in, AGAIN_SOON)
        return Claimed(handed_out, None if len(handed_out) >= limit else next_in)

    async def recall(self, queues: Sequence[str], token: UUID) -> Sequence[Delivery]:
        """See `Store.recall`."""
        recalled: list[Delivery] = []
        for group in self._groups(tuple(dict.fromkeys(queues))):
            call = self._asking.call("recall", [tag for tag, _ in group], token.bytes)
            (found,) = await self._lane.call(call)
            recalled += [record.delivery(group[record.place - 1][1], token) for record in records(found)]
        return recalled

    def _groups(self, queues: Iterable[str]) -> list[list[tuple[str, str]]]:
        return by_slot(self._nodes, ((self._asking.keys.tag(queue), queue) for queue in queues))

    def _until_oldest(self, queue: str) -> int:
        """How many messages it is until one goes to the oldest."""
        return next(count for count in range(1, ONE_IN + 1) if self._shares.reserved(queue, count))

    def _in_order(self, group: Sequence[tuple[str, str]], found: bytes, token: UUID) -> list[Delivery]:
        by_queue: defaultdict[str, list[Delivery]] = defaultdict(list)
        for record in records(found):
            queue = group[record.place - 1][1]
            by_queue[queue].append(record.delivery(queue, token))
        handed_out: list[Delivery] = []
        for _, queue in group:
            if taken := by_queue.get(queue):
                # The share of the oldest first, then by priority. A sort keeps the order of equals.
                taken.sort(key=_AGE)
                share = self._shares.reserved(queue, len(taken))
                self._shares.claimed(queue, len(taken))
                handed_out += taken[:share]
                handed_out += sorted(taken[share:], key=_PRIORITY, reverse=True)
        return handed_out
