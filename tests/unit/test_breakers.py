"""A breaker pauses a queue whose handlers keep failing; a probe finds out when it may go on."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from nightmail import PauseQueue
from nightmail.breaker import Breaker
from nightmail.controls import PauseCause
from nightmail.engine.attempt import Answers, Batched
from nightmail.engine.dead_letters import DeadLetters
from nightmail.engine.settings import WorkerSettings
from nightmail.engine.worker import Worker
from nightmail.message import Delivery, Message
from nightmail.observe import LoggingObserver, Observer, Observers
from nightmail.outcome import Dead, Done, Outcome, Postpone, Release, Retry
from nightmail.retry import ConstantRetry
from nightmail.stores.memory import MemoryData, MemoryStore
from tests.unit.faulty import FaultyStore, lost_request
from tests.unit.moving_time import LoopClock, loop_clock
from tests.unit.support import QUEUE, Seen, at_work, publish, soon

__all__ = ["loop_clock"]

HOUR = timedelta(hours=1)
LATER = ConstantRetry(delay=HOUR, jitter=0)
WORKERS = 8


class Pauses(Observer):
    """Remembers what was paused and resumed."""

    def __init__(self) -> None:
        self.lengths: list[tuple[PauseCause, float]] = []
        self.resumptions = 0
        self.opened: list[tuple[str, int]] = []

    def paused(
        self, queue: str, cause: PauseCause, by: str, delay: timedelta | None, reason: str | None
    ) -> None:
        assert delay is not None
        self.lengths.append((cause, round(delay.total_seconds(), 1)))

    def resumed(self, queue: str, by: str) -> None:
        self.resumptions += 1

    def breaker_opened(self, queue: str, failures: int, seconds: float, pause: timedelta) -> None:
        self.opened.append((queue, failures))


class Provider:
    """What handlers call: it is down until it is up again."""

    def __init__(self, *, error: type[Exception] = ConnectionError) -> None:
        self.is_up = False
        self.calls: list[float] = []
        self._error = error

    async def __call__(self, delivery: Delivery) -> None:
        self.calls.append(time.monotonic())
        await asyncio.sleep(0.001)
        if not self.is_up:
            raise self._error("the provider is down")


def breaking(**options: Any) -> WorkerSettings:
    """Opens after three failures, for ten seconds."""
    given: dict[str, Any] = {"failures": 3, "pause": 10, "maximum": 60, "on": (ConnectionError,)}
    return WorkerSettings(breaker=Breaker(**given | options), retry=LATER, max_workers=3)


@pytest.fixture
def store(data: MemoryData, loop_clock: LoopClock) -> FaultyStore:
    """A store whose clock shows the event loop's time."""
    return FaultyStore(MemoryStore(data, clock=loop_clock))


# ── opening ────────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_failures_that_open_it_count_and_nothing_starts_afterwards(
    store: FaultyStore, seen: Seen
) -> None:
    provider, pauses = Provider(), Pauses()
    await publish(store, 50)

    async with at_work(
        Worker(store, provider, queues=[QUEUE], settings=breaking(), observer=Observers(seen, pauses))
    ):
        await asyncio.sleep(5.0)
        (pause,) = await store.pauses(QUEUE)

        assert pause.automatic
        assert pause.reason is not None
        assert "3 failures" in pause.reason
        assert "ConnectionError" in pause.reason
        assert pauses.opened == [(QUEUE, 3)]
        assert pauses.lengths == [(PauseCause.BREAKER, 10.0)]
        retried = [id_ for id_, outcome in seen.outcomes if isinstance(outcome, Retry)]
        assert len(retried) == 3
        # What was on its way is handed back, uncounted.
        assert all(
            message.attempts == 0 for message in await store.find(range(1, 51)) if message.id not in retried
        )
        assert max(provider.calls) - min(provider.calls) < 1.0


async def test_what_runs_when_it_opens_and_fails_then_costs_no_attempt(
    store: FaultyStore, seen: Seen
) -> None:
    async def fails(delivery: Delivery) -> None:
        await asyncio.sleep(2.0 if delivery.body == b"0" else 0.01)
        raise ConnectionError

    slow, *_ = await publish(store, 4)
    settings = WorkerSettings(breaker=Breaker(failures=3), retry=LATER, max_workers=4)

    async with at_work(Worker(store, fails, queues=[QUEUE], settings=settings, observer=seen)):
        await seen.until_settled(4)

    assert seen.of(slow) == [Release()]
    assert [type(outcome) for _, outcome in seen.outcomes].count(Retry) == 3


