"""A real store behind a line that can be upset: requests and replies get lost, wait, or are answered wrongly.

A fault is given the call it stands before, and decides whether and when the call is made:

    store.upset("settle", lost_reply)              the next one is carried out, and its reply is lost
    store.upset("claim", lost_request, times=3)    the next three never arrive
    store.upset("settle", lost_request, times=None)   none arrives until `mend`
    gate = store.upset("claim", Gate())            the next one waits for `gate.open()`
    store.upset_all(Stuck())                       no verb at all is answered until `mend`
    store.sever()                                  nothing arrives any more: this process is as good as dead
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias, TypeVar, cast
from uuid import UUID

from nightmail.bell import Bell
from nightmail.controls import LastConsumer, LeasedMessage, MessageFacts, Pause, WorkerRecord, WorkerReport
from nightmail.errors import StoreUnavailable
from nightmail.limits import CLAIM_BYTES
from nightmail.message import Delivery, Message
from nightmail.outcome import WriteResult
from nightmail.records import (
    DeadFilter,
    DeadLetter,
    DeadSummary,
    PendingMessage,
    QueueStats,
    StoredMessage,
    Swept,
)
from nightmail.store import Capabilities, Claimed, Extend, FullStore, Lingers, Settlement

Answer = TypeVar("Answer")
Call: TypeAlias = Callable[[], Awaitable[Any]]
Fault: TypeAlias = Callable[[Call], Awaitable[Any]]
AnyFault = TypeVar("AnyFault", bound=Fault)

_PATIENCE: Final = 90.0


async def lost_request(call: Call) -> Any:
    """It never arrives."""
    raise StoreUnavailable("the line was cut before the request arrived")


async def lost_reply(call: Call) -> Any:
    """It is carried out, but the reply is lost."""
    await call()
    raise StoreUnavailable("the line was cut before the reply arrived")


class Gate:
    """Keeps a call waiting before it is carried out."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self._opened = asyncio.Event()

    def open(self) -> None:
        """Let it through."""
        self._opened.set()

    async def __call__(self, call: Call) -> Any:
        self.reached.set()
        await self._opened.wait()
        return await call()


class LateReply(Gate):
    """Carries a call out at once, and keeps its reply waiting."""

    async def __call__(self, call: Call) -> Any:
        answer = await call()
        self.reached.set()
        await self._opened.wait()
        return answer


