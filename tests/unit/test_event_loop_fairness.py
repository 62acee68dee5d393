"""Handlers that await nothing: everything else on the event loop still gets its turn, often."""

from __future__ import annotations

import asyncio
from itertools import count
from types import SimpleNamespace

import pytest

from nightmail.engine import claiming, handling, room, sorting
from nightmail.engine import runners as runners_module
from nightmail.engine.runners import TURN_SECONDS
from nightmail.engine.settings import WorkerSettings
from nightmail.engine.worker import Worker
from nightmail.message import Delivery
from tests.unit.faulty import FaultyStore
from tests.unit.support import QUEUE, Handler, Seen, at_work, publish, soon


@pytest.fixture
def ticking(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock on which every handler takes two fifths of a turn: three of them are more than one."""
    ticks = count()
    clock = SimpleNamespace(monotonic=lambda: next(ticks) * TURN_SECONDS * 0.4)
    for module in (claiming, sorting, room, handling, runners_module):
        monkeypatch.setattr(module, "time", clock)


@pytest.mark.usefixtures("ticking")
async def test_the_turns_of_many_runners_do_not_add_up(store: FaultyStore, seen: Seen) -> None:
    handled = 0
    all_handled = asyncio.Event()
    in_one_turn: list[int] = []

    async def handle(delivery: Delivery) -> None:
        nonlocal handled
        handled += 1
        if handled == 200:
            all_handled.set()

    async def watch() -> None:
        while not all_handled.is_set():
            before = handled
            await asyncio.sleep(0)
            in_one_turn.append(handled - before)

    await publish(store, 200)
    settings = WorkerSettings(max_workers=20)
    async with at_work(Worker(store, handle, queues=[QUEUE], settings=settings, observer=seen)):
        await soon(watch())

    assert max(in_one_turn) <= 3


@pytest.mark.usefixtures("ticking")
async def test_when_handlers_begin_to_wait_for_something_as_many_run_at_once_as_may(
    store: FaultyStore, seen: Seen
) -> None:
    waits = Handler(held=True)

    async def handle(delivery: Delivery) -> None:
        if int(delivery.body) >= 150:
            await waits(delivery)

    await publish(store, 200)
    settings = WorkerSettings(max_workers=20)
    async with at_work(Worker(store, handle, queues=[QUEUE], settings=settings, observer=seen)):
        await waits.until_running(20)
        waits.let_go()
        await seen.until_settled(200)

    assert waits.most == 20
