"""The store's server: the memory store, which keeps the contract, and a journal of all it does.

A call is carried out here, in a task of the server: what happens to its caller meanwhile makes no difference.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from random import Random
from typing import Any, Final
from uuid import UUID

from nightmail.bell import Bells
from nightmail.controls import WorkerReport
from nightmail.errors import TimerExists
from nightmail.message import Delivery, Message
from nightmail.outcome import Dead, WriteResult
from nightmail.store import Claimed as ClaimReply
from nightmail.store import Settlement
from nightmail.stores.memory import MemoryData, MemoryStore
from nightmail.testing.clock import START
from tests.simulation.events import (
    Cancelled,
    Claimed,
    Event,
    Extended,
    Outcome,
    Paused,
    ProbedAgain,
    Reported,
    Rescheduled,
    Resumed,
    Settled,
    SignedOff,
    StopRequested,
    Stored,
)
from tests.simulation.journal import Journal
from tests.simulation.loop import SimLoop, World

_MICRO: Final = timedelta(microseconds=1)


def micros(moment: datetime) -> int:
    """A moment of the store's clock, as journals have it."""
    return (moment - START) // _MICRO


class Server:
    """One store that all processes use. Its clock is the world's."""

    def __init__(self, world: World, journal: Journal, chance: Random) -> None:
        self.loop = world.loop("server")
        self.data = MemoryData()
        self.store = MemoryStore(self.data, clock=self)
        self.wakeups = Wakeups(self.loop, chance, journal)
        # The memory store keeps only a weak reference to who listens.
        self.data.tables.listeners[self.wakeups] = None
        self.transactions = 0
        """How many are open."""
        self.poison: set[str] = set()
        """The tags of messages that kill their process."""
        self._world = world
        self._journal = journal
        self._tokens: dict[UUID, str] = {}

    def now(self) -> datetime:
        """The store's clock."""
        return START + timedelta(microseconds=self._world.micros)

    def token(self, token: UUID) -> str:
        """A short name for this token."""
        return self._tokens.setdefault(token, f"c{len(self._tokens) + 1}")

    def note(self, kind: type[Event], **facts: Any) -> None:
        """Write this into the journal."""
        self._journal.note(kind(at=self._world.micros, **facts))

    @property
    def waiting(self) -> tuple[int, ...]:
        """The messages that are not done."""
        return tuple(id_ for queue in self.data.tables.queues.values() for id_ in queue.rows)

    @property
    def letters(self) -> tuple[int, ...]:
        """The messages that died."""
        return tuple(letter.record.message_id for letter in self.data.tables.letters())

    async def publish(
        self, message: Message, own: Delivery | None, transaction: object | None = None
    ) -> int | None:
        """Carry out `Store.publish`."""
        tag = message.body.decode()
        try:
            id_ = await self.store.publish(message, own=own, transaction=transaction)
        except TimerExists:
            self._stored(message, tag, None, own)
            raise
        self._stored(message, tag, id_, own)
        return id_

    def _stored(self, message: Message, tag: str, id_: int | None, own: Delivery | None) -> None:
        row = None if id_ is None else self.data.tables.queue(message.queue).rows[id_]
        self.note(
            Stored,
            tag=tag,
            id=id_,
            queue=message.queue,
            due=0 if row is None else micros(row.due_at),
            timer=message.timer_id,
            on_conflict=message.on_conflict,
            dedup=0 if message.dedup_for is None else message.dedup_for // _MICRO,
            key=message.ordering_key,
            expires=None if row is None or row.expires_at is None else micros(row.expires_at),
            own=None if own is None else own.id,
            poison=tag in self.poison,
        )

    async def cancel(self, queue: str, timer: str) -> bool:
        """Carry out `Store.cancel`."""
        # In a transaction, so that it has its turn before the owner is looked up.
        async with self.data.transaction() as transaction:
            owner = self.data.tables.queue(queue).owner_of(timer)
            removed = await self.store.cancel(queue, timer, transaction=transaction)
            if removed and owner is not None:
                self.note(Cancelled, id=owner.id)
        return removed

    async def reschedule(self, queue: str, timer: str, due: timedelta) -> bool:
        """Carry out `Store.reschedule`."""
        if await self.store.reschedule(queue, timer, due):
            owner = self.data.tables.queue(queue).owner_of(timer)
            assert owner is not None
            self.note(Rescheduled, id=owner.id, due=micros(owner.due_at))
            return True
        return False

    async def claim(
        self, worker: str, unheard: Callable[[], bool], queues: Sequence[str], **options: Any
    ) -> ClaimReply:
        """Carry out `Store.claim`."""
        reply = await self.store.claim(queues, **options)
        until = self._world.micros + options["lease"] // _MICRO
        for each in reply.deliveries:
            self.note(
                Claimed,
                worker=worker,
                id=each.id,
                token=self.token(each.token),
                until=until,
                attempts=each.attempts,
                deliveries=each.deliveries,
                superseded=each.superseded,
                unheard=unheard(),
                probe=reply.probe,
            )
        return reply

    async def recall(self, worker: str, queues: Sequence[str], token: UUID) -> int:
        """Carry out `Store.recall`."""
        leased = [
            (queue, id_)
            for queue in queues
            for id_, row in self.data.tables.queue(queue).rows.items()
            if row.token == token
        ]
        count = await self.store.recall(queues, token)
        for queue, id_ in leased:
            row = self.data.tables.queue(queue).rows.get(id_)
            if row is not None and row.token is None:
                self._settled(
                    worker, id_, token, "release", WriteResult.WRITTEN, changed=True, due=micros(row.due_at)
                )
        return count

    async def settle(self, worker: str, batch: Sequence[Settlement]) -> list[WriteResult]:
        """Carry out `Store.settle`: one after the other, in the same moment, to see what each changes."""
        results = []
        for settlement in batch:
            delivery, outcome = settlement.delivery, settlement.outcome
            before = self._row(delivery)
            [result] = await self.store.settle([settlement])
            after = self._row(delivery)
            self._settled(
                worker,
                delivery.id,
                delivery.token,
                _OUTCOMES[type(outcome).__name__],
                result,
                changed=before != after,
                reason=outcome.reason if isinstance(outcome, Dead) else None,
                due=None if after is None else micros(after["due_at"]),
            )
            results.append(result)
        return results

    def _settled(
        self,
        worker: str,
        id_: int,
        token: UUID,
        outcome: Outcome,
        result: WriteResult,
        *,
        changed: bool,
        reason: str | None = None,
        due: int | None = None,
    ) -> None:
        self.note(
            Settled,
            worker=worker,
            id=id_,
            token=self.token(token),
            outcome=outcome,
            result=str(result),
            changed=changed,
            reason=reason,
            due=due,
        )

    async def extend(self, deliveries: Sequence[Delivery], lease: timedelta) -> list[WriteResult]:
        """Carry out `Store.extend`."""
        results = await self.store.extend(deliveries, lease)
        until = self._world.micros + lease // _MICRO
        for each, result in zip(deliveries, results, strict=True):
            self.note(
                Extended,
                id=each.id,
                token=self.token(each.token),
                until=until,
                written=result in (WriteResult.WRITTEN, WriteResult.STOP),
                stop=result is WriteResult.STOP,
            )
        return results

    async def pause(self, queue: str, *, until: timedelta | None = None, **options: Any) -> None:
        """Carry out `Control.pause`."""
        await self.store.pause(queue, until=until, **options)
        self.note(
            Paused,
            queue=queue,
            key=options.get("ordering_key"),
            until=None if until is None else self._world.micros + until // _MICRO,
            automatic=options.get("automatic", False),
        )

    async def resume(self, queue: str, *, key: str | None = None, automatic: bool = False) -> bool:
        """Carry out `Control.resume`."""
        ended = await self.store.resume(queue, ordering_key=key, automatic=automatic)
        if ended:
            self.note(Resumed, queue=queue, key=key, automatic=automatic)
        return ended

    async def probe_again(self, probe: Delivery) -> None:
        """Carry out `Control.probe_again`."""
        await self.store.probe_again(probe)
        self.note(ProbedAgain, queue=probe.queue, id=probe.id, token=self.token(probe.token))

    async def resume_all(self) -> None:
        """End every pause of an operator's."""
        for pause in await self.store.pauses():
            if not pause.automatic:
                await self.resume(pause.queue, key=pause.ordering_key)

    async def request_stop(self, id_: int, by: str) -> bool:
        """Carry out `Control.request_stop`."""
        asked = await self.store.request_stop(id_, by=by)
        if asked:
            self.note(StopRequested, id=id_)
        return asked

    def ids_of(self, tag: str) -> list[int]:
        """The messages with this tag that are not done."""
        return [
            id_
            for queue in self.data.tables.queues.values()
            for id_, row in queue.rows.items()
            if row.body.decode() == tag
        ]

    async def report(self, worker: str, report: WorkerReport) -> None:
        """Carry out `Control.report`."""
        await self.store.report(report)
        self.note(Reported, worker=worker, id=report.id)

    async def sign_off(self, id_: str) -> None:
        """Carry out `Control.sign_off`."""
        await self.store.sign_off(id_)
        self.note(SignedOff, id=id_)

    def _row(self, delivery: Delivery) -> dict[str, Any] | None:
        row = self.data.tables.queue(delivery.queue).rows.get(delivery.id)
        return None if row is None else dict(vars(row))


