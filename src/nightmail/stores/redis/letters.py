"""Dead letters are claimed like messages, but without keys, priorities and shares: the longest due go first."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from operator import attrgetter
from typing import Final
from uuid import UUID

from nightmail.errors import StoreUnavailable
from nightmail.message import Delivery
from nightmail.store import Claimed
from nightmail.stores.redis.by_node import AGAIN_SOON, ByNode
from nightmail.stores.redis.claiming import NOTHING, QueueRotation, recalled, size_of
from nightmail.stores.redis.lane import Lane
from nightmail.stores.redis.letter_records import letter_records
from nightmail.stores.redis.nodes import Nodes, by_slot
from nightmail.stores.redis.script_calls import NO_LETTER, ScriptCalls
from nightmail.stores.redis.times import micros

_AGE: Final = attrgetter("due_at", "id")


class Letters:
    """Claims of dead letters, on the connection for claims."""

    def __init__(self, lane: Lane, calls: ScriptCalls, nodes: Nodes) -> None:
        self._lane = lane
        self._calls = calls
        self._nodes = nodes
        self._rotation = QueueRotation()
        self._by_node = ByNode(lane, calls, nodes, "recall_dead")

    async def claim(
        self, queues: Sequence[str], *, limit: int, lease: timedelta, token: UUID, max_bytes: int
    ) -> Claimed:
        """See `Store.claim_dead`. One call for each slot, in turn, until there are enough."""
        wanted = tuple(dict.fromkeys(queues))
        if not wanted or limit <= 0:
            return NOTHING
        claimed: list[Delivery] = []
        waits: list[timedelta] = []
        failure: StoreUnavailable | None = None
        asked = full = False
        groups = self._groups(self._rotation.next(wanted))
        alone = await self._by_node.alone([[tag for tag, _ in group] for group in groups])
        for group in groups:
            room, left = limit - len(claimed), max_bytes - size_of(claimed)
            if full := full or room <= 0 or (left <= 0 and bool(claimed)):
                break
            tags = [tag for tag, _ in group]
            call = self._calls.call(
                "claim_dead", tags, room, micros(lease), token.bytes, left, int(not claimed)
            )
            try:
                wait, found, more = await self._by_node.claim(call, token, lease, alone=alone)
            except StoreUnavailable as error:
                if alone:
                    raise
                # Other queues need not wait for it.
                failure = error
                continue
            asked = True
            full = bool(more)
            claimed += _deliveries(group, found, token)
            if wait:
                waits.append(timedelta(microseconds=int(wait)))
        if failure is not None:
            if not asked:
                raise failure
            waits.append(AGAIN_SOON)
        claimed.sort(key=_AGE)
        return Claimed(claimed, None if full else min(waits, default=None), full)

    async def recall(self, queues: Sequence[str], token: UUID) -> int:
        """See `Store.recall_dead`."""
        groups = self._groups(tuple(dict.fromkeys(queues)))
        return await recalled("recall_dead", self._lane, self._calls, groups, token, NO_LETTER)

    def _groups(self, queues: Sequence[str]) -> list[list[tuple[str, str]]]:
        return by_slot(self._nodes, ((self._calls.keys.tag(queue), queue) for queue in queues))


def _deliveries(group: Sequence[tuple[str, str]], found: bytes, token: UUID) -> list[Delivery]:
    return [record.delivery(group[record.message.place - 1][1], token) for record in letter_records(found)]
