"""Publishing over a message, holding, acknowledging and settling it lock it in one order: none aborts another."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import pytest
from asyncmy.errors import MySQLError

from nightmail.errors import LeaseLost
from nightmail.message import Delivery
from nightmail.outcome import Done, Retry
from nightmail.store import Settlement
from nightmail.stores.mysql import MySQLStore
from nightmail.testing.conformance.build import LEASE, QUEUE, message
from tests.stores.mysql.support import connection, execute, open_store

pytestmark = pytest.mark.mysql

ROUNDS = 60


class Callers:
    """What happened to the transactions of callers."""

    def __init__(self) -> None:
        self.committed = 0
        self.aborted: list[str] = []

    async def transaction(self, own: Any, what: str, *work: Any) -> None:
        await own.begin()
        try:
            for each in work:
                await each()
            await own.commit()
            self.committed += 1
        except LeaseLost:
            await own.rollback()
        except MySQLError as error:
            await own.rollback()
            self.aborted.append(f"{what}: {error.args[0]}")


async def publish_over(store: MySQLStore, url: str, isolation: str, callers: Callers, name: str) -> None:
    async with connection(url) as own:
        await execute(own, f"set session transaction isolation level {isolation}")
        timer = message(timer_id=name, on_conflict="replace")
        for _ in range(ROUNDS):
            await callers.transaction(own, "publish", lambda: store.publish(timer, transaction=own))


async def end_in_a_transaction(store: MySQLStore, url: str, isolation: str, callers: Callers) -> None:
    async with connection(url) as own:
        await execute(own, f"set session transaction isolation level {isolation}")
        for _ in range(ROUNDS):
            for delivery in (await store.claim([QUEUE], limit=1, lease=LEASE, token=uuid4())).deliveries:
                held: list[Delivery] = [delivery]
                await callers.transaction(
                    own,
                    "ack",
                    lambda h=held: store.hold(h, transaction=own),
                    lambda h=held: store.ack(h, transaction=own),
                )


async def settle(store: MySQLStore) -> None:
    for n in range(ROUNDS):
        claimed = await store.claim([QUEUE], limit=1, lease=LEASE, token=uuid4())
        outcome = Done() if n % 2 else Retry()
        await store.settle([Settlement(delivery, outcome) for delivery in claimed.deliveries])


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read"])
async def test_a_caller_that_replaces_a_message_and_one_that_ends_it_do_not_abort_each_other(
    mysql_url: str, isolation: str
) -> None:
    callers = Callers()
    async with open_store(mysql_url) as store:
        await asyncio.gather(
            publish_over(store, mysql_url, isolation, callers, "a"),
            publish_over(store, mysql_url, isolation, callers, "b"),
            end_in_a_transaction(store, mysql_url, isolation, callers),
            end_in_a_transaction(store, mysql_url, isolation, callers),
            settle(store),
        )

        assert callers.aborted == []
        assert callers.committed >= 2 * ROUNDS
