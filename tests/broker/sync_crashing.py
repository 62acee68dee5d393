"""The process of `crashing`, with `def` handlers: SQLAlchemy's `Session`, Django's `atomic()`.

It dies in the handler of that queue; with another moment it ends once nothing is left to do.
"""

from __future__ import annotations

import asyncio
import os
import traceback
from importlib.util import find_spec

import django
import pymysql
from django.conf import settings
from sqlalchemy.orm import Session

from nightmail import OutboxBroker
from nightmail.annotations import OutboxMessage, SyncOutboxSession
from nightmail.message import Delivery
from nightmail.observe import Observer
from tests.broker.sync_ledger import django_settings, sync_ledger_at

QUEUES = ("by hand", "by dependency", "in atomic")
MOMENTS = ("before the ack", "before the commit", "after the commit")
LEASE_SECONDS = 0.5
KILLED = 9

_fate: tuple[str, str] | None = None


def die_if(queue: str, moment: str) -> None:
    """Die as a process does that is killed: nothing is flushed, closed or handed back."""
    if (queue, moment) == _fate:
        os._exit(KILLED)


class Dying(Session):
    """A session that dies around its commit."""

    queue: str

    def commit(self) -> None:
        die_if(self.queue, "before the commit")
        super().commit()
        die_if(self.queue, "after the commit")


class ByHand(Dying):
    queue = "by hand"


class ByDependency(Dying):
    queue = "by dependency"


class Ends(Observer):
    """Tells when a message is done."""

    def __init__(self) -> None:
        self.left = asyncio.Event()

    def acked_in_transaction(self, delivery: Delivery) -> None:
        self.left.set()

    def failed(self, delivery: Delivery, error: BaseException) -> None:
        traceback.print_exception(error)
        os._exit(1)


async def main(url: str) -> None:
    """Handle what there is, then leave."""
    from django.db import connection, transaction

    with sync_ledger_at(url) as ledger:
        ends = Ends()
        broker = OutboxBroker(
            url,
            logger=None,
            sync_session_factory=lambda: ByDependency(ledger.engine),
            observer=ends,
            lease_ttl_seconds=LEASE_SECONDS,
        )

        @broker.subscriber("by hand")
        def by_hand(effect: str, msg: OutboxMessage) -> None:
            with ByHand(ledger.engine) as session:
                _ = msg.hold(session)
                ledger.write(session, effect)
                die_if("by hand", "before the ack")
                _ = msg.ack(session)
                session.commit()

        @broker.subscriber("by dependency")
        def by_dependency(effect: str, session: SyncOutboxSession) -> None:
            ledger.write(session, effect)
            die_if("by dependency", "before the ack")

        @broker.subscriber("in atomic")
        def in_atomic(effect: str, msg: OutboxMessage) -> None:
            with transaction.atomic():
                _ = msg.hold(connection)
                with connection.cursor() as cursor:
                    cursor.execute("insert into effects values (%s)", [effect])
                die_if("in atomic", "before the ack")
                _ = msg.ack(connection)
                die_if("in atomic", "before the commit")
            die_if("in atomic", "after the commit")

        await broker.start()
        while await broker.stats():
            ends.left.clear()
            async with asyncio.timeout(30):
                await ends.left.wait()
        await broker.stop()


def run(url: str, queue: str, moment: str) -> None:
    """What such a process does."""
    global _fate  # noqa: PLW0603 - It has nothing else to do.
    _fate = queue, moment
    if find_spec("MySQLdb") is None:
        pymysql.install_as_MySQLdb()  # Django knows only mysqlclient, which has to be compiled.
    settings.configure(USE_TZ=True, LOGGING_CONFIG=None, DATABASES={"default": django_settings(url)})
    django.setup()
    asyncio.run(main(url))
