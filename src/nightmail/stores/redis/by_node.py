"""Claims ask slot after slot, and one node that does not answer must not keep the others from being asked.

A call that is not answered in time may still lease messages, under a token that no worker has. So the token is
remembered, and recalled before the next claim of the same queues.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Final
from uuid import UUID

from nightmail.errors import StoreUnavailable
from nightmail.stores.redis.connect import Address
from nightmail.stores.redis.lane import Lane
from nightmail.stores.redis.link import Reply
from nightmail.stores.redis.nodes import Nodes
from nightmail.stores.redis.script_calls import ScriptCalls
from nightmail.stores.redis.scripts import Call
from nightmail.stores.redis.whole import seen

NODE_SECONDS: Final = 1.0
"""How long to wait for one node while others could be asked. Longer than a healthy one ever takes."""
AGAIN_SOON: Final = timedelta(seconds=1)
"""When to look again at a queue that could not be asked."""
_MOST: Final = 1000


class NoAnswer(StoreUnavailable):
    """A node of the cluster does not answer. Other queues are served meanwhile."""


class ByNode:
    """Claim calls, each to the node that has its queues."""

    def __init__(self, lane: Lane, calls: ScriptCalls, nodes: Nodes, recall: str) -> None:
        self._lane = lane
        self._calls = calls
        self._nodes = nodes
        self._recall = recall
        self._late: dict[Address | None, asyncio.Task[Reply]] = {}
        self._unanswered: dict[tuple[str, ...], dict[bytes, float]] = {}
        """Tokens under which messages may be leased without any worker knowing, and until when."""

    async def alone(self, groups: Sequence[Sequence[str]]) -> bool:
        """Whether all these tags are at one node: then no other could be served meanwhile."""
        if len(groups) == 1:
            return True
        try:
            return len({await self._nodes.holder(tags[0]) for tags in groups}) == 1
        except StoreUnavailable:
            return False  # One without a node is left out, and the others are asked.

    async def claim(self, call: Call, token: UUID, lease: timedelta, *, alone: bool) -> Reply:
        """The answer of this call; `StoreUnavailable` if there is none, or not in time."""
        if alone:
            return await self._ask(call)
        address = await self._nodes.holder(call.keys[0])
        late = self._late.get(address)
        if late is not None and not late.done():
            raise NoAnswer
        self._late.pop(address, None)
        task = asyncio.create_task(self._ask(call))
        task.add_done_callback(seen)
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
        (answer,) = await self._lane.call(call)
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
                    await self._lane.call(self._calls.call(self._recall, known, token))
                tokens.pop(token, None)
            self._unanswered.pop(known, None)
