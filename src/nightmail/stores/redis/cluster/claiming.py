"""Claims in a cluster ask slot after slot, and one node that does not answer must not keep the others from being asked.

The probe of a paused queue comes alone. Which slot has one to give is known only when it is asked: what was claimed of
others by then is handed back.

A call that is not answered in time may still lease messages, under a token that no worker has. So the token is
remembered, and recalled before the next claim of the same queues.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Final
from uuid import UUID

from nightmail.errors import StoreUnavailable
from nightmail.message import Delivery
from nightmail.store import Claimed
from nightmail.stores.redis.claiming import Claiming, End
from nightmail.stores.redis.connect import Address
from nightmail.stores.redis.nodes import Nodes, by_slot
from nightmail.stores.redis.requests import Call, Reply
from nightmail.stores.shared.to_the_end import ToTheEnd, forget_error
from nightmail.stores.shared.wanted import Wanted

NODE_SECONDS: Final = 1.0
"""How long to wait for one node while others could be asked. Longer than a healthy one ever takes."""
AGAIN_SOON: Final = timedelta(seconds=1)
"""When to look again at a queue that could not be asked."""
_MOST: Final = 1000


class NoAnswer(StoreUnavailable):
    """A node of the cluster does not answer. Other queues are served meanwhile."""


class ClusterClaiming:
    """Claims of one kind: one call for each slot, to the node that has its queues."""

    def __init__(self, claiming: Claiming, nodes: Nodes, to_the_end: ToTheEnd) -> None:
        self._claiming = claiming
        self._nodes = nodes
        self._to_the_end = to_the_end
        self._late: dict[Address | None, asyncio.Task[Reply]] = {}
        self._unanswered: dict[tuple[str, ...], dict[bytes, float]] = {}
        """Tokens under which messages may be leased without any worker knowing, and until when."""

    async def claim(self, wanted: Wanted) -> Claimed:
        """See `Store.claim`. One call for each slot, in turn, until there are enough."""
        return await self._to_the_end.run(self._claim(self._claiming.rotation.next(wanted)))

    async def recall(self, queues: Sequence[str], token: UUID) -> int:
        """See `Store.recall`."""
        # A node that does not answer holds up none of the others.
        counts = await asyncio.gather(
            *(self._claiming.recall(group, token) for group in self._groups(queues)), return_exceptions=True
        )
        for count in counts:
            if isinstance(count, BaseException):
                raise count
        return sum(count for count in counts if not isinstance(count, BaseException))

    async def _claim(self, wanted: Wanted) -> Claimed:
        claimed: list[Delivery] = []
        waits: list[timedelta] = []
        failure: StoreUnavailable | None = None
        asked = full = probe = False
        groups = self._groups(wanted.queues)
        alone = await self._alone(groups)
        for group in groups:
            room, left = wanted.limit - len(claimed), wanted.max_bytes - _size_of(claimed)
            if full := full or room <= 0 or (left <= 0 and bool(claimed)):
                break
            part = replace(wanted, queues=tuple(group), limit=room, max_bytes=left)
            call = await self._claiming.prepared(part, first=not claimed)
            try:
                wait, found, end = await self._asked(call, wanted.token, wanted.lease, alone=alone)
            except StoreUnavailable as error:
                if alone:
                    raise
                # Other queues need not wait for it.
                failure = error
                continue
            asked = True
            if end == End.PROBE_FIRST:
                await self._give_back(claimed, wanted)
                return await self._probe(replace(wanted, queues=tuple(group)), alone=alone)
            claimed += self._claiming.read(found, group, wanted.token)
            if probe := end == End.PROBE:
                break
            full = end == End.MORE
            if wait:
                waits.append(timedelta(microseconds=int(wait)))
        if failure is not None:
            if not asked:
                raise failure
            waits.append(AGAIN_SOON)
        self._claiming.put_in_order(claimed, wanted.queues)
        if full or probe:
            return Claimed(claimed, None, full=True, probe=probe)
        return Claimed(claimed, min(waits, default=None))

    async def _probe(self, wanted: Wanted, *, alone: bool) -> Claimed:
        """Claim of this slot alone. Another process may have taken the probe meanwhile: then look again."""
        call = await self._claiming.prepared(wanted, first=True)
        _, found, end = await self._asked(call, wanted.token, wanted.lease, alone=alone)
        claimed = self._claiming.read(found, wanted.queues, wanted.token)
        self._claiming.put_in_order(claimed, wanted.queues)
        return Claimed(claimed, None, full=True, probe=end == End.PROBE)

    async def _give_back(self, claimed: Sequence[Delivery], wanted: Wanted) -> None:
        for group in self._groups(delivery.queue for delivery in claimed):
            try:
                await self.recall(group, wanted.token)
            except StoreUnavailable:
                # No worker knows of them: tried again before the next claim of these queues.
                self._remember(tuple(self._claiming.tags(group)), wanted.token, wanted.lease)

    def _groups(self, queues: Iterable[str]) -> list[list[str]]:
        tagged = ((self._claiming.calls.keys.tag(queue), queue) for queue in dict.fromkeys(queues))
        return [[queue for _, queue in group] for group in by_slot(self._nodes, tagged)]

    async def _alone(self, groups: Sequence[Sequence[str]]) -> bool:
        """Whether all these queues are at one node: then no other could be served meanwhile."""
        if len(groups) == 1:
            return True
        try:
            tags = [self._claiming.calls.keys.tag(queues[0]) for queues in groups]
            return len({await self._nodes.holder(tag) for tag in tags}) == 1
        except StoreUnavailable:
            return False  # One without a node is left out, and the others are asked.

    async def _asked(self, call: Call, token: UUID, lease: timedelta, *, alone: bool) -> Reply:
        """The answer of this call; `StoreUnavailable` if there is none, or not in time."""
        if alone:
            return await self._ask(call)
        address = await self._nodes.holder(call.key)
        late = self._late.get(address)
        if late is not None and not late.done():
            raise NoAnswer
        self._late.pop(address, None)
        task = asyncio.create_task(self._ask(call))
        task.add_done_callback(forget_error)
        try:
            async with asyncio.timeout(NODE_SECONDS):
                return await asyncio.shield(task)
        except TimeoutError as error:
            self._late[address] = task
            self._remember(call.keys, token, lease)
            raise NoAnswer from error
        except StoreUnavailable:
            self._remember(call.keys, token, lease)
            raise

    async def _ask(self, call: Call) -> Reply:
        await self._hand_back(call.keys)
        (answer,) = await self._claiming.lane.run(call)
        return answer

    def _remember(self, tags: tuple[str, ...], token: UUID, lease: timedelta) -> None:
        tokens = self._unanswered.setdefault(tags, {})
        tokens[token.bytes] = asyncio.get_running_loop().time() + lease.total_seconds()
        while len(tokens) > _MOST:
            del tokens[next(iter(tokens))]

    async def _hand_back(self, tags: tuple[str, ...]) -> None:
        """Recall what earlier claims may have leased unnoticed, unless those leases have ended."""
        now = asyncio.get_running_loop().time()
        for known in [known for known in self._unanswered if not set(known).isdisjoint(tags)]:
            tokens = self._unanswered[known]
            for token, until in list(tokens.items()):
                if until > now:
                    await self._claiming.hand_back(known, token)
                tokens.pop(token, None)
            self._unanswered.pop(known, None)


class ClusterClaims(ClusterClaiming):
    """Claims of messages."""

    async def look_ahead(self, queues: Sequence[str]) -> dict[str, timedelta]:
        """See `LooksAhead.look_ahead`. Always now: a script sees one slot, so each worker claims."""
        return dict.fromkeys(queues, timedelta(0))


def _size_of(deliveries: Sequence[Delivery]) -> int:
    """How many bytes these took to read."""
    return sum(len(delivery.body) + len(delivery.encoded_headers) for delivery in deliveries)
