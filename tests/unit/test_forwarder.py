"""The forwarder: what a publisher says of each message decides about that message alone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from nightmail.engine import current
from nightmail.errors import LeaseLost
from nightmail.forwarder import Forwarder, Publisher
from nightmail.message import Delivery
from nightmail.observe import Observer
from nightmail.outcome import Dead, Done, Outcome, Postpone, Release, Retry
from nightmail.records import DeadFilter
from nightmail.retry import ConstantRetry
from nightmail.stores.memory import MemoryData, MemoryStore
from nightmail.testing.clock import ManualClock
from tests.unit.faulty import FaultyStore, Gate, lost_reply, lost_request
from tests.unit.support import (
    PATIENCE,
    QUEUE,
    Seen,
    a_few_steps,
    ids,
    publish,
    publish_timer,
    soon,
    take,
)

LATER = timedelta(minutes=10)
POLICY = ConstantRetry(delay=LATER, jitter=0.0, max_attempts=2)


class Line:
    """A publisher: the other end of a line on which some messages do not get through, and which a test can hold."""

    def __init__(self, *poison: int, held: bool = False) -> None:
        self.poison = {*poison}
        self.arrived: list[int] = []
        self.batches: list[list[int]] = []
        self.running = 0
        self._changed = asyncio.Condition()
        self._let_go = asyncio.Event()
        if not held:
            self._let_go.set()

    async def __call__(self, batch: Sequence[Delivery]) -> list[Exception | None]:
        self.batches.append(ids(batch))
        self.running += 1
        try:
            async with self._changed:
                self._changed.notify_all()
            await self._let_go.wait()
        finally:
            self.running -= 1
        self.arrived += [each.id for each in batch if each.id not in self.poison]
        return [
            ConnectionError(f"no way for {each.id}") if each.id in self.poison else None for each in batch
        ]

    def let_go(self) -> None:
        """Let those that run, and all that come, end."""
        self._let_go.set()

    async def until_running(self, count: int) -> None:
        """Wait until so many run at once."""
        async with asyncio.timeout(PATIENCE), self._changed:
            await self._changed.wait_for(lambda: self.running >= count)


class Told:
    """What the hooks were told, in order."""

    def __init__(self) -> None:
        self.all: list[tuple[Any, ...]] = []
        self.hooks: dict[str, Callable[..., None]] = {
            "on_published": lambda delivery: self.all.append(("published", delivery.id)),
            "on_failed": lambda delivery, error: self.all.append(("failed", delivery.id, str(error))),
            "on_dead": lambda delivery, reason: self.all.append(("dead", delivery.id, reason)),
        }


@pytest.fixture
def told() -> Told:
    """Hooks for a forwarder."""
    return Told()


def forwarder(store: FaultyStore, publisher: Publisher, seen: Observer | None, **options: Any) -> Forwarder:
    """One that tries a second time, later, and then gives up."""
    return Forwarder(store, publisher, **{"queues": [QUEUE], "observer": seen, "retry": POLICY} | options)


# ── results ───────────────────────────────────────────────────────────────────────────────────────────────


async def test_what_has_arrived_leaves_the_store(store: FaultyStore, seen: Seen) -> None:
    line = Line()
    await publish(store, 3)

    await soon(forwarder(store, line, seen).run_until_idle())

    assert line.batches == [[1, 2, 3]]
    assert seen.outcomes == [(1, Done()), (2, Done()), (3, Done())]
    assert await store.stats() == {}


async def test_a_poison_message_is_retried_and_buried_alone_and_its_neighbours_go_once(
    store: FaultyStore, clock: ManualClock, seen: Seen
) -> None:
    line = Line(3)
    await publish(store, 5)

    await soon(forwarder(store, line, seen).run_until_idle())
    assert line.arrived == [1, 2, 4, 5]
    assert seen.of(3) == [Retry(LATER)]
    clock.advance(LATER)
    await soon(forwarder(store, line, seen).run_until_idle())

    assert line.batches == [[1, 2, 3, 4, 5], [3]]
    [letter] = await store.dead(DeadFilter())
    assert (letter.message_id, letter.reason, letter.attempts) == (3, "retries_exhausted", 2)
    assert letter.error == "ConnectionError('no way for 3')"


async def test_a_publisher_that_raises_fails_its_whole_batch_and_no_other(
    store: FaultyStore, seen: Seen
) -> None:
    async def send(batch: Sequence[Delivery]) -> list[Exception | None]:
        if batch[0].id == 1:
            raise ConnectionError("no route")
        return [None] * len(batch)

    await publish(store, 4)
    await soon(forwarder(store, send, seen, max_batch=2).run_until_idle())

    assert seen.outcomes == [(1, Retry(LATER)), (2, Retry(LATER)), (3, Done()), (4, Done())]
    assert [str(error) for _, error in seen.failures] == ["no route", "no route"]


@pytest.mark.parametrize(
    ("results", "complaint"),
    [
        (None, "a publisher returns a list of results, not NoneType"),
        ({1, 2}, "a publisher returns a list of results, not set"),
        ([], "a publisher returns one result for each of 2 messages, not 0"),
        ([None], "a publisher returns one result for each of 2 messages, not 1"),
        ([None] * 3, "a publisher returns one result for each of 2 messages, not 3"),
        ([None, True], "of each message a publisher returns None or an exception, not bool"),
        ([None, Done()], "of each message a publisher returns None or an exception, not Done"),
        ([None, ConnectionError], "of each message a publisher returns None or an exception, not type"),
        ("ok", "of each message a publisher returns None or an exception, not str"),
    ],
)
async def test_a_wrong_answer_is_never_taken_for_success(
    store: FaultyStore, seen: Seen, told: Told, results: Any, complaint: str
) -> None:
    async def send(batch: Sequence[Delivery]) -> Any:
        return results

    await publish(store, 2)
    await soon(forwarder(store, send, seen, **told.hooks).run_until_idle())

    assert seen.outcomes == [(1, Retry(LATER)), (2, Retry(LATER))]
    assert told.all == [("failed", 1, complaint), ("failed", 2, complaint)]


async def test_what_was_cancelled_on_its_way_fails_alone(store: FaultyStore, seen: Seen) -> None:
    async def send(delivery: Delivery) -> None:
        if delivery.id == 2:
            raise asyncio.CancelledError

    async def send_all(batch: Sequence[Delivery]) -> Any:
        return await asyncio.gather(*map(send, batch), return_exceptions=True)

    await publish(store, 3)
    await soon(forwarder(store, send_all, seen).run_until_idle())

    assert sorted(seen.outcomes) == [(1, Done()), (2, Retry(LATER)), (3, Done())]
    assert [str(error) for _, error in seen.failures] == ["passing it on ended in CancelledError"]


@pytest.mark.parametrize("raises", [True, False])
async def test_a_lease_that_the_publisher_lost_is_not_one_of_ours(
    store: FaultyStore, seen: Seen, raises: bool
) -> None:
    async def send(batch: Sequence[Delivery]) -> Any:
        if raises:
            raise LeaseLost([17])
        return [LeaseLost([17]) for _ in batch]

    await publish(store, 2)
    await soon(forwarder(store, send, seen).run_until_idle())

    assert seen.outcomes == [(1, Retry(LATER)), (2, Retry(LATER))]
    assert {str(error) for _, error in seen.failures} == {"the publisher has lost a lease of its own"}


async def test_a_publisher_that_takes_too_long_is_cancelled_and_its_batch_retried(
    store: FaultyStore, seen: Seen
) -> None:
    await publish(store, 2)
    hanging = forwarder(store, Line(held=True), seen, handler_timeout=timedelta(milliseconds=50))

    await soon(hanging.run_until_idle())

    assert seen.outcomes == [(1, Retry(LATER)), (2, Retry(LATER))]


# ── batches, concurrency, order ───────────────────────────────────────────────────────────────────────────


async def test_batches_are_as_large_as_there_are_messages_up_to_the_limit(
    store: FaultyStore, seen: Seen
) -> None:
    line = Line()
    await publish(store, 250)

    await soon(forwarder(store, line, seen).run_until_idle())

    assert [len(batch) for batch in line.batches] == [100, 100, 50]
    assert line.arrived == list(range(1, 251))


async def test_one_batch_is_under_way_at_a_time_unless_more_may(store: FaultyStore, seen: Seen) -> None:
    for concurrency in (1, 3):
        line = Line(held=True)
        await publish(store, 8)
        running = forwarder(store, line, seen, concurrency=concurrency, max_batch=2)
        task = asyncio.create_task(running.run_until_idle())
        await line.until_running(concurrency)
        await a_few_steps()
        assert line.running == concurrency
        line.let_go()
        await soon(task)
        assert len(line.arrived) == 8


async def test_messages_of_one_key_are_passed_on_in_order_and_a_failing_one_holds_its_key(
    store: FaultyStore, clock: ManualClock, seen: Seen
) -> None:
    line = Line(1)
    await publish(store, 3, ordering_key="a")
    await publish(store, 2, ordering_key="b")

    await soon(forwarder(store, line, seen, concurrency=4).run_until_idle())
    assert line.arrived == [4, 5]
    line.poison.clear()
    clock.advance(LATER)
    await soon(forwarder(store, line, seen, concurrency=4).run_until_idle())

    assert line.arrived == [4, 5, 1, 2, 3]
    # One of a key in a batch, and never two at once.
    assert line.batches == [[1, 4], [5], [1], [2], [3]]


async def test_a_dead_letter_frees_its_key(store: FaultyStore, clock: ManualClock, seen: Seen) -> None:
    line = Line(1)
    await publish(store, 2, ordering_key="a")

    for _ in range(2):
        await soon(forwarder(store, line, seen).run_until_idle())
        clock.advance(LATER)

    assert line.batches == [[1], [1], [2]]
    assert line.arrived == [2]


async def test_two_forwarders_never_pass_on_the_same_message(
    data: MemoryData, clock: ManualClock, seen: Seen
) -> None:
    line = Line()
    stores = [FaultyStore(MemoryStore(data, clock=clock)) for _ in range(2)]
    await publish(stores[0], 300)
    forwarders = [forwarder(store, line, seen, max_batch=10, concurrency=2) for store in stores]

    await soon(asyncio.gather(*(each.run_until_idle() for each in forwarders)))

    assert sorted(line.arrived) == list(range(1, 301))


# ── running and stopping ──────────────────────────────────────────────────────────────────────────────────


async def test_a_forwarder_runs_until_it_is_stopped_and_may_run_again(store: FaultyStore, seen: Seen) -> None:
    line = Line()
    running = forwarder(store, line, seen)
    assert not running.is_running
    for number in (1, 2):
        task = asyncio.create_task(running.run())
        await publish(store)
        await seen.until_settled(number)
        assert running.is_running
        await soon(running.stop())
        await soon(task)
        assert not running.is_running

    await publish(store)
    await a_few_steps()
    assert line.arrived == [1, 2]


async def test_a_stop_right_after_the_run_was_scheduled_is_heard(store: FaultyStore, seen: Seen) -> None:
    line = Line()
    running = forwarder(store, line, seen)
    await publish(store)
    task = asyncio.create_task(running.run())
    await running.stop()
    await soon(task)

    assert line.arrived == []


async def test_a_stop_waits_for_the_batch_under_way_and_writes_its_results(
    store: FaultyStore, seen: Seen, told: Told
) -> None:
    line = Line(2, held=True)
    running = forwarder(store, line, seen, **told.hooks)
    await publish(store, 3)
    task = asyncio.create_task(running.run())
    await line.until_running(1)

    stopping = asyncio.create_task(running.stop())
    await a_few_steps()
    assert not stopping.done()
    line.let_go()
    await soon(stopping)
    await soon(task)

    assert seen.outcomes == [(1, Done()), (2, Retry(LATER)), (3, Done())]
    assert told.all == [("published", 1), ("failed", 2, "no way for 2"), ("published", 3)]


async def test_cancelling_the_run_cuts_no_write_short(store: FaultyStore, seen: Seen, told: Told) -> None:
    gate = store.upset("settle", Gate())
    await publish(store, 2)
    task = asyncio.create_task(forwarder(store, Line(), seen, **told.hooks).run())
    await soon(gate.reached.wait())

    task.cancel()
    await a_few_steps()
    assert not task.done()
    gate.open()
    with pytest.raises(asyncio.CancelledError):
        await soon(task)

    assert seen.outcomes == [(1, Done()), (2, Done())]
    assert told.all == [("published", 1), ("published", 2)]
    assert await store.stats() == {}


async def test_past_the_grace_period_a_batch_is_handed_back_and_no_hook_is_told(
    store: FaultyStore, seen: Seen, told: Told
) -> None:
    line = Line(held=True)
    running = forwarder(store, line, seen, graceful_timeout=timedelta(0), **told.hooks)
    await publish(store, 2)
    task = asyncio.create_task(running.run())
    await line.until_running(1)

    await soon(running.stop())
    await soon(task)

    assert seen.outcomes == [(1, Release()), (2, Release())]
    assert told.all == []
    assert [each.attempts for each in await take(store, 10)] == [0, 0]


async def test_a_store_that_is_down_delays_and_loses_nothing(
    store: FaultyStore, seen: Seen, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nightmail.engine.next_look.FIRST_BACKOFF", 0.001)
    store.upset("claim", lost_request, times=3)
    store.upset("settle", lost_request, times=3)
    line = Line()
    running = forwarder(store, line, seen, **told.hooks)
    await publish(store, 2)

    await soon(running.run_until_idle())

    assert line.batches == [[1, 2]]
    assert told.all == [("published", 1), ("published", 2)]
    assert not running.is_failing


# ── hooks ─────────────────────────────────────────────────────────────────────────────────────────────────


async def test_hooks_are_told_what_became_of_each_message(
    store: FaultyStore, clock: ManualClock, seen: Seen, told: Told
) -> None:
    line = Line(2)
    await publish(store, 3)

    for _ in range(2):
        await soon(forwarder(store, line, seen, **told.hooks).run_until_idle())
        clock.advance(LATER)

    assert told.all == [
        ("published", 1),
        ("failed", 2, "no way for 2"),
        ("published", 3),
        ("dead", 2, "retries_exhausted"),
    ]


async def test_hooks_are_told_nothing_before_it_is_written(
    store: FaultyStore, seen: Seen, told: Told
) -> None:
    gate = store.upset("settle", Gate())
    await publish(store, 2)
    task = asyncio.create_task(forwarder(store, Line(2), seen, **told.hooks).run_until_idle())
    await soon(gate.reached.wait())
    await a_few_steps()
    assert told.all == []

    gate.open()
    await soon(task)

    assert told.all == [("published", 1), ("failed", 2, "no way for 2")]


async def test_each_hook_sees_the_store_as_it_was_left(store: FaultyStore, seen: Seen) -> None:
    async def left() -> int:
        return len(await store.peek(QUEUE))

    looks: list[asyncio.Task[int]] = []
    await publish(store)
    await soon(
        forwarder(
            store, Line(), seen, on_published=lambda _: looks.append(asyncio.create_task(left()))
        ).run_until_idle()
    )

    assert await soon(looks[0]) == 0


@pytest.mark.parametrize("hook", ["on_published", "on_failed", "on_dead"])
async def test_a_hook_that_raises_is_logged_and_changes_nothing(
    store: FaultyStore,
    clock: ManualClock,
    seen: Seen,
    told: Told,
    caplog: pytest.LogCaptureFixture,
    hook: str,
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("secret")

    hooks = told.hooks | {hook: broken}
    line = Line(1)
    await publish(store, 2)
    with caplog.at_level(logging.ERROR, logger="nightmail"):
        for _ in range(2):
            await soon(forwarder(store, line, seen, **hooks).run_until_idle())
            clock.advance(LATER)

    assert seen.of(2) == [Done()]
    assert seen.of(1) == [Retry(LATER), Dead("retries_exhausted", "ConnectionError('no way for 1')")]
    about = 2 if hook == "on_published" else 1
    assert caplog.messages == [f"message {about} of mail: the forwarder's {hook} raised ZeroDivisionError"]
    # And the others were told.
    assert len(told.all) == 2


async def test_a_lost_lease_is_for_the_observer_and_for_no_hook(
    store: FaultyStore, data: MemoryData, clock: ManualClock, seen: Seen, told: Told
) -> None:
    async def send(batch: Sequence[Delivery]) -> list[Exception | None]:
        # It took longer than its lease, for the store: another forwarder has it by now.
        clock.advance(timedelta(minutes=2))
        await take(MemoryStore(data, clock=clock))
        return [None] * len(batch)

    await publish(store)
    await soon(forwarder(store, send, seen, **told.hooks).run_until_idle())

    assert seen.lost == [1]
    assert told.all == []


async def test_only_the_observer_is_told_of_an_uncertain_end(
    store: FaultyStore, seen: Seen, told: Told
) -> None:
    store.upset("settle", lost_reply)
    await publish(store)
    await soon(forwarder(store, Line(), seen, **told.hooks).run_until_idle())

    assert [each.outcome for each in seen.uncertainties] == [Done()]
    assert told.all == []


async def test_what_was_never_passed_on_was_not_published(
    store: FaultyStore, clock: ManualClock, seen: Seen, told: Told
) -> None:
    await publish_timer(store, "daily")
    await take(store)
    # A newer message takes the name, and the one that runs elsewhere comes back only to be dropped.
    await publish_timer(store, "daily", on_conflict="replace", due=LATER)
    [expired] = await publish(store, expires_in=timedelta(seconds=1))
    clock.advance(timedelta(minutes=2))

    await soon(forwarder(store, Line(), seen, **told.hooks).run_until_idle())

    assert seen.dropped == [1]
    assert seen.of(1) == [Done()]
    assert told.all == [("dead", expired, "expired")]


async def test_a_failure_that_the_policy_lets_pass_was_still_no_publication(
    store: FaultyStore, seen: Seen, told: Told
) -> None:
    def policy(delivery: Delivery, error: Exception | None) -> Outcome:
        return Done() if delivery.id == 1 else Postpone(LATER)

    await publish(store, 2)
    await soon(forwarder(store, Line(1, 2), seen, **told.hooks | {"retry": policy}).run_until_idle())

    assert seen.outcomes == [(1, Done()), (2, Postpone(LATER))]
    assert told.all == [("failed", 1, "no way for 1"), ("failed", 2, "no way for 2")]


async def test_a_publisher_in_the_same_database_may_acknowledge_by_itself(
    store: FaultyStore, data: MemoryData, seen: Seen, told: Told
) -> None:
    async def send(batch: Sequence[Delivery]) -> list[Exception | None]:
        async with data.transaction() as transaction:
            await store.ack(batch, transaction=transaction)
            current.acked_in_transaction(batch)
        return [None] * len(batch)

    await publish(store, 2)
    await soon(forwarder(store, send, seen, **told.hooks).run_until_idle())

    assert store.calls["settle"] == 0
    assert told.all == [("published", 1), ("published", 2)]


async def coroutine(*_: object) -> None:
    """A hook that would not be awaited."""


class Awaited:
    async def __call__(self, *_: object) -> None:
        """Nor this."""


@pytest.mark.parametrize("name", ["on_published", "on_failed", "on_dead"])
@pytest.mark.parametrize("hook", [coroutine, partial(coroutine), Awaited()])
def test_a_hook_that_would_not_be_awaited_is_refused(store: FaultyStore, name: str, hook: object) -> None:
    with pytest.raises(TypeError, match=f"{name} must be a plain function"):
        forwarder(store, Line(), None, **{name: hook})


async def test_the_observer_hears_all_it_would_hear_of_a_worker(
    store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nightmail.engine.next_look.FIRST_BACKOFF", 0.001)
    heard: list[str] = []

    class Everything(Observer):
        def __getattribute__(self, name: str) -> Any:
            if name.startswith("_"):
                return super().__getattribute__(name)
            return lambda *_: heard.append(name)

    store.upset("claim", lost_request)
    await publish(store, 2)
    await soon(forwarder(store, Line(2), Everything()).run_until_idle())

    assert heard == [
        "store_unavailable",
        "claimed",
        "store_recovered",
        "started",
        "started",
        "failed",
        "ended",
        "settled",
        "drained",
    ]


# ── options ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("options", "error", "complaint"),
    [
        ({"concurrency": 0}, ValueError, "concurrency must be at least 1, not 0"),
        ({"max_batch": 0}, ValueError, "max_batch must be at least 1, not 0"),
        ({"queues": []}, ValueError, "at least one queue"),
        ({"queues": "mail"}, TypeError, "queues must be a list of names"),
        ({"lease": timedelta(0)}, ValueError, "lease must be longer than"),
        ({"max_deliveries": 0}, ValueError, "max_deliveries must be at least 1, not 0"),
        ({"leese": timedelta(1)}, TypeError, "unexpected keyword argument 'leese'"),
    ],
)
def test_a_wrong_option_is_refused(
    store: FaultyStore, options: dict[str, Any], error: type[Exception], complaint: str
) -> None:
    with pytest.raises(error, match=complaint):
        forwarder(store, Line(), None, **options)


async def test_what_kills_its_process_is_buried_as_in_any_worker(
    store: FaultyStore, clock: ManualClock, seen: Seen, told: Told
) -> None:
    await publish(store)
    for _ in range(2):
        await take(store, lease=timedelta(seconds=1))
        clock.advance(timedelta(seconds=2))

    line = Line()
    await soon(forwarder(store, line, seen, max_deliveries=2, **told.hooks).run_until_idle())

    assert line.batches == []
    assert told.all == [("dead", 1, "max_deliveries")]
