"""The verbs of every SQL store: what is checked, where a verb runs, and who is told afterwards.

A store gives its verbs as generators (`Verbs`), what carries them out on its own connections (`Runtime`), and what
carries them out in callers' transactions (`Joining`). Its directory holds nothing else: it is the list of its
differences.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, ClassVar, Protocol, TypeVar
from uuid import UUID

from nightmail.bell import Bell
from nightmail.controls import (
    LastConsumer,
    LeasedMessage,
    MessageFacts,
    Pause,
    WorkerRecord,
    WorkerReport,
    check_pausable,
    check_pause,
    storable_reason,
)
from nightmail.errors import PublishUncertain, StoreUnavailable
from nightmail.limits import CLAIM_BYTES, check_batch, check_max_body_bytes, check_size
from nightmail.message import DeadDelivery, Delivery, Due, Message, check_due, check_name, check_queue
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
from nightmail.store import Claimed, Extend, Lingers, Settlement
from nightmail.stores.shared.keeper_thread import KeeperThread
from nightmail.stores.shared.wanted import NOTHING, Wanted, wanted_of
from nightmail.stores.sql.verbs import Change, MakeVerb, Verb

T = TypeVar("T")


class Publishing(Protocol):
    """How messages are stored."""

    def publish(self, message: Message, own: Delivery | None) -> Verb[Change[int | None]]:
        """Store a message; returns its id, or `None` if it was not stored. `own` is a fence: `Store.publish`."""
        ...

    def publish_batch(self, messages: Sequence[Message]) -> Verb[Change[list[int]]]:
        """Store messages without timer ids, all or none; returns their ids, in order."""
        ...


class UnderLease(Protocol):
    """What is written under a lease, on messages or on dead letters."""

    def settle(self, batch: Sequence[Settlement]) -> Verb[Change[list[WriteResult]]]:
        """Write the outcomes of these deliveries."""
        ...

    def extend(self, deliveries: Sequence[Delivery], lease: timedelta) -> Verb[list[WriteResult]]:
        """Extend these leases."""
        ...

    def hold(self, deliveries: Sequence[Delivery]) -> Verb[Change[None]]:
        """Lock these in the caller's transaction: all, or `LeaseLost`."""
        ...

    def ack(self, deliveries: Sequence[Delivery]) -> Verb[Change[None]]:
        """Settle these as done in the caller's transaction: all, or `LeaseLost`."""
        ...

    def recall(self, queues: Sequence[str], token: UUID) -> Verb[Change[int]]:
        """Hand back what a claim under this token leased; returns how many."""
        ...


class Timers(Protocol):
    """Changes to waiting messages."""

    def cancel(self, queue: str, timer_id: str) -> Verb[Change[bool]]:
        """Remove the owner of this timer id, if it waits."""
        ...

    def cancel_all(
        self, queue: str, *, limit: int | None = None, newest: int | None = None
    ) -> Verb[Change[int]]:
        """Remove every waiting message of this queue, at most `limit`, and none after `newest`; returns how many."""
        ...

    def newest(self) -> Verb[int]:
        """The highest id there is now."""
        ...

    def reschedule(self, queue: str, timer_id: str, due: Due) -> Verb[Change[bool]]:
        """Move the owner of this timer id to another due time, if it waits."""
        ...


class Inspecting(Protocol):
    """Queries for operators."""

    def peek(
        self,
        queue: str | None,
        *,
        timer_id: str | None,
        due_before: datetime | None,
        limit: int,
        cursor: tuple[datetime, int] | None,
    ) -> Verb[list[PendingMessage]]:
        """Waiting messages by due time."""
        ...

    def find(self, ids: Sequence[int]) -> Verb[list[StoredMessage]]:
        """The messages with these ids."""
        ...

    def dead(
        self, which: DeadFilter, *, limit: int, cursor: int | None, max_bytes: int
    ) -> Verb[list[DeadLetter]]:
        """Dead letters, newest first."""
        ...

    def summarize_dead(self, which: DeadFilter, *, limit: int) -> Verb[DeadSummary]:
        """Dead letters, counted by group."""
        ...

    def stats(self) -> Verb[dict[str, QueueStats]]:
        """Statistics for each queue that is not empty."""
        ...


