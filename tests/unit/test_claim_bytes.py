"""Claims are bounded in bytes, whatever the messages weigh; and one odd message does not strand its neighbours."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from datetime import datetime
from types import SimpleNamespace

import pytest

from nightmail.engine import claiming, room
from nightmail.engine.prefetch import ClaimSize
from nightmail.engine.settings import WorkerSettings
from nightmail.engine.worker import Worker
from nightmail.limits import CLAIM_BYTES
from nightmail.message import Delivery
from nightmail.outcome import Done, Release
from nightmail.store import Claimed
from nightmail.stores.memory import MemoryData, MemoryStore
from tests.unit.faulty import Call, FaultyStore, lost_reply, lost_request
from tests.unit.moving_time import LoopClock, loop_clock
from tests.unit.support import QUEUE, Handler, Seen, at_work, publish, soon

__all__ = ["loop_clock"]

MIB = 1024 * 1024


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try again soon."""
    monkeypatch.setattr("nightmail.engine.next_look.FIRST_BACKOFF", 0.001)
    monkeypatch.setattr("nightmail.engine.next_look.LONGEST_BACKOFF", 0.001)


async def test_no_more_bytes_are_fetched_ahead_than_one_claim_may_take(
    store: FaultyStore, seen: Seen
) -> None:
    running: list[int] = []
    waiting: list[int] = []

    async def handle(delivery: Delivery) -> None:
        running.append(delivery.id)
        await asyncio.sleep(0)
        waiting.append((worker.in_hand - 1) * MIB)

    worker = Worker(store, handle, queues=[QUEUE], settings=WorkerSettings(max_workers=1), observer=seen)
    for _ in range(4):
        await publish(store, 25, body=bytes(MIB))
    await soon(worker.run_until_idle())

    assert len(running) == 100
    # One message may be over: a claim takes at least one.
    assert max(waiting) <= CLAIM_BYTES + MIB
    assert max(store.sizes["claim"]) <= CLAIM_BYTES // MIB


