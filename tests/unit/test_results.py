"""How a handler run ends, and what becomes of the message. Nothing unknown ever ends in `Done`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any, cast

import pytest

from nightmail.engine.settings import WorkerSettings
from nightmail.engine.worker import Worker
from nightmail.errors import LeaseLost
from nightmail.message import Delivery
from nightmail.outcome import Dead, Done, Outcome, Postpone, Release, Retry
from nightmail.records import DeadFilter
from nightmail.retry import ConstantRetry, NoRetry
from nightmail.testing.clock import ManualClock
from tests.unit.faulty import FaultyStore
from tests.unit.moving_time import LoopClock, loop_clock
from tests.unit.support import QUEUE, Handler, Seen, at_work, publish, publish_timer, soon, take

__all__ = ["loop_clock"]

LATER = timedelta(minutes=10)
ONCE_MORE_LATER = WorkerSettings(retry=ConstantRetry(delay=LATER, jitter=0.0))


async def run_once(
    store: FaultyStore,
    seen: Seen,
    handler: Callable[[Delivery], Awaitable[Outcome | None]],
    settings: WorkerSettings = ONCE_MORE_LATER,
) -> None:
    """Run what is due until nothing is."""
    await soon(Worker(store, handler, queues=[QUEUE], settings=settings, observer=seen).run_until_idle())


@pytest.mark.parametrize("outcome", [Done(), Retry(LATER), Postpone(LATER), Dead("unwanted")])
async def test_what_a_handler_returns_is_how_its_delivery_ends(
    store: FaultyStore, seen: Seen, outcome: Outcome
) -> None:
    async def handle(delivery: Delivery) -> Outcome:
        return outcome

    [published] = await publish(store)
    await run_once(store, seen, handle)

    assert seen.outcomes == [(published, outcome)]
    assert seen.failures == []


async def test_a_handler_that_returns_nothing_is_done(store: FaultyStore, seen: Seen) -> None:
    [published] = await publish(store)
    await run_once(store, seen, Handler())

    assert seen.outcomes == [(published, Done())]


async def test_an_error_is_a_failed_attempt_for_the_policy(
    store: FaultyStore, clock: ManualClock, seen: Seen
) -> None:
    asked: list[tuple[int, str]] = []

    def policy(delivery: Delivery, error: Exception | None) -> Outcome:
        asked.append((delivery.attempt, str(error)))
        return Retry(LATER)

    async def handle(delivery: Delivery) -> None:
        raise ConnectionError(f"attempt {delivery.attempt}")

    [published] = await publish(store)
    for _ in range(3):
        await run_once(store, seen, handle, WorkerSettings(retry=policy))
        clock.advance(LATER)

    assert asked == [(1, "attempt 1"), (2, "attempt 2"), (3, "attempt 3")]
    assert seen.of(published) == [Retry(LATER)] * 3
    assert [str(error) for _, error in seen.failures] == ["attempt 1", "attempt 2", "attempt 3"]


async def test_a_message_that_keeps_failing_becomes_a_dead_letter_with_its_last_error(
    store: FaultyStore, clock: ManualClock, seen: Seen
) -> None:
    async def handle(delivery: Delivery) -> None:
        raise ConnectionError(f"attempt {delivery.attempt}")

    settings = WorkerSettings(retry=ConstantRetry(delay=LATER, jitter=0.0, max_attempts=3))
    [published] = await publish(store)
    shown = []
    for _ in range(3):
        await run_once(store, seen, handle, settings)
        shown += [message.last_error for message in await store.find([published])]
        clock.advance(LATER)

    assert shown == ["ConnectionError('attempt 1')", "ConnectionError('attempt 2')"]
    [letter] = await store.dead(DeadFilter())
    assert (letter.message_id, letter.reason) == (published, "retries_exhausted")
    assert letter.error == "ConnectionError('attempt 3')"
    assert letter.attempts == 3
    assert await store.peek() == []


async def test_a_last_error_says_what_describe_error_makes_of_it(store: FaultyStore, seen: Seen) -> None:
    async def handle(delivery: Delivery) -> None:
        raise ConnectionError("of a customer")

    described, silent = await publish(store, 2)
    texts: list[str | None] = ["a ConnectionError\nof no customer", None]
    await run_once(store, seen, handle, WorkerSettings(describe_error=lambda _: texts.pop(0)))

    found = await store.find([described, silent])
    assert [message.last_error for message in found] == ["a ConnectionError\\nof no customer", None]
    assert [message.attempts for message in found] == [1, 1]


@pytest.mark.parametrize("nonsense", ["ok", True, 0, Retry, object()])
async def test_a_handler_that_returns_nonsense_has_failed(
    store: FaultyStore, seen: Seen, nonsense: object
) -> None:
    async def handle(delivery: Delivery) -> Any:
        return nonsense

    [published] = await publish(store)
    await run_once(store, seen, handle)

    assert seen.of(published) == [Retry(LATER)]
    [(_, error)] = seen.failures
    assert isinstance(error, TypeError)
    assert str(error) == f"expected an outcome, got {type(nonsense).__name__}"


async def test_a_handler_that_cannot_be_awaited_has_failed(store: FaultyStore, seen: Seen) -> None:
    def handle(delivery: Delivery) -> Any:
        return None

    [published] = await publish(store)
    await run_once(store, seen, handle)

    assert seen.of(published) == [Retry(LATER)]


async def test_a_policy_that_raises_sends_the_message_to_the_dead_letters(
    store: FaultyStore, seen: Seen
) -> None:
    def policy(delivery: Delivery, error: Exception | None) -> Outcome:
        raise LookupError("no rule for this")

    async def handle(delivery: Delivery) -> None:
        raise ConnectionError("down")

    [published] = await publish(store)
    await run_once(store, seen, handle, WorkerSettings(retry=policy))

    assert seen.of(published) == [Dead("policy_error", "LookupError('no rule for this')")]
    [(id_, error)] = seen.broken_policies
    assert (id_, str(error)) == (published, "no rule for this")


@pytest.mark.parametrize("nonsense", [None, "later", timedelta(seconds=5)])
async def test_a_policy_that_returns_nonsense_never_ends_in_done(
    store: FaultyStore, seen: Seen, nonsense: object
) -> None:
    def policy(delivery: Delivery, error: Exception | None) -> Outcome:
        return cast("Outcome", nonsense)

    async def handle(delivery: Delivery) -> None:
        raise ConnectionError("down")

    [published] = await publish(store)
    await run_once(store, seen, handle, WorkerSettings(retry=policy))

    [outcome] = seen.of(published)
    assert isinstance(outcome, Dead)
    assert outcome.reason == "policy_error"
    [letter] = await store.dead(DeadFilter())
    assert letter.message_id == published


async def test_a_dead_letter_keeps_the_error_its_policy_gave(store: FaultyStore, seen: Seen) -> None:
    def policy(delivery: Delivery, error: Exception | None) -> Outcome:
        return Dead("hopeless", "said the policy")

    async def handle(delivery: Delivery) -> None:
        raise ConnectionError("down")

    [published] = await publish(store)
    await run_once(store, seen, handle, WorkerSettings(retry=policy))

    assert seen.of(published) == [Dead("hopeless", "said the policy")]


async def test_errors_are_described_as_the_settings_say(store: FaultyStore, seen: Seen) -> None:
    async def handle(delivery: Delivery) -> None:
        raise ConnectionError("password=hunter2")

    [published] = await publish(store)
    settings = WorkerSettings(retry=NoRetry(), describe_error=lambda error: type(error).__name__)
    await run_once(store, seen, handle, settings)

    assert seen.of(published) == [Dead("retries_exhausted", "ConnectionError")]


async def test_an_error_that_cannot_be_described_is_buried_by_its_name(
    store: FaultyStore, seen: Seen
) -> None:
    class Shy(Exception):
        def __repr__(self) -> str:
            raise RuntimeError("do not look at me")

    async def handle(delivery: Delivery) -> None:
        raise Shy

    [published] = await publish(store)
    await run_once(store, seen, handle, WorkerSettings(retry=NoRetry()))

    assert seen.of(published) == [Dead("retries_exhausted", "Shy (describing it raised RuntimeError)")]


async def test_a_handler_that_runs_too_long_is_cancelled_and_retried(store: FaultyStore, seen: Seen) -> None:
    handler = Handler(held=True)
    settings = WorkerSettings(
        handler_timeout=timedelta(milliseconds=50), retry=ConstantRetry(delay=LATER, jitter=0.0)
    )

    published = await publish(store, 3)
    await run_once(store, seen, handler, settings)

    assert handler.cancelled == 3
    assert sorted(seen.outcomes) == [(id_, Retry(LATER)) for id_ in published]
    assert {type(error) for _, error in seen.failures} == {TimeoutError}
    assert {str(error) for _, error in seen.failures} == {"the handler ran longer than 0.05 seconds"}


async def test_each_handler_has_its_whole_time(store: FaultyStore, seen: Seen, loop_clock: LoopClock) -> None:
    loop = asyncio.get_running_loop()
    ran: list[float] = []

    async def handle(delivery: Delivery) -> None:
        began = loop.time()
        try:
            await asyncio.Event().wait()
        finally:
            ran.append(loop.time() - began)

    settings = WorkerSettings(
        handler_timeout=timedelta(seconds=8), retry=ConstantRetry(delay=LATER, jitter=0.0)
    )
    async with at_work(Worker(store, handle, queues=[QUEUE], settings=settings, observer=seen)):
        await publish(store)
        await asyncio.sleep(4)
        await publish(store)
        await seen.until_settled(2)

    assert ran == pytest.approx([8, 8], abs=0.1)


async def test_a_handler_that_ends_well_although_its_time_was_up_is_believed(
    store: FaultyStore, seen: Seen
) -> None:
    async def handle(delivery: Delivery) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return

    [published] = await publish(store)
    await run_once(store, seen, handle, WorkerSettings(handler_timeout=timedelta(milliseconds=50)))

    assert seen.of(published) == [Done()]
    assert seen.failures == []


async def test_a_handler_that_ignores_its_end_does_not_keep_others_from_theirs(
    store: FaultyStore, seen: Seen
) -> None:
    hold = asyncio.Event()

    async def handle(delivery: Delivery) -> None:
        if delivery.body != b"0":
            await asyncio.Event().wait()
        while not hold.is_set():
            with suppress(asyncio.CancelledError):
                await hold.wait()

    settings = WorkerSettings(
        handler_timeout=timedelta(milliseconds=50), retry=ConstantRetry(delay=LATER, jitter=0.0)
    )
    [stubborn, second] = await publish(store, 2)
    worker = Worker(store, handle, queues=[QUEUE], settings=settings, observer=seen)
    async with at_work(worker):
        await seen.until_settled(1)
        [third] = await publish(store, body=b"1")
        await seen.until_settled(2)
        assert seen.outcomes == [(second, Retry(LATER)), (third, Retry(LATER))]
        hold.set()
        await seen.until_settled(3)

    assert seen.of(stubborn) == [Done()]


async def test_a_timeout_of_the_handlers_own_is_an_error_like_any_other(
    store: FaultyStore, seen: Seen
) -> None:
    async def handle(delivery: Delivery) -> None:
        raise TimeoutError("the bank did not answer")

    [published] = await publish(store)
    await run_once(store, seen, handle)

    assert seen.of(published) == [Retry(LATER)]
    assert str(seen.failures[0][1]) == "the bank did not answer"


async def wait_for_a_cancelled_task(delivery: Delivery) -> None:
    task = asyncio.ensure_future(asyncio.Event().wait())
    task.cancel()
    await task


async def raise_cancelled(delivery: Delivery) -> None:
    raise asyncio.CancelledError


async def cancel_itself(delivery: Delivery) -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


@pytest.mark.parametrize("handle", [wait_for_a_cancelled_task, raise_cancelled, cancel_itself])
async def test_a_handler_cancelled_by_its_own_doing_has_failed(
    store: FaultyStore, seen: Seen, handle: Callable[[Delivery], Awaitable[None]]
) -> None:
    [published] = await publish(store)
    await run_once(store, seen, handle)

    assert seen.of(published) == [Retry(LATER)]
    assert str(seen.failures[0][1]) == "the handler raised CancelledError by itself"


async def test_a_lost_lease_leaving_a_handler_settles_nothing_and_costs_no_attempt(
    store: FaultyStore, clock: ManualClock, seen: Seen
) -> None:
    async def handle(delivery: Delivery) -> None:
        raise LeaseLost([delivery.id])

    [published] = await publish(store)
    await run_once(store, seen, handle)

    assert store.calls["settle"] == 0
    assert seen.lost == [published]
    assert seen.failures == []
    clock.advance(timedelta(seconds=61))
    [found] = await take(store)
    assert (found.attempts, found.deliveries) == (0, 2)


async def test_an_error_that_is_no_exception_settles_nothing_and_the_message_comes_back(
    store: FaultyStore, clock: ManualClock, seen: Seen
) -> None:
    class Weird(BaseException):
        pass

    async def handle(delivery: Delivery) -> None:
        if delivery.body == b"0":
            raise Weird

    problems: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: problems.append(context))
    [weird, plain] = await publish(store, 2)
    await run_once(store, seen, handle)

    assert seen.outcomes == [(plain, Done())]
    clock.advance(timedelta(seconds=61))
    [found] = await take(store)
    assert (found.id, found.deliveries) == (weird, 2)


async def test_a_superseded_message_is_dropped_unrun_and_told_of(
    store: FaultyStore, clock: ManualClock, seen: Seen
) -> None:
    old = await publish_timer(store, "daily", body=b"old")
    assert len(await take(store)) == 1
    new = await publish_timer(store, "daily", body=b"new", on_conflict="replace")
    clock.advance(timedelta(seconds=61))
    handler = Handler()

    await run_once(store, seen, handler)

    assert [delivery.body for delivery in handler.deliveries] == [b"new"]
    assert seen.dropped == [old]
    assert sorted(seen.outcomes) == [(old, Done()), (new, Done())]
    assert seen.lost == []


async def test_an_expired_message_is_buried_unrun(store: FaultyStore, clock: ManualClock, seen: Seen) -> None:
    [expired] = await publish(store, expires_in=timedelta(minutes=5))
    clock.advance(timedelta(minutes=5))
    handler = Handler()

    await run_once(store, seen, handler)

    assert handler.deliveries == []
    assert seen.of(expired) == [Dead("expired", ran=False)]


async def test_a_message_is_delivered_until_just_before_it_expires(
    store: FaultyStore, clock: ManualClock, seen: Seen
) -> None:
    [published] = await publish(store, expires_in=timedelta(minutes=5))
    clock.advance(timedelta(minutes=5) - timedelta(microseconds=1))

    await run_once(store, seen, Handler())

    assert seen.of(published) == [Done()]


async def test_waiting_for_ever_ends_where_it_was_asked_to(
    store: FaultyStore, clock: ManualClock, seen: Seen
) -> None:
    async def not_yet(delivery: Delivery) -> Outcome:
        return Postpone(LATER)

    settings = WorkerSettings(give_up_after=timedelta(minutes=25))
    [published] = await publish(store)
    for _ in range(4):
        await run_once(store, seen, not_yet, settings)
        clock.advance(LATER)

    # At 0, 10 and 20 minutes; at 30 it is too late.
    assert seen.of(published) == [Postpone(LATER)] * 3 + [Dead("expired", ran=False)]


async def test_waiting_costs_nothing_where_no_end_was_asked_for(
    store: FaultyStore, clock: ManualClock, seen: Seen
) -> None:
    async def not_yet(delivery: Delivery) -> Outcome:
        assert (delivery.attempts, delivery.deliveries) == (0, 1)
        return Postpone(LATER)

    [published] = await publish(store)
    for _ in range(25):
        await run_once(store, seen, not_yet)
        clock.advance(LATER)

    assert seen.of(published) == [Postpone(LATER)] * 25


async def test_attempts_count_failures_and_deliveries_count_lost_workers(
    store: FaultyStore, clock: ManualClock, seen: Seen
) -> None:
    counters: list[tuple[int, int]] = []

    async def handle(delivery: Delivery) -> Outcome | None:
        counters.append((delivery.attempts, delivery.deliveries))
        return None if len(counters) == 4 else Retry()

    await publish(store)
    # Two workers are lost with it: it was claimed, and it was never written how it ended.
    for _ in range(2):
        await take(store)
        clock.advance(timedelta(seconds=61))
    await run_once(store, seen, handle)

    # Each failed run explains its claim, and the count of unexplained ones starts afresh.
    assert counters == [(0, 3), (1, 1), (2, 1), (3, 1)]


async def test_a_hand_back_asked_for_by_the_handler_changes_no_counter(
    store: FaultyStore, seen: Seen
) -> None:
    counters: list[tuple[int, int]] = []

    async def handle(delivery: Delivery) -> Outcome | None:
        counters.append((delivery.attempts, delivery.deliveries))
        return None if len(counters) == 3 else Release()

    await publish(store)
    await run_once(store, seen, handle)

    assert counters == [(0, 1), (0, 1), (0, 1)]