async def test_failures_that_are_far_apart_do_not_open_it(store: FaultyStore, seen: Seen) -> None:
    provider, pauses = Provider(), Pauses()
    settings = breaking(within=10)

    async with at_work(
        Worker(store, provider, queues=[QUEUE], settings=settings, observer=Observers(seen, pauses))
    ):
        for number in range(6):
            await publish(store)
            await seen.until_settled(number + 1)
            await asyncio.sleep(6.0)

    assert pauses.opened == []


async def test_other_errors_do_not_count(store: FaultyStore, seen: Seen) -> None:
    pauses = Pauses()
    await publish(store, 20)

    async with at_work(
        Worker(
            store,
            Provider(error=LookupError),
            queues=[QUEUE],
            settings=breaking(),
            observer=Observers(seen, pauses),
        )
    ):
        await seen.until_settled(20)

    assert pauses.opened == []
    assert await store.pauses() == []


async def test_each_queue_has_its_own_count(store: FaultyStore, seen: Seen) -> None:
    pauses = Pauses()
    await publish(store, 2)
    await publish(store, 2, queue="other")

    async with at_work(
        Worker(
            store,
            Provider(),
            queues=[QUEUE, "other"],
            settings=breaking(),
            observer=Observers(seen, pauses),
        )
    ):
        await seen.until_settled(4)

    assert pauses.opened == []


async def test_a_batch_that_fails_is_one_failure(store: FaultyStore, seen: Seen) -> None:
    pauses = Pauses()

    async def fails(batch: Sequence[Delivery]) -> Answers:
        raise ConnectionError

    await publish(store, 40)
    settings = WorkerSettings(breaker=Breaker(failures=2), retry=LATER, max_workers=1)

    async with at_work(
        Worker(store, Batched(fails, 10), queues=[QUEUE], settings=settings, observer=Observers(seen, pauses))
    ):
        await asyncio.sleep(1.0)

    assert pauses.opened == [(QUEUE, 2)]
    assert [type(outcome) for _, outcome in seen.outcomes].count(Retry) == 20


async def test_it_leaves_the_pause_of_another_process_alone(store: FaultyStore, seen: Seen) -> None:
    release = asyncio.Event()

    async def fails(delivery: Delivery) -> None:
        await release.wait()
        raise ConnectionError

    await publish(store, 3)

    async with at_work(Worker(store, fails, queues=[QUEUE], settings=breaking(), observer=seen)):
        await seen.until(lambda: len(seen.runs) == 3)
        await store.pause(QUEUE, until=HOUR, by="other/1", automatic=True)
        release.set()
        await seen.until_settled(3)
        (pause,) = await store.pauses()

    assert (pause.by, pause.until) == ("other/1", pause.since + HOUR)


async def test_a_pause_that_cannot_be_written_is_given_up_and_work_goes_on(
    store: FaultyStore, seen: Seen
) -> None:
    store.upset("pause", lost_request, times=None)
    await publish(store, 30)

    async with at_work(Worker(store, Provider(), queues=[QUEUE], settings=breaking(), observer=seen)):
        await asyncio.sleep(60.0)

    assert seen.outages
    retried = {id_ for id_, outcome in seen.outcomes if isinstance(outcome, Retry)}
    assert len(retried) == 30


async def test_it_is_logged_once(store: FaultyStore, caplog: pytest.LogCaptureFixture) -> None:
    await publish(store, 20)

    with caplog.at_level(logging.WARNING, "nightmail"):
        async with at_work(
            Worker(store, Provider(), queues=[QUEUE], settings=breaking(), observer=LoggingObserver())
        ):
            await asyncio.sleep(5.0)

    lines = [line for line in caplog.messages if "breaker" in line]
    assert len(lines) == 1
    assert lines[0].startswith(f"queue {QUEUE} paused by its breaker for 10 s, until ")
    assert ": 3 failures in " in lines[0]


async def test_dead_letters_have_no_breaker(store: FaultyStore, seen: Seen) -> None:
    await publish(store, 5)

    async def bury(_delivery: Delivery) -> Outcome:
        return Dead("bad")

    await soon(Worker(store, bury, queues=[QUEUE]).run_until_idle())

    async with at_work(
        Worker(DeadLetters(store), Provider(), queues=[QUEUE], settings=breaking(), observer=seen)
    ):
        await seen.until_settled(5)

    assert await store.pauses() == []


# ── probing ────────────────────────────────────────────────────────────────────────────────────────────────


async def test_each_failed_probe_doubles_the_time_up_to_the_maximum_and_costs_no_attempt(
    store: FaultyStore, seen: Seen
) -> None:
    provider, pauses = Provider(), Pauses()
    published = await publish(store, 50)

    async with at_work(
        Worker(store, provider, queues=[QUEUE], settings=breaking(), observer=Observers(seen, pauses))
    ):
        await asyncio.sleep(300.0)

    # Then the store renews it for as long as it was, by itself.
    assert [length for _, length in pauses.lengths] == [10.0, 20.0, 40.0, 60.0]
    probes = [at for at in provider.calls if at > provider.calls[0] + 5]
    assert [round(later - at) for at, later in pairwise(probes)] == [20, 40, 60, 60, 60]
    messages = await store.find(published)
    assert len(messages) == 50
    assert sum(message.attempts for message in messages) == 3


