"""Which delivery the running code belongs to: what makes a publish inside a handler a re-arm."""

from __future__ import annotations

import asyncio
from contextvars import copy_context

import pytest

from nightmail.engine import current
from nightmail.engine.leases import Leases
from nightmail.engine.result import Result
from nightmail.engine.slot import HandlerSlot
from nightmail.engine.worker import Worker
from nightmail.message import Delivery
from nightmail.stores.memory import MemoryStore
from tests.unit.faulty import FaultyStore
from tests.unit.support import QUEUE, Seen, delivery, publish_timer, soon

Found = list[Delivery | None]


def daily(store: object) -> Delivery | None:
    """What a publish of the timer `daily` would find."""
    assert isinstance(store, FaultyStore | MemoryStore)
    return current.own_delivery(store, QUEUE, "daily")


async def test_outside_a_handler_there_is_none(store: FaultyStore) -> None:
    assert daily(store) is None


async def test_inside_its_handler_a_delivery_is_found_by_its_own_name_only(
    store: FaultyStore, seen: Seen
) -> None:
    found: Found = []
    not_found: Found = []

    async def handle(delivery: Delivery) -> None:
        found.append(daily(store))
        not_found.append(current.own_delivery(store, QUEUE, "weekly"))
        not_found.append(current.own_delivery(store, "another", "daily"))
        not_found.append(current.own_delivery(store, QUEUE, None))
        not_found.append(current.own_delivery(MemoryStore(), QUEUE, "daily"))

    await publish_timer(store, "daily")
    await soon(Worker(store, handle, queues=[QUEUE], observer=seen).run_until_idle())

    [own] = found
    assert own is not None
    assert own.timer_id == "daily"
    assert not_found == [None] * 4


async def test_a_task_that_the_handler_waits_for_belongs_to_it_and_one_it_leaves_behind_does_not(
    store: FaultyStore, seen: Seen
) -> None:
    during: Found = []
    afterwards: Found = []
    over = asyncio.Event()
    left_behind: list[asyncio.Task[None]] = []

    async def look() -> None:
        during.append(daily(store))

    async def look_later() -> None:
        await over.wait()
        afterwards.append(daily(store))

    async def handle(delivery: Delivery) -> None:
        await asyncio.gather(look(), look())
        left_behind.append(asyncio.create_task(look_later()))

    await publish_timer(store, "daily")
    await soon(Worker(store, handle, queues=[QUEUE], observer=seen).run_until_idle())
    over.set()
    await soon(left_behind[0])

    assert [own is not None for own in during] == [True, True]
    assert afterwards == [None]


async def test_a_handler_that_failed_is_over_too(store: FaultyStore) -> None:
    running, context = delivery(timer_id="daily"), copy_context()
    slot = HandlerSlot(asyncio.create_task(asyncio.sleep(0)), Leases(), {running: Result()})
    current.enter(context, store, slot)
    assert context.run(daily, store) is running

    slot.results = {}

    assert context.run(daily, store) is None


async def test_handlers_beside_each_other_see_each_its_own(store: FaultyStore, seen: Seen) -> None:
    all_run = asyncio.Barrier(3)
    own: dict[str | None, bool] = {}

    async def handle(delivery: Delivery) -> None:
        await all_run.wait()
        own[delivery.timer_id] = current.own_delivery(store, QUEUE, delivery.timer_id) is delivery

    for name in ("daily", "weekly", "monthly"):
        await publish_timer(store, name)
    await soon(Worker(store, handle, queues=[QUEUE], observer=seen).run_until_idle())

    assert own == {"daily": True, "weekly": True, "monthly": True}


@pytest.mark.parametrize("name", ["daily", "weekly"])
async def test_the_code_around_the_worker_belongs_to_nothing(
    store: FaultyStore, seen: Seen, name: str
) -> None:
    async def handle(delivery: Delivery) -> None:
        return

    await publish_timer(store, name)
    await soon(Worker(store, handle, queues=[QUEUE], observer=seen).run_until_idle())

    assert current.own_delivery(store, QUEUE, name) is None