_OUTCOMES: Final[dict[str, Outcome]] = {
    "Done": "done",
    "Retry": "retry",
    "Postpone": "postpone",
    "Dead": "dead",
    "Release": "release",
}


class Wakeups(Bells):
    """Passes each ring of the store on to the processes: late, twice, or never."""

    def __init__(self, loop: SimLoop, chance: Random, journal: Journal) -> None:
        super().__init__()
        self.lost = 0.0
        """How likely one gets lost."""
        self._loop = loop
        self._chance = chance
        self._journal = journal
        self._subscribers: dict[str, tuple[SimLoop, Bells]] = {}
        self._rung: set[str] = set()

    def subscribe(self, name: str, loop: SimLoop, bells: Bells) -> None:
        """From now on this process is woken."""
        self._subscribers[name] = loop, bells

    def ring(self, queue: str) -> None:
        # Passed on in a step of its own, sorted: one commit rings its queues in an order that the hash seed decides.
        if not self._rung:
            self._loop.call_soon(self._pass_on)
        self._rung.add(queue)

    def _pass_on(self) -> None:
        queues, self._rung = sorted(self._rung), set()
        for loop, bells in self._subscribers.values():
            if loop.is_dead:
                continue
            for queue in queues:
                for delay in self._delays():
                    loop.call_later(delay, bells.ring, queue)

    def _delays(self) -> list[float]:
        chance, usual = self._chance, self._chance.uniform(0.0002, 0.002)
        if not self.lost or self._journal.is_calm:
            return [usual]
        drawn = chance.random()
        if drawn < self.lost:
            self._journal.faults["wake-up lost"] += 1
            return []
        if drawn < self.lost * 1.5:
            self._journal.faults["wake-up twice"] += 1
            return [usual, chance.uniform(0.0, 1.0)]
        return [usual]


async def forever() -> None:
    """Wait until the process dies."""
    await asyncio.Event().wait()
