"""What exists while a store is open: connections, state kept from one call to the next, and where each verb runs.

    claim     one at a time, for all subscribers of the process
    settle    settlements, and lease renewals requested on the event loop
    publish   publishes outside a caller's transaction, and operators' queries
    timers    publishes with a timer id, and changes to those: they may wait for another open transaction
    listen    notifications; opened by the first `listen`
    keeper    lease renewals, on the keeper thread; open while work runs there

What runs in a caller's transaction uses none of these.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Final, NamedTuple, TypeVar
from uuid import UUID

from nightmail.bell import Bell
from nightmail.clock import Clock
from nightmail.errors import StoreUnavailable
from nightmail.message import DeadDelivery, Delivery, Message
from nightmail.outcome import WriteResult
from nightmail.store import Claimed, Settlement
from nightmail.stores.postgres.claiming import Claims
from nightmail.stores.postgres.connect import Connect
from nightmail.stores.postgres.errors import is_refusal
from nightmail.stores.postgres.identity import TableIdentity
from nightmail.stores.postgres.lane import CLAIM, KEEPER, PUBLISH, SETTLE, TIMERS, Lane
from nightmail.stores.postgres.letters import Letters
from nightmail.stores.postgres.link import Link
from nightmail.stores.postgres.listen import Listener
from nightmail.stores.shared.coalescing import PublishCoalescer
from nightmail.stores.shared.keeper_thread import KeeperThread
from nightmail.stores.shared.wanted import Wanted
from nightmail.stores.sql.statements import Statement
from nightmail.stores.sql.store import Verbs
from nightmail.stores.sql.verbs import Ask, Change, MakeVerb, Verb, carry_out

T = TypeVar("T")

MOST_BYTES: Final = 4 * 1024 * 1024


class Lanes(NamedTuple):
    """Our connections on the event loop, but for the listener's."""

    claim: Lane
    settle: Lane
    publish: Lane
    timers: Lane


class Runtime:
    """The state of an open store, on one event loop, until it is closed."""

    def __init__(
        self,
        connect: Connect,
        statements: Mapping[str, Statement],
        clock: Clock,
        tables: TableIdentity,
        verbs: Verbs,
        letters: Letters,
        *,
        max_body_bytes: int,
    ) -> None:
        place = tables.place
        self.lanes = Lanes(*(Lane(role, connect, place) for role in (CLAIM, SETTLE, PUBLISH, TIMERS)))
        self.claims = Claims(statements, clock, max_body_bytes=max_body_bytes)
        self.listener = Listener(connect, place, tables.channel, self._notify, self.claims.look_everywhere)
        self.keeper = KeeperThread(lambda: Lane(KEEPER, connect, place), self._extend_on)
        self._coalescer = PublishCoalescer(
            self.lanes.publish, self._publish_together, is_refusal=is_refusal, most_bytes=MOST_BYTES
        )
        self._tables = tables
        self._verbs = verbs
        self._letters = letters
        self._ring = statements["ring"]

    async def close(self) -> None:
        """Close every connection and the thread: all at once, and soon even if the server does not answer."""
        await asyncio.gather(
            self.listener.close(), self.keeper.close(), *(lane.close() for lane in self.lanes)
        )

    def terminate(self) -> None:
        """See `shared.server_store.Runtime.terminate`."""
        for lane in self.lanes:
            lane.terminate()

    async def learn_identity(self) -> UUID:
        """Read the identity of our tables."""
        return await self.lanes.publish.run(self._tables.learn)

    # ------------------------------------------------------------------------------ carrying verbs out

    async def publish_one(self, message: Message) -> int:
        """See `Runtime.publish_one`."""
        return await self._coalescer.publish(message)

    async def write(
        self, make: MakeVerb[T], *, lost: type[StoreUnavailable] = StoreUnavailable, timer: bool = False
    ) -> T:
        """See `Runtime.write`."""
        lane = self.lanes.timers if timer else self.lanes.publish
        return await lane.carry_out(make, lost=lost, patient=True)

    async def read(self, make: MakeVerb[T]) -> T:
        """See `Runtime.read`."""
        return await self.lanes.publish.carry_out(make)

    def claim(self, wanted: Wanted) -> Awaitable[Claimed]:
        """See `Runtime.claim`."""
        return self.lanes.claim.carry_out(partial(self.claims.claim, wanted))

    def look_ahead(self, queues: Sequence[str]) -> Awaitable[dict[str, timedelta]]:
        """See `LooksAhead.look_ahead`."""
        return self.lanes.claim.carry_out(partial(self.claims.look_ahead, queues))

    def claim_dead(self, wanted: Wanted) -> Awaitable[Claimed]:
        """See `Runtime.claim_dead`."""
        return self.lanes.claim.carry_out(partial(self._letters.claim, wanted))

    async def recall(self, make: MakeVerb[Change[int]]) -> int:
        """See `Runtime.recall`."""
        many = (await self.lanes.claim.carry_out(make)).result
        if many:
            # They lie behind the marks, where no claim would look soon.
            self.claims.look_everywhere()
        return many

    def settle(
        self,
        batch: Sequence[Settlement],
        settle: Callable[[Sequence[Settlement]], Verb[Change[list[WriteResult]]]],
    ) -> Awaitable[Change[list[WriteResult]]]:
        """See `Runtime.settle`."""
        return self.lanes.settle.carry_out(partial(settle, batch))

    def settled(self, batch: Sequence[Settlement]) -> None:
        """See `Runtime.settled`."""
        if not isinstance(batch[0].delivery, DeadDelivery):
            self.claims.settled(batch)

    async def extend(self, make: MakeVerb[list[WriteResult]], count: int) -> list[WriteResult]:
        """See `Runtime.extend`."""
        return await self.lanes.settle.carry_out(make)

    def bell(self, queues: Sequence[str]) -> Bell:
        """See `Runtime.bell`."""
        return self.listener.bell(*queues)

    def ring(self, queues: Iterable[str]) -> None:
        """Nothing: the statements themselves notify."""

    # ---------------------------------------------------------------------------------------- inside

    async def _publish_together(self, link: Link, messages: Sequence[Message]) -> list[int]:
        return (await carry_out(self._verbs.publishing.publish_batch(messages), link.send)).result

    async def _extend_on(
        self, lane: Lane, deliveries: Sequence[Delivery], lease: timedelta
    ) -> list[WriteResult]:
        return await lane.carry_out(partial(self._verbs.of(deliveries).extend, deliveries, lease))

    async def _notify(self, channel: str) -> None:
        values = {"on_channel": channel, "queue": ""}
        await self.lanes.publish.run(lambda link: link.send(Ask(self._ring, values)))
