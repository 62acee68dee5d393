"""A process whose handler has one effect, in the transaction that acknowledges, and that dies at a chosen moment.

It ends by itself once nothing is left to do.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from nightmail import OutboxBroker
from nightmail.annotations import OutboxMessage, OutboxSession
from nightmail.message import Delivery
from nightmail.observe import Observer
from tests.broker.callers import ledger_at

MOMENTS = ("before the ack", "before the commit", "after the commit")
LEASE_SECONDS = 0.5
KILLED = 9

_moment: str | None = None


def die_if(moment: str) -> None:
    """Die as a process does that is killed: nothing is flushed, closed or handed back."""
    if moment == _moment:
        os._exit(KILLED)


class Dying(AsyncSession):
    """A session that dies around its commit."""

    async def commit(self) -> None:
        die_if("before the commit")
        await super().commit()
        die_if("after the commit")


class Ends(Observer):
    """Tells when a message is done."""

    def __init__(self) -> None:
        self.left = asyncio.Event()

    def acked_in_transaction(self, delivery: Delivery) -> None:
        self.left.set()


async def main(url: str) -> None:
    """Handle what there is, then leave."""
    async with ledger_at(url) as ledger:
        ends = Ends()
        broker = OutboxBroker(
            url,
            logger=None,
            session_factory=lambda: Dying(ledger.engine),
            observer=ends,
            lease_ttl_seconds=LEASE_SECONDS,
        )

        @broker.subscriber("by hand")
        async def by_hand(effect: str, msg: OutboxMessage) -> None:
            async with Dying(ledger.engine) as session:
                await ledger.write(session, effect)
                die_if("before the ack")
                await msg.ack(session=session)
                await session.commit()

        @broker.subscriber("by dependency")
        async def by_dependency(effect: str, session: OutboxSession) -> Any:
            await ledger.write(session, effect)
            die_if("before the ack")

        await broker.start()
        while await broker.stats():
            ends.left.clear()
            async with asyncio.timeout(30):
                await ends.left.wait()
        await broker.stop()


def run(url: str, moment: str) -> None:
    """What such a process does."""
    global _moment  # noqa: PLW0603 - It has nothing else to do.
    _moment = moment
    asyncio.run(main(url))
