"""Messages that are published at the same time go into the database together.

Each publish is a commit, and a commit waits for the disk. What arrives while one is being written goes along with the
next, in one statement and one commit: sixteen publishers cost little more than one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

from nightmail.errors import PublishUncertain, StoreUnavailable
from nightmail.message import Message
from nightmail.stores.mysql.errors import is_refusal
from nightmail.stores.mysql.lane import Lane
from nightmail.stores.mysql.link import Link

MOST_MESSAGES: Final = 500
MOST_BYTES: Final = 2 * 1024 * 1024
"""On the wire it is twice that, and by default servers take no packet larger than 16 MB."""

Send: TypeAlias = Callable[[Link, Sequence[Message]], Awaitable[list[int]]]


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    message: Message
    stored: asyncio.Future[int]


class Together:
    """Publishes by their own commit, of messages without a timer id."""

    def __init__(self, lane: Lane, send: Send) -> None:
        self._lane = lane
        self._send = send
        self._waiting: deque[_Waiting] = deque()
        self._sender: asyncio.Task[None] | None = None

    async def publish(self, message: Message) -> int:
        """Store this message, with others or alone. Cancelled before it is its turn, it is not stored."""
        waiting = _Waiting(message, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        if self._sender is None:
            self._sender = asyncio.create_task(self._send_all())
        return await waiting.stored

    async def _send_all(self) -> None:
        try:
            while self._waiting:
                await self._send_some()
        finally:
            self._sender = None
            _fail(
                self._take_all(), StoreUnavailable("the store was closed before it was this message's turn")
            )

    async def _send_some(self) -> None:
        batch: list[_Waiting] = []

        async def send(link: Link) -> list[int]:
            # Chosen only now that it is our turn: more have come meanwhile.
            batch.extend(self._take())
            return await self._store(link, batch) if batch else []

        await self._answer(batch, send)

    async def _answer(self, batch: list[_Waiting], send: Callable[[Link], Awaitable[list[int]]]) -> None:
        try:
            ids = await self._lane.run_patiently(send, lost=PublishUncertain)
        except Exception as error:  # noqa: BLE001 - it is the publishers'
            if is_refusal(error) and len(batch) > 1:
                # One of them is refused, and all were rolled back: each for itself then.
                for waiting in batch:
                    await self._answer([waiting], partial(self._store, batch=[waiting]))
            else:
                _fail(batch or self._take_all(), error)
        else:
            for waiting, id_ in zip(batch, ids, strict=True):
                if not waiting.stored.done():
                    waiting.stored.set_result(id_)

    async def _store(self, link: Link, batch: list[_Waiting]) -> list[int]:
        return await self._send(link, [waiting.message for waiting in batch])

    def _take(self) -> list[_Waiting]:
        taken: list[_Waiting] = []
        size = 0
        while self._waiting and len(taken) < MOST_MESSAGES:
            size += len(self._waiting[0].message.body)
            if taken and size > MOST_BYTES:
                break
            waiting = self._waiting.popleft()
            if not waiting.stored.done():
                taken.append(waiting)
        return taken

    def _take_all(self) -> list[_Waiting]:
        taken = list(self._waiting)
        self._waiting.clear()
        return taken


def _fail(batch: Sequence[_Waiting], error: Exception) -> None:
    for waiting in batch:
        if waiting.stored.done():
            continue
        if isinstance(error, StoreUnavailable):
            # One for each: raised in several tasks, a single error would gather all their tracebacks.
            own = type(error)(str(error))
            own.__cause__ = error.__cause__
            waiting.stored.set_exception(own)
        else:
            waiting.stored.set_exception(error)
