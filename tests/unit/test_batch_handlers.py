"""Handlers that take several deliveries at once: how batches are made, and what their answers do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from itertools import chain
from typing import Any

import pytest

from nightmail.engine import current
from nightmail.engine.attempt import Batched, BatchHandler
from nightmail.engine.leases import Leases
from nightmail.engine.prefetch import Prefetch
from nightmail.engine.settings import WorkerSettings
from nightmail.engine.worker import Worker
from nightmail.errors import LeaseLost
from nightmail.message import Delivery, Message
from nightmail.outcome import Dead, Done, Outcome, Postpone, Release, Retry
from nightmail.records import DeadFilter
from nightmail.retry import ConstantRetry
from nightmail.stores.memory import MemoryData, MemoryStore
from nightmail.testing.clock import ManualClock
from tests.unit.faulty import FaultyStore
from tests.unit.support import (
    PATIENCE,
    QUEUE,
    Seen,
    a_few_steps,
    at_work,
    ids,
    publish,
    publish_timer,
    soon,
    take,
)

LATER = timedelta(minutes=10)
POLICY = ConstantRetry(delay=LATER, jitter=0.0)
ONE = WorkerSettings(max_workers=1, retry=POLICY)

Answers = Sequence[Outcome | Exception | None] | None


class Batches:
    """A batch handler that a test can hold, and that answers as told."""

    def __init__(self, *answers: Outcome | Exception | None, held: bool = False) -> None:
        self.seen: list[list[int]] = []
        self.running = 0
        self._answers = answers
        self._changed = asyncio.Condition()
        self._let_go = asyncio.Event()
        if not held:
            self._let_go.set()

    async def __call__(self, batch: Sequence[Delivery]) -> Answers:
        self.seen.append(ids(batch))
        self.running += 1
        try:
            async with self._changed:
                self._changed.notify_all()
            await self._let_go.wait()
        finally:
            self.running -= 1
        return self._answers or None

    def let_go(self) -> None:
        self._let_go.set()

    async def until_running(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE), self._changed:
            await self._changed.wait_for(lambda: self.running >= count)


def worker(
    store: FaultyStore, handler: BatchHandler, seen: Seen, settings: WorkerSettings = ONE, limit: int = 100
) -> Worker:
    """One that delivers batches."""
    return Worker(store, Batched(handler, limit), queues=[QUEUE], settings=settings, observer=seen)


async def run_once(
    store: FaultyStore, seen: Seen, handler: BatchHandler, settings: WorkerSettings = ONE, limit: int = 100
) -> None:
    """Run what is due until nothing is."""
    await soon(worker(store, handler, seen, settings, limit).run_until_idle())


# ── how batches are made ──────────────────────────────────────────────────────────────────────────────────


async def test_a_batch_has_at_most_as_many_as_its_limit_in_the_order_of_the_claim(
    store: FaultyStore, seen: Seen
) -> None:
    handler = Batches()
    await publish(store, 7)

    await run_once(store, seen, handler, limit=3)

    assert handler.seen == [[1, 2, 3], [4, 5, 6], [7]]
    assert seen.outcomes == [(id_, Done()) for id_ in range(1, 8)]


async def test_a_batch_takes_what_is_there_and_waits_for_no_more(store: FaultyStore, seen: Seen) -> None:
    handler = Batches()
    async with at_work(worker(store, handler, seen)):
        await publish(store)
        await seen.until_settled(1)
        await publish(store, 2)
        await seen.until_settled(3)

    assert handler.seen == [[1], [2, 3]]


async def test_what_comes_while_a_batch_runs_goes_into_the_next(store: FaultyStore, seen: Seen) -> None:
    handler = Batches(held=True)
    async with at_work(worker(store, handler, seen)):
        await publish(store)
        await handler.until_running(1)
        await publish(store, 3)
        await a_few_steps()
        assert handler.seen == [[1]]
        handler.let_go()
        await seen.until_settled(4)

    assert handler.seen == [[1], [2, 3, 4]]


async def test_what_comes_while_every_handler_is_busy_is_left_to_other_processes(
    store: FaultyStore, data: MemoryData, clock: ManualClock, seen: Seen
) -> None:
    handler = Batches(held=True)
    async with at_work(worker(store, handler, seen)):
        await publish(store)
        await handler.until_running(1)
        await publish(store, 3)
        await a_few_steps()
        # There would be room in the batch that runs, but it has started without them.
        assert ids(await take(MemoryStore(data, clock=clock), 10)) == [2, 3, 4]
        handler.let_go()


async def test_what_is_fetched_ahead_of_quick_handlers_is_fetched_in_whole_batches(
    store: FaultyStore, seen: Seen
) -> None:
    handler = Batches()
    await publish(store, 1000)

    await run_once(store, seen, handler, limit=30)

    # Or every other batch would be a small one.
    assert {len(batch) for batch in handler.seen[:-1]} == {30}
    assert len(handler.seen[-1]) == 10


async def test_as_many_batches_run_at_once_as_there_may_be_workers(store: FaultyStore, seen: Seen) -> None:
    handler = Batches(held=True)
    await publish(store, 10)
    settings = WorkerSettings(max_workers=2)
    async with at_work(worker(store, handler, seen, settings, limit=3)):
        await handler.until_running(2)
        await a_few_steps()
        assert handler.seen == [[1, 2, 3], [4, 5, 6]]
        handler.let_go()
        await seen.until_settled(10)

    assert sorted(chain.from_iterable(handler.seen)) == list(range(1, 11))
    assert max(map(len, handler.seen)) == 3


async def test_the_pace_is_that_of_one_message_and_not_of_a_batch(
    store: FaultyStore, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[float] = []
    monkeypatch.setattr(Prefetch, "ran", lambda pace, seconds, messages: runs.append(seconds / messages))

    async def handle(batch: Sequence[Delivery]) -> Answers:
        await asyncio.sleep(0.02)
        return None

    loop = asyncio.get_running_loop()
    await publish(store, 10)
    began = loop.time()
    await run_once(store, seen, handle)

    [run] = runs
    assert 0.0019 < run <= (loop.time() - began) / 10


def test_how_far_ahead_to_fetch_is_counted_in_whole_batches() -> None:
    for each, ahead in [(0.001, 200), (0.0019, 100), (0.0021, 0)]:
        pace = Prefetch(batch=100)
        pace.started(0.0, 1, size=100)
        pace.ran(each)

        assert pace.ahead(0.0) == ahead


def test_a_batch_that_runs_on_is_measured_by_its_messages() -> None:
    pace = Prefetch(batch=100)
    pace.started(0.0, 1, size=100)
    pace.ran(0.001)
    pace.started(0.1, 1, size=100)

    assert [pace.ahead(now) for now in (0.1, 0.2, 0.25, 0.3, 0.31)] == [200, 200, 100, 100, 0]


async def test_a_batch_has_at_most_one_message_of_an_ordering_key(store: FaultyStore, seen: Seen) -> None:
    handler = Batches()
    await publish(store, 3, ordering_key="a")
    await publish(store, 2, ordering_key="b")

    await run_once(store, seen, handler)

    assert handler.seen == [[1, 4], [2, 5], [3]]


async def test_what_must_not_run_is_left_out_of_the_batch(
    store: FaultyStore, clock: ManualClock, seen: Seen
) -> None:
    handler = Batches()
    [expired] = await publish(store, expires_in=timedelta(seconds=1))
    clock.advance(timedelta(seconds=2))
    fresh = await publish(store, 2)

    await run_once(store, seen, handler)

    assert handler.seen == [fresh]
    assert seen.of(expired) == [Dead("expired", ran=False)]


async def test_a_quarantined_message_runs_in_a_batch_of_one(
    store: FaultyStore, clock: ManualClock, seen: Seen
) -> None:
    [quarantined] = await publish(store)
    for _ in range(2):
        await take(store, lease=timedelta(seconds=1))
        clock.advance(timedelta(seconds=2))
    innocents = await publish(store, 3)
    handler = Batches()

    await run_once(store, seen, handler)

    assert handler.seen == [innocents, [quarantined]]


@pytest.mark.parametrize("limit", [0, -1])
def test_a_batch_of_nothing_is_refused(limit: int) -> None:
    with pytest.raises(ValueError, match=f"limit must be at least 1, not {limit}"):
        Batched(Batches(), limit)


# ── answers ───────────────────────────────────────────────────────────────────────────────────────────────


async def test_each_message_ends_as_its_own_answer_says(
    store: FaultyStore, clock: ManualClock, seen: Seen
) -> None:
    error = ConnectionError("no route")
    answers = [None, Done(), Retry(LATER), Postpone(LATER), Dead("unwanted"), error]
    await publish(store, 6)

    await run_once(store, seen, Batches(*answers))

    assert seen.outcomes == [
        (1, Done()),
        (2, Done()),
        (3, Retry(LATER)),
        (4, Postpone(LATER)),
        (5, Dead("unwanted")),
        (6, Retry(LATER)),
    ]
    assert seen.failures == [(6, error)]


async def test_a_batch_handler_that_returns_nothing_is_done_with_all(store: FaultyStore, seen: Seen) -> None:
    await publish(store, 3)

    await run_once(store, seen, Batches())

    assert seen.outcomes == [(1, Done()), (2, Done()), (3, Done())]


async def test_what_a_batch_handler_raises_applies_to_all(
    store: FaultyStore, clock: ManualClock, seen: Seen
) -> None:
    async def handle(batch: Sequence[Delivery]) -> Answers:
        raise ConnectionError("no route")

    settings = WorkerSettings(retry=ConstantRetry(delay=LATER, jitter=0.0, max_attempts=2))
    await publish(store, 2)

    await run_once(store, seen, handle, settings)
    clock.advance(LATER)
    await run_once(store, seen, handle, settings)

    buried = Dead("retries_exhausted", "ConnectionError('no route')")
    assert seen.outcomes == [(1, Retry(LATER)), (2, Retry(LATER)), (1, buried), (2, buried)]
    assert [id_ for id_, _ in seen.failures] == [1, 2, 1, 2]
    assert [letter.attempts for letter in await store.dead(DeadFilter())] == [2, 2]


@pytest.mark.parametrize(
    ("answers", "complaint"),
    [
        ([], "a batch of 2 needs as many answers, got 0"),
        ([None], "a batch of 2 needs as many answers, got 1"),
        ([None, None, None], "a batch of 2 needs as many answers, got 3"),
        ([None, "ok"], "expected an outcome, got str"),
        ([None, True], "expected an outcome, got bool"),
        ([None, Retry], "expected an outcome, got type"),
        (7, "object of type 'int' has no len()"),
    ],
)
async def test_of_a_batch_that_was_answered_wrongly_nothing_is_done(
    store: FaultyStore, seen: Seen, answers: Any, complaint: str
) -> None:
    async def handle(batch: Sequence[Delivery]) -> Any:
        return answers

    await publish(store, 2)
    await run_once(store, seen, handle)

    assert seen.outcomes == [(1, Retry(LATER)), (2, Retry(LATER))]
    assert [(type(error), str(error)) for _, error in seen.failures] == [(TypeError, complaint)] * 2


async def test_the_policy_is_asked_about_each_message_of_a_failed_batch(
    store: FaultyStore, seen: Seen
) -> None:
    def policy(delivery: Delivery, error: Exception | None) -> Outcome:
        if delivery.body == b"1":
            raise ZeroDivisionError
        return Retry(timedelta(seconds=delivery.id))

    async def handle(batch: Sequence[Delivery]) -> Answers:
        raise ConnectionError

    await publish(store, 3)
    await run_once(store, seen, handle, WorkerSettings(retry=policy))

    assert seen.outcomes == [
        (1, Retry(timedelta(seconds=1))),
        (2, Dead("policy_error", "ZeroDivisionError()")),
        (3, Retry(timedelta(seconds=3))),
    ]
    assert [id_ for id_, _ in seen.broken_policies] == [2]


# ── leases ────────────────────────────────────────────────────────────────────────────────────────────────


async def test_leases_that_the_handler_found_lost_are_left_alone_and_the_others_go_again_uncounted(
    store: FaultyStore, clock: ManualClock, seen: Seen
) -> None:
    batches: list[list[tuple[int, int, int]]] = []

    async def handle(batch: Sequence[Delivery]) -> Answers:
        batches.append([(each.id, each.attempts, each.deliveries) for each in batch])
        if len(batches) == 1:
            raise LeaseLost([2])
        return None

    await publish(store, 3)
    await run_once(store, seen, handle)

    assert batches == [[(1, 0, 1), (2, 0, 1), (3, 0, 1)], [(1, 0, 1), (3, 0, 1)]]
    assert seen.lost == [2]
    assert seen.failures == []
    assert seen.outcomes == [(1, Release()), (3, Release()), (1, Done()), (3, Done())]


async def test_a_lost_lease_that_names_no_message_is_every_lease_of_the_batch(
    store: FaultyStore, seen: Seen
) -> None:
    calls = 0

    async def handle(batch: Sequence[Delivery]) -> Answers:
        nonlocal calls
        calls += 1
        raise LeaseLost

    await publish(store, 2)
    await run_once(store, seen, handle)

    # They come back when their leases end. Handed back, they would come round at full speed.
    assert calls == 1
    assert seen.lost == [1, 2]
    assert seen.outcomes == []


async def test_a_lost_lease_of_messages_elsewhere_is_a_failure_of_the_batch(
    store: FaultyStore, seen: Seen
) -> None:
    async def handle(batch: Sequence[Delivery]) -> Answers:
        raise LeaseLost([77])

    await publish(store, 2)
    await run_once(store, seen, handle)

    assert seen.lost == []
    assert seen.outcomes == [(1, Retry(LATER)), (2, Retry(LATER))]


async def test_a_lost_lease_may_be_the_answer_for_one_message(store: FaultyStore, seen: Seen) -> None:
    await publish(store, 2)

    await run_once(store, seen, Batches(None, LeaseLost([2])))

    assert seen.outcomes == [(1, Done())]
    assert seen.lost == [2]


async def test_what_may_be_lost_before_the_start_is_left_out_of_the_batch_and_goes_back(
    store: FaultyStore, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def handle(batch: Sequence[Delivery]) -> Answers:
        batches.append(ids(batch))
        owners.append(current.own_delivery(store, QUEUE, "first"))
        return None

    batches: list[list[int]] = []
    owners: list[Delivery | None] = []
    monkeypatch.setattr(Leases, "surely_held", late_once(1))
    await publish_timer(store, "first")
    await publish(store, 2)
    running = worker(store, handle, seen)

    await soon(running.run_until_idle())

    assert batches == [[2, 3], [1]]
    assert owners[0] is None
    assert seen.lost == []
    assert seen.outcomes == [(1, Release()), (2, Done()), (3, Done()), (1, Done())]
    assert running.in_hand == 0


async def test_a_batch_that_may_be_lost_as_a_whole_before_the_start_goes_back(
    store: FaultyStore, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Leases, "surely_held", late_once(1, 2))
    handler = Batches()
    await publish(store, 2)
    running = worker(store, handler, seen)

    await soon(running.run_until_idle())

    assert handler.seen == [[1, 2]]
    assert seen.outcomes == [(1, Release()), (2, Release()), (1, Done()), (2, Done())]
    assert seen.lost == []
    assert running.in_hand == 0
    assert running.is_at_rest


def late_once(*late: int) -> Callable[[Leases, Sequence[Delivery], float], list[Delivery]]:
    """The leases of these may have ended when they are to start for the first time."""
    left = set(late)

    def surely_held(leases: Leases, deliveries: Sequence[Delivery], now: float) -> list[Delivery]:
        held = [delivery for delivery in deliveries if delivery.id not in left]
        left.difference_update(ids(deliveries))
        return held

    return surely_held


# ── time and shutdown ─────────────────────────────────────────────────────────────────────────────────────


async def test_a_batch_that_takes_too_long_is_cancelled_and_all_of_it_retried(
    store: FaultyStore, seen: Seen
) -> None:
    settings = WorkerSettings(handler_timeout=timedelta(milliseconds=50), retry=POLICY)
    await publish(store, 2)

    await run_once(store, seen, Batches(held=True), settings)

    assert seen.outcomes == [(1, Retry(LATER)), (2, Retry(LATER))]
    assert [str(error) for _, error in seen.failures] == ["the handler ran longer than 0.05 seconds"] * 2


async def test_the_next_batch_of_a_runner_whose_last_one_was_cancelled_runs_as_usual(
    store: FaultyStore, seen: Seen
) -> None:
    async def handle(batch: Sequence[Delivery]) -> Answers:
        if batch[0].id == 1:
            await asyncio.Event().wait()
        await asyncio.sleep(0)
        return None

    settings = WorkerSettings(max_workers=1, handler_timeout=timedelta(milliseconds=50), retry=POLICY)
    await publish(store, 4)

    await run_once(store, seen, handle, settings, limit=2)

    assert seen.outcomes == [(1, Retry(LATER)), (2, Retry(LATER)), (3, Done()), (4, Done())]


async def test_a_batch_handler_that_cancels_itself_has_failed(store: FaultyStore, seen: Seen) -> None:
    async def handle(batch: Sequence[Delivery]) -> Answers:
        raise asyncio.CancelledError

    await publish(store, 2)
    await run_once(store, seen, handle)

    assert seen.outcomes == [(1, Retry(LATER)), (2, Retry(LATER))]
    assert [str(error) for _, error in seen.failures] == ["the handler raised CancelledError by itself"] * 2


async def test_past_the_grace_period_a_batch_is_cancelled_and_handed_back_uncounted(
    store: FaultyStore, data: MemoryData, clock: ManualClock, seen: Seen
) -> None:
    handler = Batches(held=True)
    settings = WorkerSettings(max_workers=1, graceful_timeout=timedelta(0))
    stopped = worker(store, handler, seen, settings)
    await publish(store, 3)
    async with at_work(stopped):
        await handler.until_running(1)
        await soon(stopped.stop())

    assert seen.outcomes == [(1, Release()), (2, Release()), (3, Release())]
    assert seen.failures == []
    assert seen.left == [0]
    found = await take(MemoryStore(data, clock=clock), 10)
    assert [(each.id, each.attempts, each.deliveries) for each in found] == [(1, 0, 1), (2, 0, 1), (3, 0, 1)]


async def test_a_batch_may_finish_within_the_grace_period(store: FaultyStore, seen: Seen) -> None:
    handler = Batches(held=True)
    stopped = worker(store, handler, seen, limit=2)
    await publish(store, 2)
    async with at_work(stopped):
        await handler.until_running(1)
        stopping = asyncio.create_task(stopped.stop())
        await a_few_steps()
        assert not stopping.done()
        handler.let_go()
        await soon(stopping)

    assert seen.outcomes == [(1, Done()), (2, Done())]


async def test_what_waits_behind_a_batch_is_handed_back_at_once_when_stopped(
    store: FaultyStore, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Or a pause of the machine would look like a slow handler, for which nothing is fetched ahead.
    monkeypatch.setattr("nightmail.engine.prefetch.AHEAD_SECONDS", 60.0)
    hold = asyncio.Event()

    async def handle(batch: Sequence[Delivery]) -> Answers:
        if batch[0].id > 10:
            await hold.wait()
        return None

    stopped = worker(store, handle, seen, limit=10)
    await publish(store, 100)
    async with at_work(stopped):
        await seen.until_settled(10)
        await seen.until(lambda: len(seen.runs) == 20)
        waiting = stopped.in_hand - 10
        assert waiting > 0
        stopping = asyncio.create_task(stopped.stop())
        await seen.until_settled(10 + waiting)
        assert stopped.in_hand == 10
        hold.set()
        await soon(stopping)

    assert [outcome for _, outcome in seen.outcomes].count(Release()) == waiting
    assert [outcome for _, outcome in seen.outcomes].count(Done()) == 20


# ── timers ────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_batch_handler_re_arms_any_of_its_own_timers(
    store: FaultyStore, clock: ManualClock, seen: Seen
) -> None:
    async def handle(batch: Sequence[Delivery]) -> Answers:
        for name in ("daily", "weekly"):
            again = Message(queue=QUEUE, body=b"again", due=LATER, timer_id=name)
            await store.publish(again, own=current.own_delivery(store, QUEUE, name))
        return None

    for name in ("daily", "weekly"):
        await publish_timer(store, name)
    await run_once(store, seen, handle)

    assert seen.outcomes == [(1, Done()), (2, Done())]
    waiting = await store.peek(QUEUE)
    assert [(each.id, each.timer_id, each.body) for each in waiting] == [
        (3, "daily", b"again"),
        (4, "weekly", b"again"),
    ]
