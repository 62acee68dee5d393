"""The store as one worker of a simulated process sees it: the other end of a line on which calls go wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar, cast
from uuid import UUID

from nightmail.bell import Bell, Bells
from nightmail.controls import LastConsumer, LeasedMessage, MessageFacts, Pause, WorkerRecord, WorkerReport
from nightmail.errors import PublishUncertain, StoreUnavailable
from nightmail.limits import CLAIM_BYTES
from nightmail.message import Delivery, Message
from nightmail.outcome import WriteResult
from nightmail.store import Capabilities, Claimed, Extend, Lingers, Settlement
from tests.simulation.line import Line, Trip
from tests.simulation.loop import SimLoop, running_loop
from tests.simulation.server import Server
from tests.simulation.session import Session

T = TypeVar("T")


class Client:
    """A `Source` for a worker, and what handlers and publishers need besides."""

    def __init__(self, server: Server, line: Line, worker: str, keeper: SimLoop, bells: Bells) -> None:
        self.line = line
        self.worker = worker
        self._server = server
        self._keeper = keeper
        self._bells = bells

    @property
    def capabilities(self) -> Capabilities:
        return self._server.store.capabilities

    @property
    def look_interval(self) -> timedelta:
        return self._server.store.look_interval

    async def claim(
        self,
        queues: Sequence[str],
        *,
        limit: int,
        lease: timedelta,
        token: UUID,
        max_bytes: int = CLAIM_BYTES,
    ) -> Claimed:
        reply: asyncio.Future[Claimed] = running_loop().create_future()
        work = partial(
            self._server.claim,
            self.worker,
            reply.done,
            queues,
            limit=limit,
            lease=lease,
            token=token,
            max_bytes=max_bytes,
        )
        return await self._call("claim", work, reply=reply)

    async def recall(self, queues: Sequence[str], token: UUID) -> int:
        return await self._call("recall", partial(self._server.recall, self.worker, queues, token))

    async def settle(self, batch: Sequence[Settlement]) -> list[WriteResult]:
        # A driver that sends a batch again knows that it does.
        again = [replace(settlement, repeated=True) for settlement in batch]
        return await self._call(
            "settle",
            partial(self._server.settle, self.worker, batch),
            again=partial(self._server.settle, self.worker, again),
            busy=[WriteResult.BUSY] * len(batch),
        )

    async def extend(self, deliveries: Sequence[Delivery], lease: timedelta) -> list[WriteResult]:
        return await self._call(
            "extend",
            partial(self._server.extend, list(deliveries), lease),
            busy=[WriteResult.BUSY] * len(deliveries),
        )

    async def publish(self, message: Message, *, own: Delivery | None = None) -> int | None:
        return await self._call(
            "publish", partial(self._server.publish, message, own), failure=PublishUncertain
        )

    async def cancel(self, queue: str, timer: str) -> bool:
        return await self._call("cancel", partial(self._server.cancel, queue, timer))

    async def reschedule(self, queue: str, timer: str, due: timedelta) -> bool:
        return await self._call("reschedule", partial(self._server.reschedule, queue, timer, due))

    # ── the verbs of `Control` ─────────────────────────────────────────────────────────────────────────────

    async def pause(self, queue: str, **options: Any) -> None:
        await self._call("pause", partial(self._server.pause, queue, **options))

    async def resume(self, queue: str, *, ordering_key: str | None = None, automatic: bool = False) -> bool:
        return await self._call(
            "resume", partial(self._server.resume, queue, key=ordering_key, automatic=automatic)
        )

    async def probe_again(self, probe: Delivery) -> None:
        await self._call("probe_again", partial(self._server.probe_again, probe))

    async def pauses(self, queue: str | None = None) -> list[Pause]:
        return await self._call("pauses", partial(self._server.store.pauses, queue))

    async def request_stop(self, id_: int, *, by: str) -> bool:
        return await self._call("request_stop", partial(self._server.request_stop, id_, by))

    async def report(self, worker: WorkerReport) -> None:
        await self._call("report", partial(self._server.report, self.worker, worker))

    async def sign_off(self, worker_id: str) -> None:
        await self._call("sign_off", partial(self._server.sign_off, worker_id))

    async def workers(self) -> list[WorkerRecord]:
        return await self._call("workers", self._server.store.workers)

    async def last_consumers(self) -> dict[str, LastConsumer]:
        return await self._call("last_consumers", self._server.store.last_consumers)

    async def leases(self, *, limit: int = 1000) -> list[LeasedMessage]:
        return await self._call("leases", partial(self._server.store.leases, limit=limit))

    async def facts(self, id_: int) -> MessageFacts:
        return await self._call("facts", partial(self._server.store.facts, id_))

    def listen(self, queues: Sequence[str]) -> Bell:
        return self._bells.bell(*queues)

    def run_on_keeper_thread(
        self, work: Callable[[Extend], Awaitable[None]], *, lingers: Lingers | None = None
    ) -> AbstractAsyncContextManager[None]:
        return self._on_keeper(work, lingers)

    @asynccontextmanager
    async def _on_keeper(
        self, work: Callable[[Extend], Awaitable[None]], lingers: Lingers | None
    ) -> AsyncIterator[None]:
        """On the keeper's own event loop, which goes on while the worker's is blocked."""
        here = running_loop()
        keeping = self._keeper.create_task(cast("Coroutine[Any, Any, None]", work(self.extend)))
        try:
            yield
        finally:
            if not here.is_dead and (lingers is None or not lingers()):
                ended = here.create_future()
                keeping.add_done_callback(lambda _: here.call_soon(_set, ended, None))
                self._keeper.call_soon(keeping.cancel)
                await ended

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Session]:
        """A transaction of a handler's: committed at the end of the block, rolled back if it raises."""
        session = Session(self._server, self.worker)
        await self._call("begin", session.begin)
        try:
            yield session
        except BaseException:
            # As when a connection is dropped: the server finds out by itself.
            self._server.loop.call_soon(session.drop)
            raise
        await self._call("commit", session.commit)

    async def ack(self, deliveries: Sequence[Delivery], *, transaction: Session) -> None:
        await self._call("ack", partial(transaction.ack, deliveries))

    async def _call(
        self,
        verb: str,
        work: Callable[[], Coroutine[Any, Any, T]],
        *,
        again: Callable[[], Coroutine[Any, Any, T]] | None = None,
        busy: T | None = None,
        failure: type[StoreUnavailable] = StoreUnavailable,
        reply: asyncio.Future[T] | None = None,
    ) -> T:
        here = running_loop()
        if here.is_dead:
            raise RuntimeError("this process is dead")
        trip = self.line.trip(verb)
        reply = here.create_future() if reply is None else reply
        if trip.fails is not None:
            error = StoreUnavailable("nothing was sent") if trip.known else failure("no answer")
            here.call_later(trip.fails, _fail, reply, error)
        if trip.busy and busy is not None:
            here.call_later(trip.answered or 0.0, _set, reply, busy)
        elif trip.arrives is not None:
            wait = None if trip.answered is None else trip.answered - (trip.again or trip.arrives)
            last = partial(self._pass_on, verb, trip, here, reply, wait)
            self._server.loop.call_later(
                trip.arrives, self._carry_out, work, _ignore if trip.again is not None else last
            )
            if trip.again is not None:
                self._server.loop.call_later(trip.again, self._carry_out, again or work, last)
        return await reply

    def _carry_out(
        self, work: Callable[[], Coroutine[Any, Any, T]], then: Callable[[asyncio.Task[T]], object]
    ) -> None:
        self._server.loop.create_task(work()).add_done_callback(then)

    def _pass_on(
        self,
        verb: str,
        trip: Trip,
        loop: SimLoop,
        reply: asyncio.Future[T],
        wait: float | None,
        task: asyncio.Task[T],
    ) -> None:
        error = task.exception()
        if wait is None or loop.is_dead:
            return
        self.line.is_carried_out(verb, trip, wait)
        if error is not None:
            loop.call_later(wait, _fail, reply, error)
        else:
            loop.call_later(wait, _set, reply, task.result())


def _ignore(task: asyncio.Task[Any]) -> None:
    """Nothing hears of this one, and asyncio does not log an exception that was retrieved."""
    task.exception()


def _set(reply: asyncio.Future[T], answer: T) -> None:
    if not reply.done():
        reply.set_result(answer)


def _fail(reply: asyncio.Future[T], error: BaseException) -> None:
    if not reply.done():
        reply.set_exception(error)
