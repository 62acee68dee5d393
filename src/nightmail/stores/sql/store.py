"""The verbs of every SQL store: what is checked, where a verb runs, and who is told afterwards.

A store gives its verbs as generators (`Verbs`), what carries them out on its own connections (`Runtime`), and what
carries them out in callers' transactions (`Joining`). Its directory holds nothing else: it is the list of its
differences.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Protocol, TypeVar
from uuid import UUID

from nightmail.bell import Bell
from nightmail.errors import PublishUncertain, StoreUnavailable
from nightmail.limits import CLAIM_BYTES, check_batch, check_max_body_bytes, check_size
from nightmail.message import DeadDelivery, Delivery, Due, Message, check_due, check_name, check_queue
from nightmail.outcome import WriteResult
from nightmail.records import DeadFilter, DeadLetter, PendingMessage, QueueStats, Swept
from nightmail.store import Claimed, Extend, Lingers, Settlement
from nightmail.stores.shared.keeper_thread import KeeperThread
from nightmail.stores.sql.verbs import Change, MakeVerb, Verb

T = TypeVar("T")
NOTHING = Claimed((), None)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a claim asks for: each queue once, and at least one message."""

    queues: tuple[str, ...]
    limit: int
    lease: timedelta
    token: UUID
    max_bytes: int


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

    def cancel_all(self, queue: str) -> Verb[Change[int]]:
        """Remove every waiting message of this queue; returns how many."""
        ...

    def reschedule(self, queue: str, timer_id: str, due: Due) -> Verb[Change[bool]]:
        """Move the owner of this timer id to another due time, if it waits."""
        ...


class Inspecting(Protocol):
    """Queries for operators."""

    def peek(
        self, queue: str | None, *, timer_id: str | None, due_before: datetime | None, limit: int
    ) -> Verb[list[PendingMessage]]:
        """Waiting messages by due time."""
        ...

    def dead(
        self, which: DeadFilter, *, limit: int, cursor: int | None, max_bytes: int
    ) -> Verb[list[DeadLetter]]:
        """Dead letters, newest first."""
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

    async def settle(
        self,
        batch: Sequence[Settlement],
        settle: Callable[[Sequence[Settlement]], Verb[Change[list[WriteResult]]]],
    ) -> list[WriteResult]:
        """Write outcomes. A row that the database refuses does not fail the others."""
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
        wanted = Wanted(tuple(dict.fromkeys(queues)), limit, lease, token, max_bytes)
        if not wanted.queues or limit <= 0:
            return NOTHING
        return await self._runtime.claim(wanted)

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
        wanted = Wanted(tuple(dict.fromkeys(queues)), limit, lease, token, max_bytes)
        if not wanted.queues or limit <= 0:
            return NOTHING
        return await self._runtime.claim_dead(wanted)

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
        return await self._runtime.settle(batch, self._verbs.of([batch[0].delivery]).settle)

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

    async def cancel_all(self, queue: str, *, transaction: object | None = None) -> int:
        """See `Store.cancel_all`."""
        check_queue(queue)
        return await self._write(partial(self._verbs.timers.cancel_all, queue), transaction, timer=True)

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
        transaction: object | None = None,
    ) -> list[PendingMessage]:
        """See `Inspection.peek`."""
        verb = partial(
            self._verbs.inspecting.peek, queue, timer_id=timer_id, due_before=due_before, limit=limit
        )
        return await self._read(verb, transaction)

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
