"""Each handler has context variables of its own, although one task runs many handlers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextvars import Context, ContextVar, copy_context

import pytest

from nightmail.engine.attempt import Batched
from nightmail.engine.context import InContext
from nightmail.engine.settings import WorkerSettings
from nightmail.engine.worker import Worker
from nightmail.message import Delivery
from tests.unit.faulty import FaultyStore
from tests.unit.support import PATIENCE, QUEUE, Seen, a_few_steps, publish, soon

ONE = WorkerSettings(max_workers=1)
request: ContextVar[str] = ContextVar("request", default="none")


# ── handlers ──────────────────────────────────────────────────────────────────────────────────────────────


async def test_what_a_handler_sets_the_next_one_does_not_see(store: FaultyStore, seen: Seen) -> None:
    found: list[str] = []

    async def handler(delivery: Delivery) -> None:
        found.append(request.get())
        request.set(delivery.body.decode())
        await asyncio.sleep(0)
        found.append(request.get())

    await publish(store, 3)
    await soon(Worker(store, handler, queues=[QUEUE], settings=ONE, observer=seen).run_until_idle())

    assert found == ["none", "0", "none", "1", "none", "2"]


async def test_what_a_batch_handler_sets_the_next_batch_does_not_see(store: FaultyStore, seen: Seen) -> None:
    found: list[str] = []

    async def handler(batch: Sequence[Delivery]) -> None:
        found.append(request.get())
        request.set(batch[0].body.decode())
        await asyncio.sleep(0)
        found.append(request.get())

    await publish(store, 6)
    batched = Batched(handler, limit=2)
    await soon(Worker(store, batched, queues=[QUEUE], settings=ONE, observer=seen).run_until_idle())

    assert found == ["none", "0", "none", "2", "none", "4"]


async def test_what_a_handler_that_failed_has_set_the_next_one_does_not_see(
    store: FaultyStore, seen: Seen
) -> None:
    found: list[str] = []

    async def handler(delivery: Delivery) -> None:
        found.append(request.get())
        request.set(delivery.body.decode())
        raise ValueError

    await publish(store, 3)
    await soon(Worker(store, handler, queues=[QUEUE], settings=ONE, observer=seen).run_until_idle())

    assert found == ["none", "none", "none"]


async def test_handlers_see_what_was_set_where_their_worker_was_started(
    store: FaultyStore, seen: Seen
) -> None:
    found: list[str] = []

    async def handler(delivery: Delivery) -> None:
        found.append(request.get())

    await publish(store, 2)
    worker = Worker(store, handler, queues=[QUEUE], settings=ONE, observer=seen)
    context = copy_context()
    context.run(request.set, "the application")
    await soon(asyncio.create_task(worker.run_until_idle(), context=context))

    assert found == ["the application", "the application"]


# ── a coroutine in another context ────────────────────────────────────────────────────────────────────────


@pytest.fixture
def context() -> Context:
    """A context with a request in it."""
    made = copy_context()
    made.run(request.set, "one")
    return made


async def test_the_result_is_that_of_the_coroutine(context: Context) -> None:
    async def work() -> int:
        await asyncio.sleep(0)
        return 7

    assert await InContext(context, work()) == 7


async def test_the_coroutine_sees_its_own_context_before_and_after_it_waited(context: Context) -> None:
    async def work() -> list[str]:
        found = [request.get()]
        await asyncio.sleep(0)
        return [*found, request.get()]

    assert await InContext(context, work()) == ["one", "one"]
    assert request.get() == "none"


async def test_what_the_coroutine_sets_stays_in_its_context(context: Context) -> None:
    async def work() -> None:
        request.set("two")
        await asyncio.sleep(0)

    await InContext(context, work())

    assert context[request] == "two"
    assert request.get() == "none"


async def test_a_caller_that_runs_while_the_coroutine_waits_sees_nothing_of_it(context: Context) -> None:
    go, found = asyncio.Event(), []

    async def work() -> None:
        await go.wait()

    async def around() -> None:
        await InContext(context, work())
        found.append(request.get())

    task = asyncio.create_task(around())
    await a_few_steps()
    found.append(request.get())
    go.set()
    await soon(task)

    assert found == ["none", "none"]


async def test_a_task_that_the_coroutine_starts_has_its_context(context: Context) -> None:
    async def child() -> str:
        return request.get()

    async def work() -> str:
        return await asyncio.create_task(child())

    assert await InContext(context, work()) == "one"


async def test_the_coroutine_runs_in_the_task_that_awaits_it(context: Context) -> None:
    async def work() -> asyncio.Task[None] | None:
        await asyncio.sleep(0)
        return asyncio.current_task()

    assert await InContext(context, work()) is asyncio.current_task()


async def test_what_a_future_brings_arrives(context: Context) -> None:
    future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(future.set_result, "answer")

    assert await soon(InContext(context, future)) == "answer"


async def test_what_the_coroutine_raises_is_raised(context: Context) -> None:
    async def work() -> None:
        await asyncio.sleep(0)
        raise KeyError("lost")

    with pytest.raises(KeyError, match="lost"):
        await InContext(context, work())


async def test_what_the_coroutine_raises_before_it_waits_is_raised(context: Context) -> None:
    async def work() -> None:
        raise KeyError("lost")

    with pytest.raises(KeyError, match="lost"):
        await InContext(context, work())


async def test_an_error_of_what_it_waits_for_reaches_the_coroutine_in_its_context(context: Context) -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def work() -> str:
        try:
            await future
        except KeyError:
            return request.get()
        return "nothing was raised"

    asyncio.get_running_loop().call_soon(future.set_exception, KeyError())

    assert await soon(InContext(context, work())) == "one"


async def test_a_cancellation_reaches_the_coroutine_in_its_context(context: Context) -> None:
    waiting, found = asyncio.Event(), []

    async def work() -> None:
        try:
            waiting.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            found.append(request.get())

    async def around() -> None:
        await InContext(context, work())

    task = asyncio.create_task(around())
    await soon(waiting.wait())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await soon(task)

    assert found == ["one"]


async def test_a_coroutine_may_go_on_after_a_cancellation(context: Context) -> None:
    waiting = asyncio.Event()

    async def work() -> str:
        try:
            waiting.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
        return request.get()

    async def around() -> str:
        return await InContext(context, work())

    task = asyncio.create_task(around())
    await soon(waiting.wait())
    task.cancel()

    assert await soon(task) == "one"


async def test_a_timeout_of_the_coroutines_own_is_its_own(context: Context) -> None:
    async def work() -> str:
        try:
            async with asyncio.timeout(0):
                await asyncio.sleep(PATIENCE)
        except TimeoutError:
            return request.get()
        return "it slept"

    assert await InContext(context, work()) == "one"


def test_a_coroutine_that_is_left_half_way_is_closed_in_its_context(context: Context) -> None:
    found: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(0)
        finally:
            found.append(request.get())

    steps = InContext(context, work()).__await__()
    next(steps)
    steps.close()

    assert found == ["one"]


def test_a_coroutine_that_will_not_be_closed_says_so(context: Context) -> None:
    async def work() -> None:
        try:
            await asyncio.sleep(0)
        except GeneratorExit:
            await asyncio.sleep(0)

    steps = InContext(context, work()).__await__()
    next(steps)

    with pytest.raises(RuntimeError, match="ignored GeneratorExit"):
        steps.close()
