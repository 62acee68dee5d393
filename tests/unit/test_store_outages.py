"""A store that is down slows a worker; it does not stop it, and nothing is lost."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from nightmail.engine.settings import WorkerSettings
from nightmail.engine.worker import Worker
from nightmail.errors import StoreUnavailable
from nightmail.outcome import Done, Release, Retry
from nightmail.testing.clock import ManualClock
from tests.unit.faulty import Call, FaultyStore, LateReply, lost_reply, lost_request
from tests.unit.support import QUEUE, Handler, Seen, at_work, publish, soon, take


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try again soon."""
    monkeypatch.setattr("nightmail.engine.next_look.FIRST_BACKOFF", 0.001)


async def test_a_worker_waits_longer_after_each_failure_and_recovers(store: FaultyStore, seen: Seen) -> None:
    store.upset("claim", lost_request, times=5)
    worker = Worker(store, Handler(), queues=[QUEUE], observer=seen)
    async with at_work(worker):
        await seen.until(lambda: bool(seen.outages))
        assert worker.is_failing
        await seen.until(lambda: seen.recoveries == 1)
        assert not worker.is_failing
        [published] = await publish(store)
        await seen.until_settled(1)

    assert [retry_in / timedelta(milliseconds=1) for _, retry_in in seen.outages] == [1, 2, 4, 8, 16]
    assert {type(error) for error, _ in seen.outages} == {StoreUnavailable}
    assert seen.outcomes == [(published, Done())]


async def test_waiting_starts_afresh_after_a_recovery(store: FaultyStore, seen: Seen) -> None:
    store.upset("claim", lost_request, times=3)
    async with at_work(Worker(store, Handler(), queues=[QUEUE], observer=seen)):
        await seen.until(lambda: seen.recoveries == 1)
        store.upset("claim", lost_request, times=1)
        await publish(store)
        await seen.until(lambda: seen.recoveries == 2)

    assert [retry_in / timedelta(milliseconds=1) for _, retry_in in seen.outages] == [1, 2, 4, 1]


async def test_an_error_that_no_store_should_raise_does_not_stop_a_worker_either(
    store: FaultyStore, seen: Seen
) -> None:
    async def bug(call: Call) -> None:
        raise ZeroDivisionError

    store.upset("claim", bug)
    store.upset("settle", bug)
    [published] = await publish(store)
    await soon(Worker(store, Handler(), queues=[QUEUE], observer=seen).run_until_idle())

    assert [type(error) for error, _ in seen.outages] == [ZeroDivisionError, ZeroDivisionError]
    assert seen.outcomes == [(published, Done())]


async def test_handlers_go_on_while_nothing_can_be_written_and_all_is_written_afterwards(
    store: FaultyStore, seen: Seen
) -> None:
    handler = Handler()
    published = await publish(store, 40)
    store.upset("settle", lost_request, times=None)
    async with at_work(Worker(store, handler, queues=[QUEUE], observer=seen)):
        await seen.until(lambda: len(handler.deliveries) == 40)
        await seen.until(lambda: len(seen.outages) >= 3)
        assert seen.outcomes == []
        store.mend()
        await seen.until_settled(40)

    assert sorted(seen.outcomes) == [(id_, Done()) for id_ in published]
    assert len(handler.deliveries) == 40


async def test_what_a_claim_took_before_its_reply_was_lost_is_recalled_and_run(
    store: FaultyStore, seen: Seen
) -> None:
    published = await publish(store, 5)
    store.upset("claim", lost_reply)
    handler = Handler()
    async with at_work(Worker(store, handler, queues=[QUEUE], observer=seen)):
        await seen.until_settled(5)

    assert sorted(delivery.id for delivery in handler.deliveries) == published
    assert {delivery.deliveries for delivery in handler.deliveries} == {1}
    assert store.calls["recall"] == 1


async def test_recalling_goes_on_until_it_was_answered(store: FaultyStore, seen: Seen) -> None:
    published = await publish(store, 5)
    store.upset("claim", lost_reply)
    store.upset("recall", lost_request, times=2)
    store.upset("recall", lost_reply)
    handler = Handler()

    await soon(Worker(store, handler, queues=[QUEUE], observer=seen).run_until_idle())

    assert sorted(delivery.id for delivery in handler.deliveries) == published
    assert store.calls["recall"] == 4
    # The lost one, one after the recall, and the one that finds nothing more.
    assert store.calls["claim"] == 3


async def test_what_a_claim_took_before_its_reply_was_lost_is_recalled_though_there_is_no_room_any_more(
    store: FaultyStore, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = 1
    monkeypatch.setattr("nightmail.engine.prefetch.Prefetch.ahead", lambda prefetch, now: ahead)

    async def lost_when_handlers_have_become_slow(call: Call) -> None:
        nonlocal ahead
        ahead = 0
        await lost_reply(call)

    handler = Handler(held=True)
    worker = Worker(store, handler, queues=[QUEUE], settings=WorkerSettings(max_workers=1), observer=seen)
    await publish(store)
    async with at_work(worker):
        await handler.until_running(1)
        store.upset("claim", lost_when_handlers_have_become_slow)
        await publish(store)
        await store.until_called("recall")
        assert handler.running == 1
        [recalled] = await take(store)
        handler.let_go()
        await seen.until_settled(1)

    assert recalled.deliveries == 1


async def test_a_claim_that_never_arrived_has_nothing_to_recall_and_is_sent_again(
    store: FaultyStore, seen: Seen
) -> None:
    published = await publish(store, 5)
    store.upset("claim", lost_request)
    handler = Handler()

    await soon(Worker(store, handler, queues=[QUEUE], observer=seen).run_until_idle())

    assert sorted(delivery.id for delivery in handler.deliveries) == published
    assert {delivery.deliveries for delivery in handler.deliveries} == {1}


async def test_a_claim_that_went_well_is_never_recalled(store: FaultyStore, seen: Seen) -> None:
    await publish(store, 30)
    await soon(Worker(store, Handler(), queues=[QUEUE], observer=seen).run_until_idle())

    assert store.calls["recall"] == 0


async def test_messages_whose_lease_may_have_ended_before_the_reply_came_go_back_before_they_are_started(
    store: FaultyStore, seen: Seen
) -> None:
    handler = Handler()
    settings = WorkerSettings(lease=timedelta(milliseconds=60))
    published = await publish(store, 3)
    late = store.upset("claim", LateReply())
    worker = Worker(store, handler, queues=[QUEUE], settings=settings, observer=seen)
    async with at_work(worker):
        await soon(late.reached.wait())
        await asyncio.sleep(0.07)
        late.open()
        await seen.until(lambda: sum(outcome == Done() for _, outcome in seen.outcomes) == 3)

    assert seen.outcomes[:3] == [(id_, Release()) for id_ in published]
    assert sorted(delivery.id for delivery in handler.deliveries) == published
    # As if the first claim had not been: nothing speaks of a worker that was lost with them.
    assert {delivery.deliveries for delivery in handler.deliveries} == {1}
    assert seen.lost == []


async def test_a_retry_made_while_the_store_was_down_is_counted_once(
    store: FaultyStore, clock: ManualClock, seen: Seen
) -> None:
    async def fail(delivery: object) -> Retry:
        return Retry(timedelta(minutes=1))

    await publish(store)
    store.upset("settle", lost_reply)
    await soon(Worker(store, fail, queues=[QUEUE], observer=seen).run_until_idle())

    assert len(seen.uncertainties) == 1
    clock.advance(timedelta(minutes=1))
    [found] = await take(store)
    assert found.attempts == 1
