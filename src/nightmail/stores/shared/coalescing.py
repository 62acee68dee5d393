"""Coalesces concurrent publishes into one statement.

Each publish is a commit, and a commit waits for the disk. Messages that arrive while one is being written go together
into the next statement and commit: sixteen publishers cost little more than one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Generic, Protocol, TypeAlias, TypeVar

from nightmail.errors import PublishUncertain, StoreError, StoreUnavailable
from nightmail.message import Message

MOST_MESSAGES: Final = 500

C = TypeVar("C")
C_co = TypeVar("C_co", covariant=True)
Send: TypeAlias = Callable[[C, Sequence[Message]], Awaitable[list[int]]]
"""Stores messages on a connection and returns their ids."""


class Lane(Protocol[C_co]):
    """The connection that publishes."""

    async def run_patiently(
        self, work: Callable[[C_co], Awaitable[list[int]]], *, lost: type[StoreUnavailable], here: bool
    ) -> list[int]:
        """Run `work` when its turn comes; raise `lost` if the connection is lost meanwhile. `here`: in this task."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    message: Message
    stored: asyncio.Future[int]


class PublishCoalescer(Generic[C]):
    """Publishes messages without a timer id outside a caller's transaction, at most `most_bytes` of bodies at once."""

    def __init__(
        self, lane: Lane[C], send: Send[C], *, is_refusal: Callable[[Exception], bool], most_bytes: int
    ) -> None:
        self._lane = lane
        self._send = send
        self._is_refusal = is_refusal
        self._most_bytes = most_bytes
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
            while self._waiting:
                await self._send_some()
        finally:
            self._sender = None
            _fail(
                self._take_all(), StoreUnavailable("the store was closed before it was this message's turn")
            )

    async def _send_some(self) -> None:
        batch: list[_Waiting] = []

        async def send(connection: C) -> list[int]:
            # Taken only when our turn comes: more may have arrived meanwhile.
            batch.extend(self._take())
            return await self._store(connection, batch) if batch else []

        await self._answer(batch, send)

    async def _answer(self, batch: list[_Waiting], send: Callable[[C], Awaitable[list[int]]]) -> None:
        try:
            # This task is ours: what cancels a publisher does not reach it, so it needs no other around the work.
            ids = await self._lane.run_patiently(send, lost=PublishUncertain, here=True)
            if len(ids) != len(batch):
                # Should never happen. Which id is whose is unknown, and a message must not get another's id.
                raise PublishUncertain(f"the store answered with {len(ids)} ids for {len(batch)} messages")
        except Exception as error:  # noqa: BLE001 - it is the publishers'
            if self._is_refusal(error) and len(batch) > 1:
                # One of them was refused, and all were rolled back: send each on its own.
                for waiting in batch:
                    await self._answer([waiting], partial(self._store, batch=[waiting]))
            else:
                _fail(batch or self._take_all(), error)
        else:
            for waiting, id_ in zip(batch, ids, strict=True):
                if not waiting.stored.done():
                    waiting.stored.set_result(id_)

    async def _store(self, connection: C, batch: list[_Waiting]) -> list[int]:
        return await self._send(connection, [waiting.message for waiting in batch])

    def _take(self) -> list[_Waiting]:
        taken: list[_Waiting] = []
        size = 0
        while self._waiting and len(taken) < MOST_MESSAGES:
            size += len(self._waiting[0].message.body)
            if taken and size > self._most_bytes:
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
        if isinstance(error, StoreError):
            # One error each: a single one raised in several tasks would collect all their tracebacks.
            own = type(error)(str(error))
            own.__cause__ = error.__cause__
            waiting.stored.set_exception(own)
        else:
            waiting.stored.set_exception(error)
