"""What exists while a store is open: connections, what is remembered between calls, and where each verb runs.

    claim     one at a time, for all subscribers of the process; dead letters too
    settle    settlements, and renewals asked for on the event loop
    publish   publishes outside a caller's transaction, timers, and operator queries
    wakeups   polls for what others have made available; opened when something listens
    keeper    renewals, on a thread of its own; open while `run_on_keeper_thread` is in use

What runs in a caller's transaction uses none of these.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Final, TypeVar

from nightmail.bell import Bell
from nightmail.clock import Clock
from nightmail.errors import StoreUnavailable
from nightmail.message import Delivery, Message
from nightmail.outcome import Release, WriteResult
from nightmail.store import Claimed, Settlement
from nightmail.stores.mysql.claiming import Claims
from nightmail.stores.mysql.errors import is_refusal
from nightmail.stores.mysql.lane import CLAIM, KEEPER, PUBLISH, SETTLE, Lane, Role
from nightmail.stores.mysql.letters import Letters
from nightmail.stores.mysql.link import Link
from nightmail.stores.mysql.publishing import Publishing
from nightmail.stores.mysql.timers import Timers
from nightmail.stores.mysql.times import is_soon
from nightmail.stores.mysql.wakeups import WakeupPoller
from nightmail.stores.shared.coalescing import PublishCoalescer
from nightmail.stores.shared.duplicates import split_duplicates
from nightmail.stores.shared.keeper_thread import KeeperThread
from nightmail.stores.shared.wanted import Wanted
from nightmail.stores.sql.store import Verbs
from nightmail.stores.sql.verbs import Change, MakeVerb, Verb, carry_out

T = TypeVar("T")

MOST_BYTES: Final = 2 * 1024 * 1024
"""On the wire it is twice that, and by default servers accept packets up to 16 MB."""


@dataclass(frozen=True, slots=True)
class MySQLVerbs(Verbs):
    """The verbs of this store, some of which do more than the others' do."""

    publishing: Publishing
    letters: Letters
    timers: Timers


class Runtime:
    """On one event loop, until it is closed."""

    def __init__(
        self,
        new_lane: Callable[[Role], Lane],
        verbs: MySQLVerbs,
        claims: Claims,
        wakeups: WakeupPoller,
        clock: Clock,
    ) -> None:
        self.claim_lane, self.settle_lane, self.publish_lane = map(new_lane, (CLAIM, SETTLE, PUBLISH))
        self.listener = wakeups
        self.keeper = KeeperThread(lambda: new_lane(KEEPER), self._extend_on)
        self._verbs = verbs
        self._claims = claims
        self._clock = clock
        self._coalescer = PublishCoalescer(
            self.publish_lane, self._store, is_refusal=is_refusal, most_bytes=MOST_BYTES
        )

    async def close(self) -> None:
        """Close every connection, and stop the thread."""
        # Concurrently: if the server hangs, each one takes its full timeout.
        await asyncio.gather(
            self.listener.close(),
            self.keeper.close(),
            *(lane.close() for lane in (self.claim_lane, self.publish_lane, self.settle_lane)),
        )

    def terminate(self) -> None:
        """See `shared.server_store.Runtime.terminate`."""
        self.listener.terminate()
        for lane in (self.claim_lane, self.publish_lane, self.settle_lane):
            lane.terminate()

    # --------------------------------------------------------------------------------- see `sql.store.Runtime`

    async def publish_one(self, message: Message) -> int:
        """Store a message without a timer id, perhaps in one commit with others."""
        stored = await self._coalescer.publish(message)
        if is_soon(message.due, self._clock):
            self.listener.ring(message.queue)
        return stored

    async def write(
        self, make: MakeVerb[T], *, lost: type[StoreUnavailable] = StoreUnavailable, timer: bool = False
    ) -> T:
        """Carry out a write. That of a timer decides step by step, so it gets a transaction around it.

        The others send packets that begin and commit by themselves.
        """
        if timer:
            return await self.publish_lane.run_patiently(
                lambda link: _in_transaction(link, make()), lost=lost
            )
        return await self.publish_lane.carry_out(make, lost=lost, patient=True)

    async def read(self, make: MakeVerb[T]) -> T:
        """Carry out a query."""
        return await self.publish_lane.carry_out(make, patient=True)

    async def claim(self, wanted: Wanted) -> Claimed:
        """Lease messages."""
        claimed = await self.claim_lane.carry_out(self._claims.claim(wanted))
        self.listener.claimed(wanted.queues, found=bool(claimed.deliveries))
        return claimed

    async def look_ahead(self, queues: Sequence[str]) -> dict[str, timedelta]:
        """See `LooksAhead.look_ahead`."""
        return await self.claim_lane.carry_out(partial(self._claims.look_ahead, queues))

    async def claim_dead(self, wanted: Wanted) -> Claimed:
        """Lease dead letters."""
        claimed = await self.claim_lane.carry_out(partial(self._verbs.letters.claim, wanted))
        self.listener.claimed_dead(wanted.queues, found=bool(claimed.deliveries))
        return claimed

    async def recall(self, make: MakeVerb[Change[int]]) -> int:
        """Hand back what a claim leased whose reply was lost."""
        change = await self.claim_lane.carry_out(make)
        if change.result:
            self._claims.look_everywhere()
            self.ring(change.rings)
        return change.result

    async def settle(
        self,
        batch: Sequence[Settlement],
        settle: Callable[[Sequence[Settlement]], Verb[Change[list[WriteResult]]]],
    ) -> Change[list[WriteResult]]:
        """Write outcomes. A row that the database refuses does not fail the others."""
        results: dict[int, WriteResult] = {}
        for part in split_duplicates([settlement.delivery for settlement in batch]):
            # Each by itself: if one has to be tried again, those before it are written already.
            change = await self.settle_lane.carry_out(partial(settle, [batch[place] for place in part]))
            results.update(zip(part, change.result, strict=True))
            if change.rings:
                self.ring(change.rings)
        return Change([results[place] for place in range(len(batch))])

    def settled(self, batch: Sequence[Settlement]) -> None:
        """Released messages are available again at their old places, behind the marks."""
        if any(isinstance(each.outcome, Release) for each in batch):
            self._claims.look_everywhere()

    async def extend(self, make: MakeVerb[list[WriteResult]], count: int) -> list[WriteResult]:
        """Extend `count` leases."""
        return await self.settle_lane.carry_out(make)

    def bell(self, queues: Sequence[str]) -> Bell:
        """A bell for these queues."""
        return self.listener.bell(*queues)

    def ring(self, queues: Iterable[str]) -> None:
        """Wake the workers of these queues."""
        self.listener.ring_each(queues)

    # ---------------------------------------------------------------------------------------- inside

    async def _store(self, link: Link, messages: Sequence[Message]) -> list[int]:
        return await carry_out(self._verbs.publishing.store(messages), link.send)

    async def _extend_on(
        self, lane: Lane, deliveries: Sequence[Delivery], lease: timedelta
    ) -> list[WriteResult]:
        return await lane.carry_out(partial(self._verbs.of(deliveries).extend, deliveries, lease))


async def _in_transaction(link: Link, verb: Verb[T]) -> T:
    """Carry out a verb in a transaction of ours, begun with its first statement, at read committed."""
    begun = False

    async def send(request: object) -> object:
        nonlocal begun
        if not isinstance(request, str):
            return await link.send(request)
        begin = () if begun else ("begin",)
        begun = True
        return (await link.ask(*begin, request))[-1]

    result = await carry_out(verb, send)
    if begun:
        await link.ask("commit")
    return result
