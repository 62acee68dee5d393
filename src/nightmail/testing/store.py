"""The memory store as test brokers use it: on a clock moved by hand, and in any transaction."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import replace
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, Final, TypeAlias
from uuid import UUID

from nightmail.controls import LastConsumer, WorkerRecord, WorkerReport
from nightmail.limits import CLAIM_BYTES
from nightmail.message import Delivery, Message
from nightmail.store import Capabilities, Claimed
from nightmail.stores.memory import MemoryStore
from nightmail.testing.clock import ManualClock
from nightmail.testing.endings import begun
from nightmail.testing.transactions import VirtualData

OnPublish: TypeAlias = Callable[[Message, int], Awaitable[None]]
OnStop: TypeAlias = Callable[[int], None]
Present: TypeAlias = Callable[[], Iterable[WorkerReport]]


class Place(Enum):
    """Where a worker takes its messages from."""

    QUEUE = "what waits in its queues"
    DEAD_LETTERS = "what died in its queues"


class VirtualStore(MemoryStore):
    """Stands in for another store, whose capabilities it shows; reports everything that is published."""

    def __init__(
        self,
        data: VirtualData,
        clock: ManualClock,
        *,
        instead_of: Capabilities,
        on_publish: OnPublish,
        on_stop: OnStop,
        present: Present,
    ) -> None:
        super().__init__(data, clock=clock)
        self._virtual = data
        self._shown = instead_of
        self._on_publish = on_publish
        self._on_stop = on_stop
        self._present = present

    @property
    def capabilities(self) -> Capabilities:
        """Those of the store it stands in for: what that one refuses, this one refuses."""
        return self._shown

    async def publish(
        self, message: Message, *, transaction: object | None = None, own: Delivery | None = None
    ) -> int | None:
        """Store a message, and report it."""
        stored = await super().publish(message, transaction=transaction, own=own)
        if stored is not None:
            await self._on_publish(message, stored)
        return stored

    async def publish_batch(
        self, messages: Sequence[Message], *, transaction: object | None = None
    ) -> list[int]:
        """Store messages, and report each."""
        stored = await super().publish_batch(messages, transaction=transaction)
        for message, id_ in zip(messages, stored, strict=True):
            await self._on_publish(message, id_)
        return stored

    async def hold(self, deliveries: Sequence[Delivery], *, transaction: object) -> None:
        """Lock these messages in the caller's transaction, if its end can be observed."""
        await begun(transaction)
        await super().hold(deliveries, transaction=transaction)
        self._virtual.conclude(transaction)

    async def ack(self, deliveries: Sequence[Delivery], *, transaction: object) -> None:
        """Settle these as done in the caller's transaction."""
        await begun(transaction)
        await super().ack(deliveries, transaction=transaction)
        self._virtual.conclude(transaction)

    async def request_stop(self, id_: int, *, by: str) -> bool:
        """Ask for this running message to be stopped, and report it: no lease is renewed on virtual time."""
        runs = await super().request_stop(id_, by=by)
        if runs:
            self._on_stop(id_)
        return runs

    async def workers(self) -> list[WorkerRecord]:
        """The workers that take part, seen just now."""
        await self._see_who_is_present()
        return await super().workers()

    async def last_consumers(self) -> dict[str, LastConsumer]:
        """Who consumed each queue last: the workers that take part are seen just now."""
        await self._see_who_is_present()
        return await super().last_consumers()

    async def _see_who_is_present(self) -> None:
        for report in self._present():
            await self.report(report)

    # ── what there is to do ────────────────────────────────────────────────────────────────────────────────

    async def claim(
        self,
        queues: Sequence[str],
        *,
        limit: int,
        lease: timedelta,
        token: UUID,
        max_bytes: int = CLAIM_BYTES,
    ) -> Claimed:
        """Lease available messages, within the limits that `serving` set."""

        async def claim(limit: int) -> Claimed:
            with self._virtual.committed_only():
                return await MemoryStore.claim(
                    self, queues, limit=limit, lease=lease, token=token, max_bytes=max_bytes
                )

        return await self._served(claim, limit)

    async def claim_dead(
        self,
        queues: Sequence[str],
        *,
        limit: int,
        lease: timedelta,
        token: UUID,
        max_bytes: int = CLAIM_BYTES,
    ) -> Claimed:
        """Like `claim`, for dead letters."""

        async def claim(limit: int) -> Claimed:
            return await MemoryStore.claim_dead(
                self, queues, limit=limit, lease=lease, token=token, max_bytes=max_bytes
            )

        return await self._served(claim, limit)

    async def _served(self, claim: Callable[[int], Awaitable[Claimed]], limit: int) -> Claimed:
        serving = _serving.get().get(self)
        if serving is None:
            return await claim(limit)
        most, more = serving
        claimed = await claim(min(limit, most))
        while not claimed.deliveries and more():
            claimed = await claim(min(limit, most))
        # Full only by the caller's own limit: the test broker claims again when it is time.
        return replace(claimed, full=len(claimed.deliveries) >= limit)

    @contextmanager
    def serving(self, most: int, more: Callable[[], bool]) -> Iterator[None]:
        """Claims of the worker that runs in the block take at most `most`, and look again if there is `more`.

        How many a worker asks for depends on the real clock. And a worker that claims again has nothing in flight: time
        may pass then, which is much faster than running the worker to its end at every step.
        """
        token = _serving.set({**_serving.get(), self: (most, more)})
        try:
            yield
        finally:
            _serving.reset(token)

    def ready(self, queues: Sequence[str], place: Place) -> tuple[datetime, int] | None:
        """The due time and id of the first message that could be claimed now."""
        now = self._now()
        found: list[tuple[datetime, int]] = []
        with self.data.step, self._virtual.committed_only():
            for queue in self._known(self._open(queues, place, now)):
                if place is Place.DEAD_LETTERS:
                    queue.letters.look(now)
                    if (first := queue.letters.longest_due()) is not None:
                        found.append(first)
                elif (row := queue.first_ready(now)) is not None:
                    found.append((row.due_at, row.id))
        return min(found, default=None)

    def next_moment(self, queues: Sequence[str], place: Place) -> datetime | None:
        """When something there is next due, a lease expires, or a pause ends."""
        now = self._now()
        with self.data.step:
            known = self._known(self._open(queues, place, now))
            boxes = [queue.letters if place is Place.DEAD_LETTERS else queue for queue in known]
            moments = [box.next_time() for box in boxes]
            if place is Place.QUEUE:
                moments.append(self.data.tables.controls.next_end(queues, now))
            return min((moment for moment in moments if moment is not None), default=None)

    def _open(self, queues: Sequence[str], place: Place, now: datetime) -> Sequence[str]:
        """Those of these queues of which something could be claimed now: dead letters are not paused."""
        if place is Place.DEAD_LETTERS:
            return queues
        controls = self.data.tables.controls
        free, probed = controls.open_queues(queues, now)
        for queue in self._known([*free, *probed]):
            queue.pause_keys(controls.paused_keys(queue.name, now))
        return [*free, *probed]


class VirtualPipelines(VirtualStore):
    """Stands in for Redis, where a handler's transaction is a pipeline."""

    @asynccontextmanager
    async def transaction(self, deliveries: Sequence[Delivery], client: Any) -> AsyncIterator[Any]:
        """A pipeline of this client, executed at the end of the block, which also acks these deliveries."""
        async with client.pipeline() as pipeline:
            with self._virtual.lasting(pipeline):
                await self.hold(deliveries, transaction=pipeline)
                yield pipeline
                await self.ack(deliveries, transaction=pipeline)
                await pipeline.execute()


# Only for the worker that runs in the block's context: time must not pass because of what others claim.
_serving: Final[ContextVar[Mapping[VirtualStore, tuple[int, Callable[[], bool]]]]] = ContextVar(
    "nightmail_serving",
    default={},  # noqa: B039 - never changed
)
