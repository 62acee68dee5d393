"""Handlers that are cancelled, or lose a lease: what that counts as, whatever they make of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest

from nightmail.engine.attempt import Batched
from nightmail.engine.settings import WorkerSettings
from nightmail.engine.worker import Worker
from nightmail.errors import LeaseLost
from nightmail.message import Delivery
from nightmail.outcome import Dead, Done, Release, Retry
from nightmail.retry import ConstantRetry, NoRetry
from nightmail.stores.memory import MemoryData, MemoryStore
from nightmail.testing.clock import ManualClock
from tests.unit.faulty import FaultyStore
from tests.unit.support import QUEUE, Handler, Seen, at_work, publish, soon, take

LATER = timedelta(minutes=10)
POLICY = ConstantRetry(delay=LATER, jitter=0.0)
SHORT = WorkerSettings(max_workers=1, retry=POLICY, handler_timeout=timedelta(milliseconds=30))
ONE = WorkerSettings(max_workers=1, retry=POLICY)


async def as_a_driver() -> None:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        raise ConnectionError("the connection was interrupted") from None


async def as_a_task_group() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(as_a_driver())
        await asyncio.Event().wait()


@pytest.mark.parametrize("wait", [as_a_driver, as_a_task_group])
async def test_a_time_out_is_a_time_out_whatever_error_the_cancellation_became(
    store: FaultyStore, seen: Seen, wait: Callable[[], Awaitable[None]]
) -> None:
    async def handle(delivery: Delivery) -> None:
        await wait()

    [published] = await publish(store)
    await soon(Worker(store, handle, queues=[QUEUE], settings=SHORT, observer=seen).run_until_idle())

    assert seen.of(published) == [Retry(LATER)]
    [(_, error)] = seen.failures
    assert isinstance(error, TimeoutError)
    assert isinstance(error.__cause__, ConnectionError | ExceptionGroup)


async def test_so_is_that_of_a_batch(store: FaultyStore, seen: Seen) -> None:
    async def handle(batch: Sequence[Delivery]) -> None:
        await as_a_driver()

    await publish(store, 2)
    worker = Worker(store, Batched(handle), queues=[QUEUE], settings=SHORT, observer=seen)
    await soon(worker.run_until_idle())

    assert [type(error) for _, error in seen.failures] == [TimeoutError, TimeoutError]


async def test_the_next_message_does_not_suffer_from_a_handler_that_cancels_its_own_task(
    store: FaultyStore, seen: Seen
) -> None:
    async def handle(delivery: Delivery) -> None:
        if delivery.body == b"0":
            asyncio.current_task().cancel()  # type: ignore[union-attr]
        else:
            await asyncio.sleep(0)

    first, second = await publish(store, 2)
    await soon(Worker(store, handle, queues=[QUEUE], settings=ONE, observer=seen).run_until_idle())

    assert seen.of(first) == [Done()]
    assert seen.of(second) == [Done()]
    assert seen.failures == []


async def test_a_lost_lease_of_another_message_is_an_error_like_any_other(
    store: FaultyStore, seen: Seen
) -> None:
    async def handle(delivery: Delivery) -> None:
        raise LeaseLost([delivery.id + 1000])

    [published] = await publish(store)
    await soon(Worker(store, handle, queues=[QUEUE], settings=ONE, observer=seen).run_until_idle())

    assert seen.lost == []
    assert seen.of(published) == [Retry(LATER)]


@pytest.mark.parametrize("described", [5, b"no text"])
async def test_a_description_that_is_no_text_ends_neither_the_runner_nor_the_neighbours(
    store: FaultyStore, seen: Seen, described: Any
) -> None:
    async def handle(batch: Sequence[Delivery]) -> Sequence[Exception | None]:
        return [ValueError("no"), None]

    settings = WorkerSettings(max_workers=1, retry=NoRetry(), describe_error=lambda error: described)
    first, second = await publish(store, 2)
    worker = Worker(store, Batched(handle), queues=[QUEUE], settings=settings, observer=seen)
    await soon(worker.run_until_idle())

    assert seen.of(second) == [Done()]
    [dead] = seen.of(first)
    assert isinstance(dead, Dead)
    assert dead.error == f"ValueError (describing it gave {type(described).__name__}, not text)"


async def test_a_stop_right_after_the_run_was_scheduled_is_heard(store: FaultyStore, seen: Seen) -> None:
    await publish(store)
    worker = Worker(store, Handler(), queues=[QUEUE], observer=seen)
    running = asyncio.create_task(worker.run())
    await worker.stop()
    await soon(running)

    assert seen.runs == []
    await soon(worker.run_until_idle())
    assert len(seen.runs) == 1


def test_what_is_in_hand_goes_back_when_the_program_ends_with_an_error(clock: ManualClock) -> None:
    data = MemoryData()
    seen = Seen()
    errors: list[str] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(
            lambda loop, context: errors.append(context["message"])
        )
        store = FaultyStore(MemoryStore(data, clock=clock))
        await publish(store, 10)
        handler = Handler(held=True)
        worker = Worker(store, handler, queues=[QUEUE], settings=WorkerSettings(max_workers=3), observer=seen)
        running = asyncio.create_task(worker.run())
        await handler.until_running(3)
        running.add_done_callback(lambda task: None)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(main())

    async def afterwards() -> None:
        found = await take(MemoryStore(data, clock=clock), 100)
        assert {(each.attempts, each.deliveries) for each in found} == {(0, 1)}
        assert len(found) == 10

    asyncio.run(afterwards())
    assert seen.failures == []
    assert {outcome for _, outcome in seen.outcomes} == {Release()}
    assert errors == []


async def test_a_cancelled_stop_ends_the_grace_period_and_still_writes_what_has_ended(
    store: FaultyStore, seen: Seen
) -> None:
    handler = Handler(held=True)
    published = await publish(store, 2)
    worker = Worker(store, handler, queues=[QUEUE], observer=seen)
    async with at_work(worker):
        await handler.until_running(2)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(worker.stop(), 0.05)
        assert not worker.is_running

    assert sorted(seen.outcomes, key=lambda each: each[0]) == [(id_, Release()) for id_ in published]
    assert seen.left == [0]
