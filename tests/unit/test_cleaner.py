"""The cleaner deletes what is over for long enough, and never what is still waited for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from nightmail import cleaner as cleaner_module
from nightmail.cleaner import Cleaner
from nightmail.durations import Duration
from nightmail.errors import StoreUnavailable
from nightmail.outcome import Dead, Done, Outcome
from nightmail.records import DeadFilter, Swept
from nightmail.store import Settlement
from nightmail.stores.memory import MemoryData, MemoryStore
from nightmail.testing.clock import ManualClock
from tests.unit.faulty import Call, FaultyStore, Gate, LateReply, lost_request
from tests.unit.support import MINUTE, QUEUE, Seen, a_few_steps, publish, publish_timer, soon, take

DAY = timedelta(days=1)
OFTEN = 0.001
RARELY = timedelta(hours=1)


@pytest.fixture
def store(data: MemoryData, clock: ManualClock) -> FaultyStore:
    """A store that keeps what was delivered."""
    return FaultyStore(MemoryStore(data, clock=clock, keep_delivered=True))


async def end(store: FaultyStore, count: int, outcome: Outcome) -> None:
    """Publish so many messages, and let them end like this."""
    await publish(store, count)
    await store.settle([Settlement(each, outcome) for each in await take(store, count)])


@asynccontextmanager
async def at_work(cleaner: Cleaner) -> AsyncIterator[None]:
    """This cleaner, running; stopped at the end."""
    task = asyncio.create_task(cleaner.run())
    await asyncio.sleep(0)
    try:
        yield
    finally:
        await soon(cleaner.stop())
        await soon(task)


# ── what is deleted ───────────────────────────────────────────────────────────────────────────────────────


async def test_what_was_delivered_and_what_died_is_deleted_once_it_is_old_enough(
    store: FaultyStore, data: MemoryData, clock: ManualClock
) -> None:
    cleaner = Cleaner(store, DAY, RARELY)
    await end(store, 3, Done())
    await end(store, 2, Dead("broken"))
    clock.advance(DAY)
    assert await cleaner.sweep_once() == Swept()

    clock.advance(timedelta(microseconds=1))
    await end(store, 1, Done())
    assert await cleaner.sweep_once() == Swept(delivered=3, dead=2)

    assert len(data.delivered) == 1
    assert await store.dead(DeadFilter()) == []


async def test_dedup_windows_are_deleted_as_soon_as_they_have_ended(
    store: FaultyStore, clock: ManualClock
) -> None:
    await publish_timer(store, "daily", dedup_for=MINUTE)
    clock.advance(MINUTE)

    assert await Cleaner(store, DAY, RARELY).sweep_once() == Swept(dedup=1)


async def test_neither_a_waiting_nor_a_running_message_nor_a_held_letter_is_ever_deleted(
    store: FaultyStore, clock: ManualClock
) -> None:
    await end(store, 1, Dead("broken"))
    await publish(store, 3)
    await take(store, 1, lease=timedelta(days=1000))
    await publish(store, 1, due=timedelta(days=500))
    await store.claim_dead([QUEUE], limit=1, lease=timedelta(days=1000), token=uuid4())
    clock.advance(timedelta(days=400))

    assert await Cleaner(store, DAY, RARELY).sweep_once() == Swept()

    stats = (await store.stats())[QUEUE]
    assert (stats.ready, stats.scheduled, stats.running, stats.dead) == (2, 1, 1, 1)


async def test_it_sweeps_in_batches_until_one_finds_less_than_it_might_have(
    store: FaultyStore, clock: ManualClock
) -> None:
    await end(store, 25, Done())
    await end(store, 4, Dead("broken"))
    clock.advance(2 * DAY)

    assert await Cleaner(store, DAY, RARELY, batch=10).sweep_once() == Swept(delivered=25, dead=4)

    assert store.calls["sweep"] == 3


async def test_a_full_last_batch_is_followed_by_one_more_look(store: FaultyStore, clock: ManualClock) -> None:
    await end(store, 20, Dead("broken"))
    clock.advance(2 * DAY)

    assert await Cleaner(store, DAY, RARELY, batch=10).sweep_once() == Swept(dead=20)

    assert store.calls["sweep"] == 3


async def test_others_have_their_turn_between_two_batches(store: FaultyStore, clock: ManualClock) -> None:
    steps = 0

    async def neighbour() -> None:
        nonlocal steps
        while True:
            steps += 1
            await asyncio.sleep(0)

    await end(store, 100, Done())
    clock.advance(2 * DAY)
    task = asyncio.create_task(neighbour())
    await Cleaner(store, DAY, RARELY, batch=10).sweep_once()
    task.cancel()

    assert steps >= 10


# ── running ───────────────────────────────────────────────────────────────────────────────────────────────


async def test_it_sweeps_at_the_start_and_then_every_interval(
    store: FaultyStore, data: MemoryData, clock: ManualClock, seen: Seen
) -> None:
    await end(store, 3, Done())
    clock.advance(2 * DAY)
    async with at_work(Cleaner(store, DAY, OFTEN, observer=seen)):
        await store.until_called("sweep")
        assert data.delivered == []
        await end(store, 2, Done())
        clock.advance(2 * DAY)
        await store.until_called("sweep", store.calls["sweep"] + 2)
        assert data.delivered == []


async def test_between_two_sweeps_the_interval_passes(store: FaultyStore, seen: Seen) -> None:
    async with at_work(Cleaner(store, DAY, RARELY, observer=seen)):
        await store.until_called("sweep")
        await a_few_steps()

    assert store.calls["sweep"] == 1


@pytest.mark.parametrize(
    ("retention", "interval"),
    [(None, None), (DAY, None), (None, OFTEN)],
    ids=["none", "retention", "interval"],
)
async def test_unless_both_durations_are_given_it_deletes_nothing_and_waits_to_be_stopped(
    store: FaultyStore, clock: ManualClock, retention: Duration | None, interval: Duration | None
) -> None:
    await end(store, 2, Dead("broken"))
    clock.advance(timedelta(days=10_000))
    cleaner = Cleaner(store, retention, interval)
    async with at_work(cleaner):
        await a_few_steps()
        assert cleaner.is_running
        assert await cleaner.sweep_once() == Swept()

    assert not cleaner.is_running
    assert store.calls["sweep"] == 0


async def test_both_durations_may_be_left_out(store: FaultyStore) -> None:
    assert await Cleaner(store).sweep_once() == Swept()


async def test_a_store_that_is_down_is_told_of_and_asked_again_soon(
    store: FaultyStore, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nightmail.engine.next_look.FIRST_BACKOFF", 0.001)
    store.upset("sweep", lost_request, times=4)
    async with at_work(Cleaner(store, DAY, RARELY, observer=seen)):
        await seen.until(lambda: seen.recoveries == 1)
        await a_few_steps()

    assert [retry_in / timedelta(milliseconds=1) for _, retry_in in seen.outages] == [1, 2, 4, 8]
    assert {type(error) for error, _ in seen.outages} == {StoreUnavailable}
    # Once it went well the interval passes again.
    assert store.calls["sweep"] == 5


async def test_an_error_that_no_store_should_raise_does_not_stop_it_either(
    store: FaultyStore, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def bug(call: Call) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("nightmail.engine.next_look.FIRST_BACKOFF", 0.001)
    store.upset("sweep", bug)
    async with at_work(Cleaner(store, DAY, RARELY, observer=seen)):
        await seen.until(lambda: seen.recoveries == 1)

    assert [type(error) for error, _ in seen.outages] == [ZeroDivisionError]


async def test_one_sweep_asked_for_by_hand_says_that_the_store_is_down(store: FaultyStore) -> None:
    store.upset("sweep", lost_request)

    with pytest.raises(StoreUnavailable):
        await Cleaner(store, DAY, RARELY).sweep_once()


# ── stopping ──────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_stop_right_after_the_run_was_scheduled_is_heard(store: FaultyStore, seen: Seen) -> None:
    cleaner = Cleaner(store, DAY, RARELY, observer=seen)
    task = asyncio.create_task(cleaner.run())
    await soon(cleaner.stop())
    await soon(task)

    assert not cleaner.is_running
    assert store.calls["sweep"] == 0
    async with at_work(cleaner):
        await store.until_called("sweep", 1)


async def test_a_stop_lets_the_batch_under_way_end_and_begins_no_other(
    store: FaultyStore, data: MemoryData, clock: ManualClock, seen: Seen
) -> None:
    await end(store, 25, Done())
    clock.advance(2 * DAY)
    reply = store.upset("sweep", LateReply())
    cleaner = Cleaner(store, DAY, OFTEN, batch=10, observer=seen)
    task = asyncio.create_task(cleaner.run())
    await soon(reply.reached.wait())

    stopping = asyncio.create_task(cleaner.stop())
    await a_few_steps()
    assert not stopping.done()
    reply.open()
    await soon(stopping)
    await soon(task)

    assert store.calls["sweep"] == 1
    assert len(data.delivered) == 15


async def test_a_store_that_never_answers_does_not_hang_the_shutdown(
    store: FaultyStore, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleaner_module, "LAST_SWEEP_SECONDS", 0.01)
    gate = store.upset("sweep", Gate())
    cleaner = Cleaner(store, DAY, RARELY, observer=seen)
    task = asyncio.create_task(cleaner.run())
    await soon(gate.reached.wait())

    await soon(cleaner.stop())
    await soon(task)

    assert not cleaner.is_running


async def test_a_cleaner_that_waits_out_an_outage_stops_at_once(store: FaultyStore, seen: Seen) -> None:
    store.upset("sweep", lost_request, times=None)
    async with at_work(Cleaner(store, DAY, RARELY, observer=seen)):
        await seen.until(lambda: len(seen.outages) == 1)


async def test_it_may_run_again_after_a_stop_but_not_twice_at_once(store: FaultyStore, seen: Seen) -> None:
    cleaner = Cleaner(store, DAY, RARELY, observer=seen)
    for number in (1, 2):
        async with at_work(cleaner):
            await store.until_called("sweep", number)
            with pytest.raises(RuntimeError, match="already running"):
                await cleaner.run()

    await soon(cleaner.stop())


async def test_a_sweep_by_hand_after_a_stop_is_a_whole_one(store: FaultyStore, clock: ManualClock) -> None:
    cleaner = Cleaner(store, DAY, RARELY, batch=10)
    async with at_work(cleaner):
        await store.until_called("sweep")
    await end(store, 25, Done())
    clock.advance(2 * DAY)

    assert await cleaner.sweep_once() == Swept(delivered=25)


def test_it_may_be_made_before_there_is_an_event_loop(store: FaultyStore) -> None:
    cleaner = Cleaner(store, DAY, RARELY)

    async def run() -> None:
        async with at_work(cleaner):
            await store.until_called("sweep")

    assert not cleaner.is_running
    asyncio.run(run())
    assert store.calls["sweep"] == 1


async def test_cancelling_the_run_ends_it(store: FaultyStore, seen: Seen) -> None:
    gate = store.upset("sweep", Gate())
    cleaner = Cleaner(store, DAY, RARELY, observer=seen)
    task = asyncio.create_task(cleaner.run())
    await soon(gate.reached.wait())

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await soon(task)

    assert not cleaner.is_running


# ── what is refused ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("options", "error", "complaint"),
    [
        ({"retention": timedelta(0)}, ValueError, "retention must be positive, not 0 s"),
        ({"retention": -1}, ValueError, "retention must be positive, not -1 s"),
        ({"interval": 0}, ValueError, "interval must be positive, not 0 s"),
        (
            {"interval": timedelta(-1)},
            ValueError,
            "interval must be positive, not -86400 s",
        ),
        (
            {"retention": "30 days"},
            TypeError,
            "retention must be a timedelta or a number of seconds, not str",
        ),
        ({"interval": True}, TypeError, "interval must be a timedelta or a number of seconds, not bool"),
        ({"interval": float("inf")}, ValueError, "interval must be finite, not inf"),
        ({"batch": 0}, ValueError, "batch must be at least 1, not 0"),
    ],
)
def test_a_wrong_option_is_refused(
    store: FaultyStore, options: dict[str, Any], error: type[Exception], complaint: str
) -> None:
    with pytest.raises(error, match=complaint):
        Cleaner(store, **{"retention": DAY, "interval": RARELY} | options)