class Redriving(Protocol):
    """Dead letters that become messages again."""

    def redrive(
        self, letters: Sequence[DeadLetter], *, to: str | None, keep_timer_ids: bool
    ) -> Verb[Change[list[int]]]:
        """Returns the ids of the new messages."""
        ...


class Sweeping(Protocol):
    """Deleting what is old."""

    def purge(self, which: DeadFilter, *, limit: int) -> Verb[int]:
        """Delete dead letters, oldest first; returns how many."""
        ...

    def sweep(self, *, older_than: timedelta, limit: int) -> Verb[Swept]:
        """Delete old delivered messages and dead letters, and windows that have ended."""
        ...


class Controlling(Protocol):
    """What steers a store, and what says why."""

    def pause(
        self,
        queue: str,
        *,
        ordering_key: str | None,
        until: Due,
        by: str,
        reason: str | None,
        automatic: bool,
    ) -> Verb[Change[None]]:
        """Claim nothing of this queue, or of this ordering key in it."""
        ...

    def resume(self, queue: str, *, ordering_key: str | None, automatic: bool) -> Verb[Change[bool]]:
        """End this pause; returns whether it was in force."""
        ...

    def probe_again(self, probe: Delivery) -> Verb[Change[None]]:
        """Let the next probe through, unless the pause was set or renewed since this one was claimed."""
        ...

    def pauses(self, queue: str | None) -> Verb[list[Pause]]:
        """The pauses in force, in order."""
        ...

    def request_stop(self, id_: int, by: str) -> Verb[bool]:
        """Ask the holder of this message to stop it; returns whether it runs."""
        ...

    def report(self, worker: WorkerReport) -> Verb[None]:
        """Note this worker, and forget those that were not seen for a day."""
        ...

    def sign_off(self, worker_id: str) -> Verb[None]:
        """Forget this worker."""
        ...

    def workers(self) -> Verb[list[WorkerRecord]]:
        """Those seen within the last day, in order."""
        ...

    def last_consumers(self) -> Verb[dict[str, LastConsumer]]:
        """Who consumed each queue last, within 90 days."""
        ...

    def leases(self, limit: int) -> Verb[list[LeasedMessage]]:
        """Running messages, the longest running first."""
        ...

    def facts(self, id_: int) -> Verb[MessageFacts]:
        """What is known about this message."""
        ...


@dataclass(frozen=True, slots=True)
class Verbs:
    """The verbs of one store."""

    publishing: Publishing
    messages: UnderLease
    letters: UnderLease
    timers: Timers
    inspecting: Inspecting
    redriving: Redriving
    sweeping: Sweeping
    controlling: Controlling

    def of(self, deliveries: Sequence[Delivery]) -> UnderLease:
        """The verbs for these deliveries: a batch is all of one kind, so its first decides."""
        return self.letters if deliveries and isinstance(deliveries[0], DeadDelivery) else self.messages


class Runtime(Protocol):
    """What exists while a store is open: its connections, and what carries verbs out on them."""

    @property
    def keeper(self) -> KeeperThread[Any]:
        """The thread that renews leases."""
        ...

    async def publish_one(self, message: Message) -> int:
        """Store a message without a timer id, perhaps in one commit with others."""
        ...

    async def write(
        self, make: MakeVerb[T], *, lost: type[StoreUnavailable] = StoreUnavailable, timer: bool = False
    ) -> T:
        """Carry out a write and commit it. `timer`: it may have to wait for another transaction."""
        ...

    async def read(self, make: MakeVerb[T]) -> T:
        """Carry out a query."""
        ...

    def claim(self, wanted: Wanted) -> Awaitable[Claimed]:
        """Lease messages."""
        ...

    def claim_dead(self, wanted: Wanted) -> Awaitable[Claimed]:
        """Lease dead letters."""
        ...

    async def recall(self, make: MakeVerb[Change[int]]) -> int:
        """Hand back what a claim leased whose reply was lost."""
        ...

    def settle(
        self,
        batch: Sequence[Settlement],
        settle: Callable[[Sequence[Settlement]], Verb[Change[list[WriteResult]]]],
    ) -> Awaitable[Change[list[WriteResult]]]:
        """Write outcomes, and ring. A row that the database refuses does not fail the others."""
        ...

    def settled(self, batch: Sequence[Settlement]) -> None:
        """These outcomes were written: have the next claim look where that makes a difference."""
        ...

    async def extend(self, make: MakeVerb[list[WriteResult]], count: int) -> list[WriteResult]:
        """Extend `count` leases."""
        ...

    def bell(self, queues: Sequence[str]) -> Bell:
        """A bell for these queues."""
        ...

    def ring(self, queues: Iterable[str]) -> None:
        """Wake the workers of these queues."""
        ...


