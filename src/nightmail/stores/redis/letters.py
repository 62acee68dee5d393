"""Dead letters are claimed like messages, but without keys, priorities and shares: the longest due go first."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from operator import attrgetter
from typing import Final
from uuid import UUID

from nightmail.message import Delivery
from nightmail.store import Claimed
from nightmail.stores.redis.asking import Asking
from nightmail.stores.redis.claiming import AGAIN_SOON, NOTHING, Turns
from nightmail.stores.redis.errors import Moving
from nightmail.stores.redis.lane import Lane
from nightmail.stores.redis.letter_records import letter_records
from nightmail.stores.redis.moments import micros
from nightmail.stores.redis.nodes import Nodes, by_slot

_AGE: Final = attrgetter("due_at", "id")


class Letters:
    """Claims of dead letters, on the connection for claims."""

    def __init__(self, lane: Lane, asking: Asking, nodes: Nodes) -> None:
        self._lane = lane
        self._asking = asking
        self._nodes = nodes
        self._turns = Turns()

    async def claim(self, queues: Sequence[str], *, limit: int, lease: timedelta, token: UUID) -> Claimed:
        """See `Store.claim_dead`. One call for each slot, in turn, until there are enough."""
        wanted = tuple(dict.fromkeys(queues))
        if not wanted or limit <= 0:
            return NOTHING
        claimed: list[Delivery] = []
        waits: list[timedelta] = []
        moving: Moving | None = None
        asked = False
        for group in self._groups(self._turns.next(wanted)):
            room = limit - len(claimed)
            if room <= 0:
                break
            tags = [tag for tag, _ in group]
            call = self._asking.call("claim_dead", tags, room, micros(lease), token.bytes)
            try:
                ((wait, found),) = await self._lane.call(call)
            except Moving as error:
                # Nothing was taken there, and other queues need not wait for it.
                moving = error
                continue
            asked = True
            claimed += _deliveries(group, found, token)
            if wait:
                waits.append(timedelta(microseconds=int(wait)))
        if moving is not None:
            if not asked:
                raise moving
            waits.append(AGAIN_SOON)
        claimed.sort(key=_AGE)
        return Claimed(claimed, None if len(claimed) >= limit else min(waits, default=None))

    async def recall(self, queues: Sequence[str], token: UUID) -> Sequence[Delivery]:
        """See `Store.recall_dead`."""
        recalled: list[Delivery] = []
        for group in self._groups(tuple(dict.fromkeys(queues))):
            call = self._asking.call("recall_dead", [tag for tag, _ in group], token.bytes)
            (found,) = await self._lane.call(call)
            recalled += _deliveries(group, found, token)
        return recalled

    def _groups(self, queues: Sequence[str]) -> list[list[tuple[str, str]]]:
        return by_slot(self._nodes, ((self._asking.keys.tag(queue), queue) for queue in queues))


def _deliveries(group: Sequence[tuple[str, str]], found: bytes, token: UUID) -> list[Delivery]:
    return [record.delivery(group[record.message.place - 1][1], token) for record in letter_records(found)]
