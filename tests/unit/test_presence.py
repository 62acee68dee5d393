"""A process names itself in every lease it takes, and reports itself while it works."""

from __future__ import annotations

import asyncio
import logging
import os
from datetime import timedelta

import pytest

from nightmail import __version__
from nightmail.controls import worker_of
from nightmail.engine.dead_letters import DeadLetters
from nightmail.engine.presence import Presence, control_of
from nightmail.engine.settings import WorkerSettings
from nightmail.engine.worker import Worker
from nightmail.message import Delivery
from nightmail.store import Source
from nightmail.stores.memory import MemoryData, MemoryStore
from tests.unit.faulty import FaultyStore, Stuck, lost_request
from tests.unit.moving_time import LoopClock, loop_clock
from tests.unit.support import QUEUE, Handler, Seen, at_work, publish, soon

__all__ = ["loop_clock"]


class Bare:
    """A source of another make: it has what a worker needs, and no more."""

    def __init__(self, store: MemoryStore) -> None:
        self.capabilities = store.capabilities
        self.look_interval = store.look_interval
        self.claim = store.claim
        self.recall = store.recall
        self.settle = store.settle
        self.listen = store.listen
        self.run_on_keeper_thread = store.run_on_keeper_thread


async def test_the_leases_of_all_workers_of_a_process_carry_its_id(store: FaultyStore, seen: Seen) -> None:
    presence = Presence()
    handler = Handler(held=True)
    await publish(store)
    await publish(store, queue="other")

    async with at_work(
        Worker(store, handler, queues=[QUEUE], presence=presence),
        Worker(store, handler, queues=["other"], presence=presence),
        Worker(store, Handler(), queues=["third"]),
    ):
        await handler.until_running(2)
        held = await store.leases()
        assert {lease.worker_id for lease in held} == {presence.id}
        assert len({record.id for record in await store.workers()} - {presence.id}) == 1
        assert {worker_of(each.token) for each in handler.deliveries} == {presence.id}
        assert len({each.token for each in handler.deliveries}) == 2
        handler.let_go()


def test_after_a_fork_the_id_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    presence = Presence()
    before = presence.id
    assert presence.id == before
    assert len(bytes.fromhex(before)) == 8

    monkeypatch.setattr(os, "getpid", lambda: 7)

    assert presence.id != before
    assert worker_of(presence.new_token()) == presence.id


async def test_it_reports_at_the_start_every_ten_seconds_and_signs_off(
    data: MemoryData, loop_clock: LoopClock
) -> None:
    store = FaultyStore(MemoryStore(data, clock=loop_clock))
    worker = Worker(store, Handler(), queues=[QUEUE, "other"], settings=WorkerSettings(max_workers=3))

    async with at_work(worker):
        await store.until_called("report")
        (record,) = await store.workers()
        await asyncio.sleep(60.0)

        assert 6 <= store.calls["report"] <= 8
        (later,) = await store.workers()
        assert timedelta(seconds=50) <= later.seen_at - record.seen_at <= timedelta(seconds=65)
        assert later.started_at == record.started_at

    assert store.calls["sign_off"] == 1
    assert await store.workers() == []
    assert (record.pid, record.version, record.queues) == (os.getpid(), __version__, (QUEUE, "other"))
    (state,) = record.state["subscribers"]
    assert state == {
        "queues": [QUEUE, "other"],
        "dead_letters": False,
        "max_workers": 3,
        "running": 0,
        "waiting": 0,
        "handler_seconds": None,
        "longest_handler_seconds": 0.0,
        "ended_per_second": {},
        "late_seconds": {},
        "max_attempts": 10,
        "lease_seconds": 20.0,
        "leases_lost": 0,
        "open_breakers": [],
        "failing": False,
    }


async def test_it_says_how_its_handlers_do(data: MemoryData, loop_clock: LoopClock, seen: Seen) -> None:
    store = FaultyStore(MemoryStore(data, clock=loop_clock))
    await publish(store, 4)

    async def handle(_delivery: Delivery) -> None:
        await asyncio.sleep(2.0)

    async with at_work(Worker(store, handle, queues=[QUEUE], observer=seen, about={"name": "mailer"})):
        await seen.until_settled(4)
        await asyncio.sleep(10.0)
        (record,) = await store.workers()
        (state,) = record.state["subscribers"]

        assert state["name"] == "mailer"
        assert 1.9 < state["handler_seconds"] < 2.2
        assert 1.9 < state["longest_handler_seconds"] < 2.2

        await asyncio.sleep(30.0)
        (record,) = await store.workers()
        assert record.state["subscribers"][0]["longest_handler_seconds"] == 0.0