class Joining(Protocol):
    """Carries verbs out in callers' transactions, after checking that they are in our database.

    Usable while the store is closed too: synchronous code may publish without an event loop.
    """

    async def join(self, transaction: object, make: MakeVerb[T]) -> T:
        """Carry out a verb in this transaction, or raise. One of synchronous code (`Blocking`) never suspends."""
        ...


class SQLStore(ABC):
    """The verbs of a store, for every SQL database. What is said on `Store` holds; this only adds how."""

    _cancels_at_once: ClassVar[int] = 10_000
    """How many messages `cancel_all` removes before it commits."""

    def __init__(self, verbs: Verbs, joining: Joining, *, max_body_bytes: int) -> None:
        self._max_body_bytes = check_max_body_bytes(max_body_bytes)
        self._verbs = verbs
        self._joining = joining

    @property
    @abstractmethod
    def _runtime(self) -> Runtime:
        """What exists while the store is open; raises if it is not."""

    @property
    def max_body_bytes(self) -> int:
        """See `Store.max_body_bytes`."""
        return self._max_body_bytes

    # ------------------------------------------------------------------------------------- publish

    async def publish(
        self, message: Message, *, transaction: object | None = None, own: Delivery | None = None
    ) -> int | None:
        """See `Store.publish`."""
        check_size(message, self._max_body_bytes)
        if transaction is None and own is None and message.timer_id is None:
            return await self._runtime.publish_one(message)
        verb = partial(self._verbs.publishing.publish, message, own)
        if transaction is not None:
            return (await self._joining.join(transaction, verb)).result
        return await self._write(verb, None, lost=PublishUncertain, timer=True)

    async def publish_batch(
        self, messages: Sequence[Message], *, transaction: object | None = None
    ) -> list[int]:
        """See `Store.publish_batch`."""
        check_batch(messages, self._max_body_bytes)
        if not messages:
            return []
        verb = partial(self._verbs.publishing.publish_batch, messages)
        return await self._write(verb, transaction, lost=PublishUncertain)

    # --------------------------------------------------------------------------------- under a lease

    async def claim(
        self,
        queues: Sequence[str],
        *,
        limit: int,
        lease: timedelta,
        token: UUID,
        max_bytes: int = CLAIM_BYTES,
    ) -> Claimed:
        """See `Store.claim`."""
        wanted = wanted_of(queues, limit=limit, lease=lease, token=token, max_bytes=max_bytes)
        return NOTHING if wanted is None else await self._runtime.claim(wanted)

    async def claim_dead(
        self,
        queues: Sequence[str],
        *,
        limit: int,
        lease: timedelta,
        token: UUID,
        max_bytes: int = CLAIM_BYTES,
    ) -> Claimed:
        """See `Store.claim_dead`."""
        wanted = wanted_of(queues, limit=limit, lease=lease, token=token, max_bytes=max_bytes)
        return NOTHING if wanted is None else await self._runtime.claim_dead(wanted)

    async def recall(self, queues: Sequence[str], token: UUID) -> int:
        """See `Store.recall`."""
        unique = tuple(dict.fromkeys(queues))
        return await self._runtime.recall(partial(self._verbs.messages.recall, unique, token))

    async def recall_dead(self, queues: Sequence[str], token: UUID) -> int:
        """See `Store.recall_dead`."""
        unique = tuple(dict.fromkeys(queues))
        return await self._runtime.recall(partial(self._verbs.letters.recall, unique, token))

    async def settle(self, batch: Sequence[Settlement]) -> list[WriteResult]:
        """See `Store.settle`."""
        if not batch:
            return []
        runtime = self._runtime
        change = await runtime.settle(batch, self._verbs.of([batch[0].delivery]).settle)
        runtime.settled(batch)
        return change.result

    async def extend(self, deliveries: Sequence[Delivery], lease: timedelta) -> list[WriteResult]:
        """See `Store.extend`."""
        if not deliveries:
            return []
        verb = partial(self._verbs.of(deliveries).extend, deliveries, lease)
        return await self._runtime.extend(verb, len(deliveries))

    def run_on_keeper_thread(
        self, work: Callable[[Extend], Awaitable[None]], *, lingers: Lingers | None = None
    ) -> AbstractAsyncContextManager[None]:
        """See `Store.run_on_keeper_thread`."""
        return self._runtime.keeper.run_on_keeper_thread(work, lingers=lingers)

    async def hold(self, deliveries: Sequence[Delivery], *, transaction: object) -> None:
        """See `Store.hold`."""
        await self._joining.join(transaction, partial(self._verbs.of(deliveries).hold, deliveries))

    async def ack(self, deliveries: Sequence[Delivery], *, transaction: object) -> None:
        """See `Store.ack`."""
        await self._joining.join(transaction, partial(self._verbs.of(deliveries).ack, deliveries))

    # -------------------------------------------------------------------------------------- timers

    async def cancel(self, queue: str, timer_id: str, *, transaction: object | None = None) -> bool:
        """See `Store.cancel`."""
        check_queue(queue)
        check_name("timer_id", timer_id)
        return await self._write(partial(self._verbs.timers.cancel, queue, timer_id), transaction, timer=True)

    async def cancel_all(
        self, queue: str, *, limit: int | None = None, transaction: object | None = None
    ) -> int:
        """See `Store.cancel_all`. Without `limit` and `transaction` it commits in portions."""
        check_queue(queue)
        if limit is None and transaction is None:
            # If the caller is cancelled, this still runs to the end.
            return await asyncio.shield(asyncio.ensure_future(self._cancel_in_portions(queue)))
        verb = partial(self._verbs.timers.cancel_all, queue, limit=limit)
        return await self._write(verb, transaction, timer=True)

    async def _cancel_in_portions(self, queue: str) -> int:
        """One statement for a very large queue would be cut off by its time-out, again and again."""
        timers = self._verbs.timers
        newest = await self._runtime.read(timers.newest)
        portion = partial(timers.cancel_all, queue, limit=self._cancels_at_once, newest=newest)
        removed = 0
        while some := await self._write(portion, None, timer=True):
            removed += some
        return removed

    async def reschedule(
        self, queue: str, timer_id: str, due: datetime | timedelta, *, transaction: object | None = None
    ) -> bool:
        """See `Store.reschedule`."""
        check_queue(queue)
        check_name("timer_id", timer_id)
        check_due(due)
        verb = partial(self._verbs.timers.reschedule, queue, timer_id, due)
        return await self._write(verb, transaction, timer=True)

    # --------------------------------------------------------------------------------- for operators

    def listen(self, queues: Sequence[str]) -> Bell:
        """See `Store.listen`."""
        return self._runtime.bell(queues)

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
        """See `Inspection.peek`."""
        verb = partial(
            self._verbs.inspecting.peek,
            queue,
            timer_id=timer_id,
            due_before=due_before,
            limit=limit,
            cursor=cursor,
        )
        return await self._read(verb, transaction)

    async def find(self, ids: Sequence[int]) -> list[StoredMessage]:
        """See `Inspection.find`."""
        if not ids:
            return []
        return await self._runtime.read(partial(self._verbs.inspecting.find, ids))

    async def dead(
        self,
        which: DeadFilter,
        *,
        limit: int = 100,
        cursor: int | None = None,
        max_bytes: int = CLAIM_BYTES,
    ) -> list[DeadLetter]:
        """See `Inspection.dead`."""
        verb = partial(self._verbs.inspecting.dead, which, limit=limit, cursor=cursor, max_bytes=max_bytes)
        return await self._runtime.read(verb)

    async def summarize_dead(self, which: DeadFilter, *, limit: int = 100) -> DeadSummary:
        """See `Inspection.summarize_dead`."""
        return await self._runtime.read(partial(self._verbs.inspecting.summarize_dead, which, limit=limit))

    async def stats(self) -> dict[str, QueueStats]:
        """See `Inspection.stats`."""
        return await self._runtime.read(self._verbs.inspecting.stats)

    async def redrive(
        self, letters: Sequence[DeadLetter], *, to: str | None = None, keep_timer_ids: bool = True
    ) -> list[int]:
        """See `Inspection.redrive`."""
        if to is not None:
            check_queue(to)
        if not letters:
            return []
        verb = partial(self._verbs.redriving.redrive, letters, to=to, keep_timer_ids=keep_timer_ids)
        return await self._write(verb, None)

    async def purge(self, which: DeadFilter, *, limit: int) -> int:
        """See `Inspection.purge`."""
        return await self._runtime.write(partial(self._verbs.sweeping.purge, which, limit=limit))

    async def sweep(self, *, older_than: timedelta, limit: int) -> Swept:
        """See `Inspection.sweep`."""
        return await self._runtime.write(
            partial(self._verbs.sweeping.sweep, older_than=older_than, limit=limit)
        )

    # ------------------------------------------------------------------------ steering, and asking why

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
        """See `Control.pause`."""
        check_pause(queue, ordering_key, until, by, automatic=automatic)
        verb = partial(
            self._verbs.controlling.pause,
            queue,
            ordering_key=ordering_key,
            until=until,
            by=by,
            reason=storable_reason(reason),
            automatic=automatic,
        )
        await self._write(verb, None)

    async def resume(self, queue: str, *, ordering_key: str | None = None, automatic: bool = False) -> bool:
        """See `Control.resume`."""
        # The row of a whole queue has an empty ordering key: resuming that would end another pause.
        check_pausable(queue, ordering_key)
        verb = partial(self._verbs.controlling.resume, queue, ordering_key=ordering_key, automatic=automatic)
        return await self._write(verb, None)

    async def probe_again(self, probe: Delivery) -> None:
        """See `Control.probe_again`."""
        await self._write(partial(self._verbs.controlling.probe_again, probe), None)

    async def pauses(self, queue: str | None = None) -> list[Pause]:
        """See `Control.pauses`."""
        return await self._runtime.read(partial(self._verbs.controlling.pauses, queue))

    async def request_stop(self, id_: int, *, by: str) -> bool:
        """See `Control.request_stop`."""
        check_name("by", by)
        return await self._runtime.write(partial(self._verbs.controlling.request_stop, id_, by), timer=True)

    async def report(self, worker: WorkerReport) -> None:
        """See `Control.report`."""
        await self._runtime.write(partial(self._verbs.controlling.report, worker))

    async def sign_off(self, worker_id: str) -> None:
        """See `Control.sign_off`."""
        await self._runtime.write(partial(self._verbs.controlling.sign_off, worker_id))

    async def workers(self) -> list[WorkerRecord]:
        """See `Control.workers`."""
        return await self._runtime.read(self._verbs.controlling.workers)

    async def last_consumers(self) -> dict[str, LastConsumer]:
        """See `Control.last_consumers`."""
        return await self._runtime.read(self._verbs.controlling.last_consumers)

    async def leases(self, *, limit: int = 1000) -> list[LeasedMessage]:
        """See `Control.leases`."""
        return await self._runtime.read(partial(self._verbs.controlling.leases, limit))

    async def facts(self, id_: int) -> MessageFacts:
        """See `Control.facts`."""
        return await self._runtime.read(partial(self._verbs.controlling.facts, id_))

    # ------------------------------------------------------------------------- on whose connection

    async def _read(self, make: MakeVerb[T], transaction: object | None) -> T:
        """Carry out a query on a connection of ours, or in the caller's transaction."""
        if transaction is not None:
            return await self._joining.join(transaction, make)
        return await self._runtime.read(make)

    async def _write(
        self,
        make: MakeVerb[Change[T]],
        transaction: object | None,
        *,
        lost: type[StoreUnavailable] = StoreUnavailable,
        timer: bool = False,
    ) -> T:
        """Carry out a write on a connection of ours, or in the caller's transaction.

        In a caller's transaction nothing is rung here: it is not committed yet.
        """
        if transaction is not None:
            return (await self._joining.join(transaction, make)).result
        change = await self._runtime.write(make, lost=lost, timer=timer)
        self._runtime.ring(change.rings)
        return change.result