async def test_a_probe_that_is_done_resumes_the_queue(store: FaultyStore, seen: Seen) -> None:
    provider, pauses = Provider(), Pauses()
    published = await publish(store, 50)

    async with at_work(
        Worker(store, provider, queues=[QUEUE], settings=breaking(), observer=Observers(seen, pauses))
    ):
        await asyncio.sleep(5.0)
        provider.is_up = True
        await asyncio.sleep(10.0)

        assert pauses.resumptions == 1
        assert await store.pauses() == []
        # All but the three that failed, which are retried in an hour.
        assert len(await store.find(published)) == 3


async def test_eight_workers_let_exactly_one_through(data: MemoryData, loop_clock: LoopClock) -> None:
    provider = Provider()
    stores = [MemoryStore(data, clock=loop_clock) for _ in range(WORKERS)]
    await publish(stores[0], 400)
    workers = [
        Worker(each, provider, queues=[QUEUE], settings=breaking(pause=10, maximum=10)) for each in stores
    ]

    async with at_work(*workers):
        await asyncio.sleep(5.0)
        before = len(provider.calls)
        await asyncio.sleep(50.0)
        probes = provider.calls[before:]

        assert 4 <= len(probes) <= 5
        assert all(later - at > 9.0 for at, later in pairwise(probes))

        provider.is_up = True
        await asyncio.sleep(15.0)
        assert await stores[0].pauses() == []
        assert len(provider.calls) > 300


@pytest.mark.parametrize("end", ["expires", "is given up"])
async def test_messages_that_are_too_old_to_run_do_not_keep_a_queue_paused(
    store: FaultyStore, seen: Seen, end: str
) -> None:
    provider = Provider()
    give_up_after = timedelta(seconds=5) if end == "is given up" else None
    settings = replace(breaking(), give_up_after=give_up_after)
    expires_in = timedelta(seconds=5) if end == "expires" else None
    await publish(store, 50)

    async with at_work(Worker(store, provider, queues=[QUEUE], settings=settings, observer=seen)):
        await asyncio.sleep(5.0)
        provider.is_up = True
        # At each probe the oldest, which is taken first, is over.
        for _ in range(60):
            await store.publish(Message(queue=QUEUE, body=b"new", expires_in=expires_in))
            await asyncio.sleep(1.0)

        assert await store.pauses() == []


async def test_it_never_resumes_what_a_person_paused(store: FaultyStore, seen: Seen) -> None:
    provider = Provider()
    await publish(store, 50)

    async with at_work(Worker(store, provider, queues=[QUEUE], settings=breaking(), observer=seen)):
        await asyncio.sleep(5.0)
        await store.pause(QUEUE, by="ann")
        provider.is_up = True
        calls = len(provider.calls)
        await asyncio.sleep(HOUR.total_seconds())

        assert len(provider.calls) == calls
        await store.resume(QUEUE)
        assert [pause.automatic for pause in await store.pauses()] == [True]
        await asyncio.sleep(20.0)
        assert await store.pauses() == []