async def test_a_claim_that_stopped_at_its_bytes_is_followed_by_another_at_once(
    data: MemoryData, loop_clock: LoopClock, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On the time of the event loop: when half a second passes before the last of the first five starts, it is checked
    # for pauses first, and takes its share of the bytes meanwhile.
    store = FaultyStore(MemoryStore(data, clock=loop_clock))
    monkeypatch.setattr(room, "REVIEW_SECONDS", 60.0)
    monkeypatch.setattr(claiming, "REVIEW_SECONDS", 60.0)
    handler = Handler(held=True)
    await publish(store, 10, body=bytes(3 * MIB))
    async with at_work(Worker(store, handler, queues=[QUEUE], observer=seen)):
        await handler.until_running(10)
        handler.let_go()
        await seen.until_settled(10)

    assert store.sizes["claim"][:2] == [5, 5]


async def test_messages_that_cannot_be_written_yet_take_their_share_of_the_bytes(
    store: FaultyStore, seen: Seen, impatient: None
) -> None:
    store.upset("settle", lost_request, times=None)
    await publish(store, 30, body=bytes(MIB))
    worker = Worker(store, Handler(), queues=[QUEUE], observer=seen)
    async with at_work(worker):
        await store.until_called("settle", 30)
        assert worker.in_hand <= CLAIM_BYTES // MIB + 1
        store.mend()
        await seen.until_settled(30)


def test_a_claim_that_fails_is_repeated_for_a_quarter_and_grows_again_by_little() -> None:
    size = ClaimSize()
    asked = []
    for _ in range(14):
        asked.append(size.max_bytes)
        size.failed()

    assert asked[:4] == [16 * MIB, 4 * MIB, MIB, MIB // 4]
    assert asked[-1] == 1  # A claim always takes one message.
    size.went_well(1, 10, full=False)
    assert size.max_bytes == MIB + 1
    for _ in range(20):
        size.went_well(1, 10, full=False)
    assert size.max_bytes == CLAIM_BYTES


def test_a_claim_asks_for_few_more_messages_than_fitted_into_the_last() -> None:
    size = ClaimSize()
    assert size.limit(1000) == 1000

    size.went_well(4, 1000, full=True)
    assert size.limit(1000) == 8
    size.went_well(8, 8, full=True)
    assert size.limit(1000) == 16
    size.went_well(0, 16, full=True)
    assert size.limit(1000) == 16
    assert size.limit(3) == 3
    size.went_well(5, 16, full=False)
    assert size.limit(1000) == 1000


def test_a_claim_that_reached_its_limit_says_nothing_about_sizes() -> None:
    size = ClaimSize()

    size.went_well(10, 10, full=True)

    assert size.limit(1000) == 1000


async def test_priorities_count_among_large_messages(store: FaultyStore, seen: Seen) -> None:
    for _ in range(5):
        await publish(store, 8, body=bytes(4 * MIB - 100))
    urgent = await publish(store, 8, body=bytes(4 * MIB - 100), priority=9)
    handler = Handler()

    await soon(
        Worker(
            store, handler, queues=[QUEUE], settings=WorkerSettings(max_workers=40), observer=seen
        ).run_until_idle()
    )

    # Without it, each claim would take the oldest alone, and these would come last.
    assert {delivery.id for delivery in handler.deliveries[:20]} >= set(urgent)


async def test_a_claim_that_is_too_large_for_its_time_does_not_stop_the_worker(
    store: FaultyStore, seen: Seen, impatient: None
) -> None:
    async def slow_line(call: Call) -> Claimed:
        if store.asked[-1][1] > MIB:
            raise TimeoutError
        claimed: Claimed = await call()
        return claimed

    await publish(store, 20, body=bytes(MIB))
    store.upset("claim", slow_line, times=None)
    await soon(Worker(store, Handler(), queues=[QUEUE], observer=seen).run_until_idle())

    assert [outcome for _, outcome in seen.outcomes] == [Done()] * 20


async def test_what_an_unanswered_claim_took_is_not_recalled_once_its_lease_has_ended(
    store: FaultyStore, seen: Seen, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed = 0.0
    monkeypatch.setattr(claiming, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + passed))
    store.upset("claim", lost_request)
    store.upset("recall", lost_request, times=None)
    async with at_work(Worker(store, Handler(), queues=[QUEUE], observer=seen)):
        await store.until_called("recall", 3)
        assert store.calls["claim"] == 1
        passed = 61.0
        await store.until_called("claim", 2)
        recalls = store.calls["recall"]
        await publish(store)
        await seen.until_settled(1)

    assert store.calls["recall"] == recalls


async def test_what_a_claim_took_that_was_carried_out_long_after_it_was_sent_is_recalled(
    store: FaultyStore, seen: Seen, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed = 0.0
    monkeypatch.setattr(claiming, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + passed))

    async def late_and_lost(call: Call) -> None:
        nonlocal passed
        passed = 61.0  # Longer than the lease, which begins only now.
        await lost_reply(call)

    await publish(store)
    store.upset("claim", late_and_lost)
    handler = Handler()
    async with at_work(Worker(store, handler, queues=[QUEUE], observer=seen)):
        await seen.until_settled(1)

    assert [delivery.deliveries for delivery in handler.deliveries] == [1]
    assert store.calls["recall"] == 1


async def test_what_an_unanswered_claim_took_is_handed_back_and_claimed_again(
    store: FaultyStore, seen: Seen, impatient: None
) -> None:
    published = await publish(store, 5)
    store.upset("claim", lost_reply)
    await soon(Worker(store, Handler(), queues=[QUEUE], observer=seen).run_until_idle())

    assert sorted(seen.runs) == published
    assert {each.deliveries for claim in seen.claims for each in claim} == {1}


async def test_an_odd_message_is_handed_back_and_its_neighbours_run(
    store: FaultyStore, seen: Seen, impatient: None
) -> None:
    async def with_an_odd_one(call: Call) -> Claimed:
        claimed: Claimed = await call()
        first, odd, last = claimed.deliveries
        # Cannot be compared with a moment that has a time zone.
        return replace(claimed, deliveries=[first, replace(odd, expires_at=datetime(2030, 1, 1)), last])  # noqa: DTZ001

    first, odd, last = await publish(store, 3)
    store.upset("claim", with_an_odd_one)
    await soon(Worker(store, Handler(), queues=[QUEUE], observer=seen).run_until_idle())

    assert seen.of(first) == [Done()]
    assert seen.of(last) == [Done()]
    assert seen.of(odd) == [Release(), Done()]
    assert [type(error) for error, _ in seen.outages] == [TypeError]