async def test_a_worker_that_joins_later_is_reported_soon(data: MemoryData, loop_clock: LoopClock) -> None:
    store = FaultyStore(MemoryStore(data, clock=loop_clock))
    presence = Presence({"faststream": "1.0"})

    async with at_work(Worker(store, Handler(), queues=[QUEUE], presence=presence)):
        await store.until_called("report")
        async with at_work(Worker(DeadLetters(store), Handler(), queues=["other"], presence=presence)):
            await asyncio.sleep(1.0)
            (record,) = await store.workers()
            assert record.queues == (QUEUE,), "it takes no messages of the other"
            assert [each["dead_letters"] for each in record.state["subscribers"]] == [False, True]
            assert record.state["faststream"] == "1.0"
        await asyncio.sleep(1.0)
        (record,) = await store.workers()
        assert record.queues == (QUEUE,)
        assert store.calls["sign_off"] == 0


async def test_the_queues_of_workers_that_stop_one_after_another_keep_it_as_their_last_consumer(
    data: MemoryData, loop_clock: LoopClock
) -> None:
    store = FaultyStore(MemoryStore(data, clock=loop_clock))
    presence = Presence()

    async with at_work(Worker(store, Handler(), queues=[QUEUE], presence=presence)):
        async with at_work(
            Worker(store, Handler(), queues=["other"], presence=presence),
            Worker(DeadLetters(store), Handler(), queues=["died"], presence=presence),
        ):
            await asyncio.sleep(1.0)
        # Long enough for a report without it, as while the last one finishes what it has.
        await asyncio.sleep(1.0)

    assert await store.workers() == []
    last = await store.last_consumers()
    assert {queue: each.pid for queue, each in last.items()} == {QUEUE: os.getpid(), "other": os.getpid()}


async def test_another_life_has_another_id(store: FaultyStore) -> None:
    presence, ids = Presence(), set[str]()
    for _ in range(2):
        async with at_work(Worker(store, Handler(), queues=[QUEUE], presence=presence)):
            await store.until_called("report", len(ids) + 1)
            ids |= {record.id for record in await store.workers()}

    assert len(ids) == 2
    assert await store.workers() == []


async def test_a_report_that_fails_disturbs_nothing_and_is_not_logged(
    data: MemoryData, loop_clock: LoopClock, seen: Seen, caplog: pytest.LogCaptureFixture
) -> None:
    store = FaultyStore(MemoryStore(data, clock=loop_clock))
    store.upset("report", lost_request, times=None)
    store.upset("sign_off", lost_request, times=None)

    with caplog.at_level(logging.INFO, "nightmail"):
        async with at_work(Worker(store, Handler(), queues=[QUEUE], observer=seen)):
            await asyncio.sleep(60.0)
            await publish(store)
            await seen.until_settled(1)

    assert store.calls["report"] >= 6
    assert seen.outages == []
    assert caplog.messages == []


async def test_a_store_that_does_not_answer_delays_no_stop(data: MemoryData, loop_clock: LoopClock) -> None:
    store = FaultyStore(MemoryStore(data, clock=loop_clock))
    stuck = store.upset("report", Stuck(), times=None)
    worker = Worker(store, Handler(), queues=[QUEUE])
    loop = asyncio.get_running_loop()

    async with at_work(worker):
        await soon(stuck.reached.wait())
        began = loop.time()
        await worker.stop()
        assert loop.time() - began < 3.0
        stuck.open()


async def test_a_store_without_these_verbs_is_served_all_the_same(data: MemoryData, seen: Seen) -> None:
    store = MemoryStore(data)
    source: Source = Bare(store)
    (id_,) = await publish(store)

    async with at_work(Worker(source, Handler(), queues=[QUEUE], observer=seen)):
        await seen.until_settled(1)

    assert control_of(source) is None
    assert await store.workers() == []
    assert seen.runs == [id_]


async def test_what_runs_only_until_it_is_idle_is_not_worth_a_report(store: FaultyStore) -> None:
    await publish(store, 3)

    await soon(Worker(store, Handler(), queues=[QUEUE]).run_until_idle())

    assert (store.calls["report"], store.calls["sign_off"]) == (0, 0)
