"""Messages that are published at the same time go to the server together.

What arrives while one call is under way goes with the next: sixteen publishers cost little more than one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from nightmail.errors import StoreUnavailable
from nightmail.message import Message
from nightmail.stores.redis.keys import Keys
from nightmail.stores.redis.nodes import Nodes

MOST_MESSAGES: Final = 500
MOST_BYTES: Final = 4 * 1024 * 1024

Send: TypeAlias = Callable[[Sequence[Message]], Awaitable[list[int]]]


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    message: Message
    stored: asyncio.Future[int]


class PublishCoalescer:
    """Publishes of messages without a timer id."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._waiting: deque[_Waiting] = deque()
        self._sender: asyncio.Task[None] | None = None

    async def publish(self, message: Message) -> int:
        """Store this message, with others or alone. If cancelled before its turn, it is not stored."""
        waiting = _Waiting(message, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        if self._sender is None:
            self._sender = asyncio.create_task(self._send_all())
        return await waiting.stored

    async def _send_all(self) -> None:
        try:
            while batch := self._take():
                await self._store(batch)
        finally:
            self._sender = None
            rest, self._waiting = list(self._waiting), deque()
            _fail(rest, StoreUnavailable("the store was closed before it was this message's turn"))

    async def _store(self, batch: Sequence[_Waiting]) -> None:
        try:
            ids = await self._send([waiting.message for waiting in batch])
        except StoreUnavailable as error:
            _fail(batch, error)
        except Exception as error:  # noqa: BLE001 - raised to the publishers
            if len(batch) == 1:
                _fail(batch, error)
            else:
                # One of them was refused, so nothing was stored: send each on its own.
                for waiting in batch:
                    await self._store([waiting])
        else:
            for waiting, id_ in zip(batch, ids, strict=True):
                if not waiting.stored.done():
                    waiting.stored.set_result(id_)

    def _take(self) -> list[_Waiting]:
        taken: list[_Waiting] = []
        queue = self._waiting[0].message.queue if self._waiting else None
        size = 0
        # One queue at a time: in a cluster, two are not atomic.
        while self._waiting and len(taken) < MOST_MESSAGES and self._waiting[0].message.queue == queue:
            size += len(self._waiting[0].message.body)
            if taken and size > MOST_BYTES:
                break
            waiting = self._waiting.popleft()
            if not waiting.stored.done():
                taken.append(waiting)
        return taken if taken or not self._waiting else self._take()


class CoalescerBySlot:
    """One coalescer for each slot of a cluster: a node that does not answer holds up only its own publishers."""

    def __init__(self, send: Send, nodes: Nodes, keys: Keys) -> None:
        self._send = send
        self._nodes = nodes
        self._keys = keys
        self._slots: dict[int, PublishCoalescer] = {}

    async def publish(self, message: Message) -> int:
        """Store this message, with others or alone."""
        slot = self._nodes.slot(self._keys.tag(message.queue))
        together = self._slots.get(slot)
        if together is None:
            together = self._slots[slot] = PublishCoalescer(self._send)
        return await together.publish(message)


def _fail(batch: Sequence[_Waiting], error: Exception) -> None:
    for waiting in batch:
        if waiting.stored.done():
            continue
        if isinstance(error, StoreUnavailable):
            # A copy for each: raised in several tasks, a single error would collect all their tracebacks.
            own = type(error)(str(error))
            own.__cause__ = error.__cause__
            waiting.stored.set_exception(own)
        else:
            waiting.stored.set_exception(error)
