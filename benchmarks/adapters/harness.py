"""The protocol: one JSON object a line, asked on standard input and answered on standard output.

    {"do": "open", "url": ..., "profile": "default"}     make the tables if need be, and connect
    {"do": "fill", "queue": ..., "count": N}             a backlog, a thousand in a transaction
    {"do": "publish", "how": ..., "publishers": N, "seconds": S}
    {"do": "pace", "rate": R, "seconds": S}              a steady stream, each with the time it was planned for
    {"do": "now_and_then", "count": N, "least": S, "most": S}   a few, with a random time before each
    {"do": "timers", "count": N, "after": S, "spread": S}
    {"do": "start", "handlers": {"orders": "typed"}}
    {"do": "wait", "queue": ..., "count": N, ...}        until so many were handled, or patience ends
    {"do": "report", "queue": ...}
    {"do": "stop"}, {"do": "close"}

The answer is {"ok": {...}} or {"error": "..."}. Logs go to standard error.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, Final, TypeAlias

from benchmarks.adapters.payload import BODY, order
from benchmarks.adapters.tally import Tally

Send: TypeAlias = Callable[[dict[str, Any], str, "float | None", "str | None"], Awaitable[object]]
"""Publishes one order to a queue, due at a time or at once, perhaps with a timer id, in a transaction of its own."""

SendMany: TypeAlias = Callable[[list[dict[str, Any]], str, "float | None"], Awaitable[object]]
"""The same for many orders in one transaction."""

BULK: Final = 1000
LOOK_SECONDS: Final = 0.005
DAY: Final = 86_400.0


class Unsupported(Exception):
    """This system has no such thing."""


class Adapter(ABC):
    """One system, used as its documentation says."""

    @abstractmethod
    async def open(self, url: str, profile: str) -> None:
        """Make the tables where they are missing. What publishes connects when it first does: a process that only
        consumes has the connections of a consumer.
        """

    @abstractmethod
    def publisher(self, how: str) -> AbstractAsyncContextManager[Send]:
        """One publisher, with a connection or session of its own where the system has them.

        `how` is the caller's transaction: `session`, an SQLAlchemy AsyncSession; `driver`, a bare connection of the
        driver; `own`, none: the system commits by itself.
        """

    @abstractmethod
    async def publish_many(self, bodies: list[dict[str, Any]], queue: str, due: float | None) -> None:
        """Many at once, in the fastest way that the system documents."""

    @asynccontextmanager
    async def publisher_of_many(self, how: str) -> AsyncIterator[SendMany]:
        """The same for many in one transaction, which is the caller's or the system's own."""
        if how != "own":
            raise Unsupported("publishing in an AsyncSession")
        yield self.publish_many

    @abstractmethod
    async def start(self, handlers: Mapping[str, str], tallies: Mapping[str, Tally]) -> None:
        """Consume each queue with a handler of this kind, which tells the queue's tally.

        `typed` validates an `Order`; `plain` gets the bytes; `batch` gets up to a hundred orders; `sync` is a `def`;
        `hang` never returns.
        """

    @abstractmethod
    async def stop(self) -> None:
        """Finish what runs, write what is finished, and consume no more."""

    @abstractmethod
    async def close(self) -> None:
        """Disconnect."""


class Harness:
    """Answers the questions with the help of an adapter."""

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter
        self._tallies: dict[str, Tally] = {}

    async def open(self, url: str, profile: str) -> dict[str, Any]:
        await self._adapter.open(url, profile)
        return {}

    async def fill(self, queue: str, count: int, after: float | None = None) -> dict[str, Any]:
        begun = time.time()
        due = None if after is None else begun + after
        for start in range(0, count, BULK):
            await self._adapter.publish_many([BODY] * min(BULK, count - start), queue, due)
        return {"seconds": time.time() - begun}

    async def publish(
        self,
        queue: str,
        how: str,
        publishers: int,
        seconds: float,
        timers: bool = False,
        bulk: bool = False,
    ) -> dict[str, Any]:
        """As many as can be in so many seconds, one per transaction or, `bulk`, a thousand."""
        if bulk:
            return await self._publish_bulk(queue, how, seconds)
        async with AsyncExitStack() as stack:
            senders = [
                await stack.enter_async_context(self._adapter.publisher(how)) for _ in range(publishers)
            ]
            # What is connected and prepared only once.
            await asyncio.gather(*(send(BODY, queue, None, None) for send in senders))
            begun = time.time()
            end = begun + seconds

            async def one_by_one(number: int, send: Send) -> int:
                count = 0
                while time.time() < end:
                    if timers:
                        await send(BODY, queue, end + DAY, f"{number}-{count}-{end}")
                    else:
                        await send(BODY, queue, None, None)
                    count += 1
                return count

            counts = await asyncio.gather(*(one_by_one(*numbered) for numbered in enumerate(senders)))
            return {"count": sum(counts), "seconds": time.time() - begun}

    async def _any_publisher(self, stack: AsyncExitStack) -> Send:
        """By its own commit; a system that has none in an AsyncSession."""
        try:
            return await stack.enter_async_context(self._adapter.publisher("own"))
        except Unsupported:
            return await stack.enter_async_context(self._adapter.publisher("session"))

    async def _publish_bulk(self, queue: str, how: str, seconds: float) -> dict[str, Any]:
        count, bodies = 0, [BODY] * BULK
        async with self._adapter.publisher_of_many(how) as send:
            await send(bodies, queue, None)
            begun = time.time()
            while time.time() < begun + seconds:
                await send(bodies, queue, None)
                count += BULK
            return {"count": count, "seconds": time.time() - begun}

    async def pace(self, queue: str, rate: float, seconds: float, step: float) -> dict[str, Any]:
        """`rate` messages a second in steps of so many seconds, whatever the consumer does.

        Each is stamped with the time that was planned: else a publisher that is held up would hide how late those are
        that it sends afterwards. With steps of nothing they go one by one, each with the time at which it is sent.
        """
        async with AsyncExitStack() as stack:
            send = await self._any_publisher(stack)
            begun, sent, behind = time.time(), 0, 0.0
            while (at := begun + sent / rate) < begun + seconds:
                await asyncio.sleep(max(0.0, at - time.time()))
                behind = max(behind, time.time() - at)
                if step > 0:
                    number = max(1, round(rate * step))
                    await self._adapter.publish_many([order(0, at)] * number, queue, None)
                    sent += number
                else:
                    await send(order(sent, time.time()), queue, None, None)
                    sent += 1
            return {"count": sent, "seconds": time.time() - begun, "behind": behind}

    async def now_and_then(self, queue: str, count: int, least: float, most: float) -> dict[str, Any]:
        """So many, each after a random time in which nothing happens, and with the time at which it is sent."""
        async with AsyncExitStack() as stack:
            send = await self._any_publisher(stack)
            for number in range(count):
                await asyncio.sleep(random.uniform(least, most))
                await send(order(number, time.time()), queue, None, None)
        return {}

    async def timers(self, queue: str, count: int, after: float, spread: float) -> dict[str, Any]:
        """Timers that fall due one by one, at random moments."""
        begun = time.time()
        dues = sorted(begun + after + random.random() * spread for _ in range(count))
        async with AsyncExitStack() as stack:
            send = await self._any_publisher(stack)
            for number, due in enumerate(dues):
                await send(order(number, due), queue, due, None)
        if time.time() > dues[0]:
            raise RuntimeError(f"publishing took {time.time() - begun:.1f} s: the first were due before")
        return {"first": dues[0], "last": dues[-1]}

    async def start(self, handlers: dict[str, str]) -> dict[str, Any]:
        self._tallies = {queue: Tally() for queue in handlers}
        await self._adapter.start(handlers, self._tallies)
        return {}

    async def wait(self, queue: str, count: int | None, patience: float) -> dict[str, Any]:
        """Until so many were handled, or patience ends."""
        tally, begun = self._tallies[queue], time.time()
        while count is None or tally.count < count:
            if time.time() - begun >= patience:
                break
            await asyncio.sleep(LOOK_SECONDS)
        return {
            "count": tally.count,
            "first": tally.first,
            "with_first": tally.with_first,
            "last": tally.last,
        }

    async def report(self, queue: str, since: float = 0.0, until: float = 1e12) -> dict[str, Any]:
        return self._tallies[queue].summary(since, until)

    async def stop(self) -> dict[str, Any]:
        await self._adapter.stop()
        return {}

    async def close(self) -> dict[str, Any]:
        await self._adapter.close()
        return {}


def serve(adapter: Adapter) -> None:
    """Answer until standard input ends. The loop is uvloop's if the first argument says so."""
    if "uvloop" in sys.argv[1:]:
        import uvloop

        uvloop.run(_serve(Harness(adapter)))
    else:
        asyncio.run(_serve(Harness(adapter)))


async def _serve(harness: Harness) -> None:
    loop = asyncio.get_running_loop()
    questions = asyncio.StreamReader(limit=2**24)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(questions), sys.stdin)
    answers = sys.stdout
    sys.stdout = sys.stderr  # What a library prints is not an answer.
    while line := await questions.readline():
        question = json.loads(line)
        do = question.pop("do")
        try:
            answer = {"ok": await getattr(harness, do)(**question)}
        except Unsupported as error:
            answer = {"unsupported": str(error)}
        except Exception as error:  # noqa: BLE001 - the other side decides; the stack is in the log
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)
        if do == "close":
            return