class Stuck:
    """Never answers, and does not heed its cancellation either."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self._opened = asyncio.Event()

    def open(self) -> None:
        """Let it end after all."""
        self._opened.set()

    async def __call__(self, call: Call) -> Any:
        self.reached.set()
        while not self._opened.is_set():
            with suppress(asyncio.CancelledError):
                await self._opened.wait()
        raise StoreUnavailable("no answer")


class FaultyStore:
    """Passes every verb on, counts it, and upsets it when told to."""

    def __init__(self, store: FullStore) -> None:
        self._store = store
        self.calls: Counter[str] = Counter()
        """How often each verb was called."""
        self.sizes: dict[str, list[int]] = {"claim": [], "settle": [], "extend": []}
        """How much each claim, settle and extend that got an answer was about."""
        self.asked: list[tuple[int, int]] = []
        """How many messages and how many bytes each claim was to take at most."""
        self.renewing: Sequence[Delivery] = ()
        """What the extend that is under way, or was last, was asked for."""
        self._faults: dict[str, deque[Fault]] = {}
        self._lasting: dict[str, Fault] = {}
        self._of_all: Fault | None = None
        self.interval: timedelta | None = None
        """The look interval, if it is not to be the store's own."""
        self._severed = False
        self._news = asyncio.Event()

    async def until_called(self, verb: str, times: int = 1) -> None:
        """Wait until a verb was called so often, and let the last call go as far as it can without a fault."""
        async with asyncio.timeout(_PATIENCE):
            while self.calls[verb] < times:
                self._news.clear()
                await self._news.wait()
        for _ in range(20):
            await asyncio.sleep(0)

    def upset(self, verb: str, fault: AnyFault, *, times: int | None = 1) -> AnyFault:
        """Put this fault before the next calls of a verb, or (`times=None`) before all until `mend`."""
        if times is None:
            self._lasting[verb] = fault
        else:
            self._faults.setdefault(verb, deque()).extend([fault] * times)
        return fault

    def upset_all(self, fault: AnyFault) -> AnyFault:
        """Put this fault before every call of every verb, until `mend`."""
        self._of_all = fault
        return fault

    def mend(self) -> None:
        """Forget every fault."""
        self._faults.clear()
        self._lasting.clear()
        self._of_all = None

    def sever(self) -> None:
        """From now on nothing arrives."""
        self._severed = True

    async def _pass(self, verb: str, call: Callable[[], Awaitable[Answer]]) -> Answer:
        self.calls[verb] += 1
        self._news.set()
        if self._severed:
            raise StoreUnavailable("this process is dead")
        fault = self._next_fault(verb)
        return await call() if fault is None else cast("Answer", await fault(call))

    def _next_fault(self, verb: str) -> Fault | None:
        once = self._faults.get(verb)
        return once.popleft() if once else self._lasting.get(verb, self._of_all)

    @property
    def capabilities(self) -> Capabilities:
        return self._store.capabilities

    @property
    def max_body_bytes(self) -> int:
        return self._store.max_body_bytes

    @property
    def look_interval(self) -> timedelta:
        return self._store.look_interval if self.interval is None else self.interval

    async def open(self) -> None:
        await self._pass("open", self._store.open)

    async def close(self) -> None:
        await self._pass("close", self._store.close)

    async def ping(self) -> None:
        await self._pass("ping", self._store.ping)

    async def migrate(self, *, repair: bool = False) -> None:
        await self._pass("migrate", lambda: self._store.migrate(repair=repair))

    def schema_sql(self, *, found: int | None = None) -> str:
        return self._store.schema_sql(found=found)

    async def check(self, *, adopt: bool = True) -> None:
        await self._pass("check", lambda: self._store.check(adopt=adopt))

    async def publish(
        self, message: Message, *, transaction: object | None = None, own: Delivery | None = None
    ) -> int | None:
        return await self._pass(
            "publish", lambda: self._store.publish(message, transaction=transaction, own=own)
        )

    async def publish_batch(
        self, messages: Sequence[Message], *, transaction: object | None = None
    ) -> list[int]:
        return await self._pass(
            "publish_batch", lambda: self._store.publish_batch(messages, transaction=transaction)
        )

    async def claim(
        self,
        queues: Sequence[str],
        *,
        limit: int,
        lease: timedelta,
        token: UUID,
        max_bytes: int = CLAIM_BYTES,
    ) -> Claimed:
        self.asked.append((limit, max_bytes))
        claimed = await self._pass(
            "claim",
            lambda: self._store.claim(queues, limit=limit, lease=lease, token=token, max_bytes=max_bytes),
        )
        self.sizes["claim"].append(len(claimed.deliveries))
        return claimed

    async def recall(self, queues: Sequence[str], token: UUID) -> int:
        return await self._pass("recall", lambda: self._store.recall(queues, token))

    async def claim_dead(
        self,
        queues: Sequence[str],
        *,
        limit: int,
        lease: timedelta,
        token: UUID,
        max_bytes: int = CLAIM_BYTES,
    ) -> Claimed:
        return await self._pass(
            "claim_dead",
            lambda: self._store.claim_dead(
                queues, limit=limit, lease=lease, token=token, max_bytes=max_bytes
            ),
        )

    async def recall_dead(self, queues: Sequence[str], token: UUID) -> int:
        return await self._pass("recall_dead", lambda: self._store.recall_dead(queues, token))

    async def settle(self, batch: Sequence[Settlement]) -> list[WriteResult]:
        results = await self._pass("settle", lambda: self._store.settle(batch))
        self.sizes["settle"].append(len(batch))
        return results

    async def extend(self, deliveries: Sequence[Delivery], lease: timedelta) -> list[WriteResult]:
        return list(await self._extend(self._store.extend, deliveries, lease))

    async def _extend(
        self, extend: Extend, deliveries: Sequence[Delivery], lease: timedelta
    ) -> Sequence[WriteResult]:
        self.renewing = deliveries
        results = await self._pass("extend", lambda: extend(deliveries, lease))
        self.sizes["extend"].append(len(deliveries))
        return results

    def run_on_keeper_thread(
        self, work: Callable[[Extend], Awaitable[None]], *, lingers: Lingers | None = None
    ) -> AbstractAsyncContextManager[None]:
        def upset(extend: Extend) -> Awaitable[None]:
            return work(lambda deliveries, lease: self._extend(extend, deliveries, lease))

        return self._store.run_on_keeper_thread(upset, lingers=lingers)

    async def hold(self, deliveries: Sequence[Delivery], *, transaction: object) -> None:
        await self._pass("hold", lambda: self._store.hold(deliveries, transaction=transaction))

    async def ack(self, deliveries: Sequence[Delivery], *, transaction: object) -> None:
        await self._pass("ack", lambda: self._store.ack(deliveries, transaction=transaction))

    async def cancel(self, queue: str, timer_id: str, *, transaction: object | None = None) -> bool:
        return await self._pass(
            "cancel", lambda: self._store.cancel(queue, timer_id, transaction=transaction)
        )

    async def cancel_all(
        self, queue: str, *, limit: int | None = None, transaction: object | None = None
    ) -> int:
        return await self._pass(
            "cancel_all", lambda: self._store.cancel_all(queue, limit=limit, transaction=transaction)
        )

    async def reschedule(
        self, queue: str, timer_id: str, due: datetime | timedelta, *, transaction: object | None = None
    ) -> bool:
        return await self._pass(
            "reschedule", lambda: self._store.reschedule(queue, timer_id, due, transaction=transaction)
        )

    def listen(self, queues: Sequence[str]) -> Bell:
        return self._store.listen(queues)

    async def peek(
        self,
        queue: str | None = None,
        *,
        timer_id: str | None = None,
        due_before: datetime | None = None,
        limit: int = 100,
        cursor: tuple[datetime, int] | None = None,
        transaction: object | None = None,
    ) -> list[PendingMessage]:
        return await self._pass(
            "peek",
            lambda: self._store.peek(
                queue,
                timer_id=timer_id,
                due_before=due_before,
                limit=limit,
                cursor=cursor,
                transaction=transaction,
            ),
        )

    async def find(self, ids: Sequence[int]) -> list[StoredMessage]:
        return await self._pass("find", lambda: self._store.find(ids))

    async def dead(
        self,
        which: DeadFilter,
        *,
        limit: int = 100,
        cursor: int | None = None,
        max_bytes: int = CLAIM_BYTES,
    ) -> list[DeadLetter]:
        return await self._pass(
            "dead", lambda: self._store.dead(which, limit=limit, cursor=cursor, max_bytes=max_bytes)
        )

    async def summarize_dead(self, which: DeadFilter, *, limit: int = 100) -> DeadSummary:
        return await self._pass("summarize_dead", lambda: self._store.summarize_dead(which, limit=limit))

    async def redrive(
        self, letters: Sequence[DeadLetter], *, to: str | None = None, keep_timer_ids: bool = True
    ) -> list[int]:
        return await self._pass(
            "redrive", lambda: self._store.redrive(letters, to=to, keep_timer_ids=keep_timer_ids)
        )

    async def purge(self, which: DeadFilter, *, limit: int) -> int:
        return await self._pass("purge", lambda: self._store.purge(which, limit=limit))

    async def sweep(self, *, older_than: timedelta, limit: int) -> Swept:
        return await self._pass("sweep", lambda: self._store.sweep(older_than=older_than, limit=limit))

    async def stats(self) -> dict[str, QueueStats]:
        return await self._pass("stats", self._store.stats)

    async def pause(
        self,
        queue: str,
        *,
        ordering_key: str | None = None,
        until: datetime | timedelta | None = None,
        by: str,
        reason: str | None = None,
        automatic: bool = False,
    ) -> None:
        await self._pass(
            "pause",
            lambda: self._store.pause(
                queue, ordering_key=ordering_key, until=until, by=by, reason=reason, automatic=automatic
            ),
        )

    async def resume(self, queue: str, *, ordering_key: str | None = None, automatic: bool = False) -> bool:
        return await self._pass(
            "resume", lambda: self._store.resume(queue, ordering_key=ordering_key, automatic=automatic)
        )

    async def probe_again(self, probe: Delivery) -> None:
        await self._pass("probe_again", lambda: self._store.probe_again(probe))

    async def pauses(self, queue: str | None = None) -> list[Pause]:
        return await self._pass("pauses", lambda: self._store.pauses(queue))

    async def request_stop(self, id_: int, *, by: str) -> bool:
        return await self._pass("request_stop", lambda: self._store.request_stop(id_, by=by))

    async def report(self, worker: WorkerReport) -> None:
        await self._pass("report", lambda: self._store.report(worker))

    async def sign_off(self, worker_id: str) -> None:
        await self._pass("sign_off", lambda: self._store.sign_off(worker_id))

    async def workers(self) -> list[WorkerRecord]:
        return await self._pass("workers", self._store.workers)

    async def last_consumers(self) -> dict[str, LastConsumer]:
        return await self._pass("last_consumers", self._store.last_consumers)

    async def leases(self, *, limit: int = 1000) -> list[LeasedMessage]:
        return await self._pass("leases", lambda: self._store.leases(limit=limit))

    async def facts(self, id_: int) -> MessageFacts:
        return await self._pass("facts", lambda: self._store.facts(id_))