async def test_a_probe_that_waits_is_held_back_by_a_person_only(store: FaultyStore, seen: Seen) -> None:
    await store.pause(QUEUE, until=timedelta(seconds=1), by="host/1", automatic=True)
    await publish(store, 2)
    await asyncio.sleep(2.0)
    busy, release = asyncio.Event(), asyncio.Event()

    async def handle(delivery: Delivery) -> None:
        if delivery.queue == "busy":
            busy.set()
            await release.wait()

    settings = WorkerSettings(max_workers=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nightmail.engine.prefetch.Prefetch.ahead", lambda pace, now: 100)
        await publish(store, queue="busy")
        await store.pause(QUEUE, by="ann")
        async with at_work(Worker(store, handle, queues=["busy", QUEUE], settings=settings, observer=seen)):
            await soon(busy.wait())
            await store.resume(QUEUE)
            await seen.until(lambda: sum(map(len, seen.claims)) == 2)
            await asyncio.sleep(0.6)
            release.set()
            await seen.until(lambda: sum(isinstance(each, Done) for _, each in seen.outcomes) == 3)

    assert await store.pauses() == []


# ── asked for by a handler ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("batched", [False, True], ids=["one", "batch"])
async def test_a_handler_that_asks_for_a_pause_gets_it_and_no_attempt_counts(
    store: FaultyStore, seen: Seen, batched: bool, far_ahead: None
) -> None:
    pauses, asked = Pauses(), 0

    async def handle(delivery: Delivery) -> None:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise PauseQueue(30, "rate limit")

    async def handle_many(batch: Sequence[Delivery]) -> None:
        await handle(batch[0])

    published = await publish(store, 40)
    handler = Batched(handle_many, 5) if batched else handle
    settings = WorkerSettings(max_workers=1)

    async with at_work(
        Worker(store, handler, queues=[QUEUE], settings=settings, observer=Observers(seen, pauses))
    ):
        await asyncio.sleep(20.0)
        (pause,) = await store.pauses()
        waiting = await store.find(published)
        assert (pause.automatic, pause.reason) == (True, "rate limit")
        assert asked == 1
        assert len(waiting) == 40
        assert {(message.attempts, message.deliveries) for message in waiting} == {(0, 0)}
        postponed = [outcome for _, outcome in seen.outcomes if outcome == Postpone(timedelta(seconds=30))]
        assert len(postponed) == (5 if batched else 1)

        await asyncio.sleep(20.0)
        assert await store.find(published) == []

    assert pauses.lengths == [(PauseCause.HANDLER, 30.0)]
    assert pauses.resumptions == 1
    assert pauses.opened == []


async def test_an_answer_for_one_of_a_batch_may_ask_for_a_pause(store: FaultyStore, seen: Seen) -> None:
    async def handle(batch: Sequence[Delivery]) -> Answers:
        return [PauseQueue(30), *([None] * (len(batch) - 1))]

    first, second = await publish(store, 2)
    await soon(Worker(store, Batched(handle, 2), queues=[QUEUE], observer=seen).run_until_idle())

    assert seen.of(first) == [Postpone(timedelta(seconds=30))]
    assert seen.of(second) == [Done()]
    assert len(await store.pauses()) == 1


async def test_a_probe_that_asks_for_another_pause_gets_that(store: FaultyStore, seen: Seen) -> None:
    pauses = Pauses()

    async def handle(delivery: Delivery) -> None:
        raise PauseQueue(10 if not pauses.lengths else 100)

    await publish(store, 5)

    async with at_work(
        Worker(store, handle, queues=[QUEUE], settings=breaking(), observer=Observers(seen, pauses))
    ):
        await asyncio.sleep(200.0)

    assert [length for _, length in pauses.lengths[:2]] == [10.0, 100.0]
    assert pauses.opened == []


async def test_of_dead_letters_it_only_postpones(store: FaultyStore, seen: Seen) -> None:
    await publish(store)

    async def bury(_delivery: Delivery) -> Outcome:
        return Dead("bad")

    async def handle(_delivery: Delivery) -> None:
        raise PauseQueue(30)

    await soon(Worker(store, bury, queues=[QUEUE]).run_until_idle())
    await soon(Worker(DeadLetters(store), handle, queues=[QUEUE], observer=seen).run_until_idle())

    assert [outcome for _, outcome in seen.outcomes] == [Postpone(timedelta(seconds=30))]
    assert await store.pauses() == []


# ── values ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"failures": 0}, "failures must be at least 1, not 0"),
        ({"failures": 1.5}, "failures must be a whole number, not float"),
        ({"failures": True}, "failures must be a whole number, not bool"),
        ({"within": 0}, "within must be positive, not 0 s"),
        ({"pause": timedelta(0)}, "pause must be positive, not 0 s"),
        ({"pause": "30"}, "pause must be a timedelta or a number of seconds, not str"),
        ({"pause": 60, "maximum": 30}, "maximum must be at least as long as pause (60 s), not 30 s"),
        (
            {"on": ConnectionError},
            "on must be a tuple of exceptions, such as (ConnectionError,), not ConnectionError",
        ),
        ({"on": ()}, "on must be a tuple of exceptions, such as (ConnectionError,), not ()"),
        ({"on": (asyncio.CancelledError,)}, "on must be a tuple of exceptions"),
    ],
)
def test_a_wrong_breaker_is_refused(options: dict[str, Any], error: str) -> None:
    with pytest.raises((TypeError, ValueError)) as refused:
        Breaker(**options)

    assert str(refused.value).startswith(error)


def test_a_breaker_is_one_and_not_its_class() -> None:
    with pytest.raises(TypeError, match="breaker must be a Breaker"):
        WorkerSettings(breaker=Breaker)  # type: ignore[arg-type]


@pytest.mark.parametrize("seconds", [0, -5, timedelta(0)])
def test_a_pause_of_nothing_is_a_moment(seconds: float) -> None:
    assert PauseQueue(seconds).retry_after == timedelta(milliseconds=100)


def test_a_pause_needs_a_duration() -> None:
    with pytest.raises(TypeError, match="retry_after must be a timedelta or a number of seconds, not str"):
        PauseQueue("soon")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="more than 200 years"):
        PauseQueue(1e11)
