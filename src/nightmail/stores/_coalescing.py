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
from typing import Final, Generic, Protocol, TypeAlias, TypeVar

from nightmail.errors import PublishUncertain, StoreError, StoreUnavailable
from nightmail.message import Message

MOST_MESSAGES: Final = 500

C = TypeVar("C")
C_co = TypeVar("C_co", covariant=True)
Send: TypeAlias = Callable[[C, Sequence[Message]], Awaitable[list[int]]]
"""Stores messages on a connection; their ids."""


class Lane(Protocol[C_co]):
    """The connection on which it is done."""

    async def run_patiently(
        self, work: Callable[[C_co], Awaitable[list[int]]], *, lost: type[StoreUnavailable]
    ) -> list[int]:
        """Do this when it is its turn; a connection that is lost meanwhile is told as `lost`."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    message: Message
    stored: asyncio.Future[int]


class PublishCoalescer(Generic[C]):
    """Publishes by their own commit, of messages without a timer id; at most `most_bytes` of bodies at once."""

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

        async def send(connection: C) -> list[int]:
            # Chosen only now that it is our turn: more have come meanwhile.
            batch.extend(self._take())
            return await self._store(connection, batch) if batch else []

        await self._answer(batch, send)

    async def _answer(self, batch: list[_Waiting], send: Callable[[C], Awaitable[list[int]]]) -> None:
        try:
            ids = await self._lane.run_patiently(send, lost=PublishUncertain)
            if len(ids) != len(batch):
                # Never so. Whose they are is not known, and an id must not go to another's message.
                raise PublishUncertain(f"the store answered with {len(ids)} ids for {len(batch)} messages")
        except Exception as error:  # noqa: BLE001 - it is the publishers'
            if self._is_refusal(error) and len(batch) > 1:
                # One of them is refused, and all were rolled back: each for itself then.
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
            # One for each: raised in several tasks, a single error would gather all their tracebacks.
            own = type(error)(str(error))
            own.__cause__ = error.__cause__
            waiting.stored.set_exception(own)
        else:
            waiting.stored.set_exception(error)
