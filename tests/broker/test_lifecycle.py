"""Starting, stopping, starting again, and being asked how it is."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from nightmail import OutboxBroker, StoreUnavailable
from nightmail.errors import SchemaMissing
from nightmail.outcome import Done, Release
from nightmail.stores import open_store
from tests.broker.support import Heard, Make, soon, started


async def test_stop_then_start_works_again(make: Make, heard: Heard) -> None:
    broker = make()

    @broker.subscriber("q")
    async def take(body: str) -> None: ...

    async with started(broker):
        first = await broker.publish("a", "q")
        await heard.until(lambda: heard.of(first) == [Done()])
    async with broker:
        second = await broker.publish("b", "q")
    async with started(broker):
        await heard.until(lambda: heard.of(second) == [Done()])


async def test_starting_twice_starts_one_worker(make: Make, heard: Heard) -> None:
    broker, runs = make(), []

    @broker.subscriber("q")
    async def take(body: str) -> None:
        runs.append(body)

    async with started(broker):
        await broker.start()
        sent = await broker.publish("a", "q")
        await heard.until(lambda: heard.of(sent) == [Done()])

    assert runs == ["a"]


async def test_stop_finishes_what_runs_and_hands_back_what_has_not_started(make: Make, heard: Heard) -> None:
    broker, running, finish = make(max_workers=1), asyncio.Event(), asyncio.Event()

    @broker.subscriber("q")
    async def take(body: str) -> None:
        running.set()
        await finish.wait()

    await broker.start()
    first, second = await broker.publish_batch("a", "b", queue="q")
    await soon(running)
    stopping = asyncio.create_task(broker.stop())
    await asyncio.sleep(0)
    finish.set()
    await stopping

    assert heard.of(first) == [Done()]
    assert heard.of(second) in ([], [Release()])
    async with broker:
        (left,) = await broker.pending("q")
        assert (left.id, left.attempts) == (second, 0)


async def test_a_handler_that_outlives_the_grace_is_cancelled_and_costs_no_attempt(
    make: Make, heard: Heard
) -> None:
    broker, running, cancelled = make(graceful_timeout=0.05), asyncio.Event(), []

    @broker.subscriber("q")
    async def hang(body: str) -> None:
        running.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(body)
            raise

    await broker.start()
    sent = await broker.publish("a", "q")
    await soon(running)
    await broker.stop()

    assert cancelled == ["a"]
    assert heard.of(sent) == [Release()]
    async with broker:
        (left,) = await broker.pending("q")
        assert (left.id, left.attempts) == (sent, 0)


async def test_ping_is_true_while_all_is_well(make: Make) -> None:
    broker = make()

    @broker.subscriber("q")
    async def take(body: str) -> None: ...

    async with started(broker):
        assert await broker.ping(timeout=10.0)


async def test_ping_is_false_when_a_worker_has_died_or_the_store_does_not_answer() -> None:
    broker = OutboxBroker("memory://", logger=None)

    @broker.subscriber("q")
    async def take(body: str) -> None: ...

    async def no_answer() -> None:
        raise StoreUnavailable

    async def never() -> None:
        await asyncio.Event().wait()

    async with started(broker):
        store = broker.store
        answering, store.ping = store.ping, no_answer  # type: ignore[method-assign]
        assert not await broker.ping(timeout=10.0)
        store.ping = never  # type: ignore[method-assign]
        assert not await broker.ping(timeout=0.01)
        store.ping = answering  # type: ignore[method-assign]
        (subscriber,) = broker.subscribers
        await subscriber._worker.stop()  # type: ignore[attr-defined]
        assert not await broker.ping(timeout=10.0)


@pytest.mark.parametrize("url", ["sqlite", "postgres"], indirect=True)
async def test_missing_tables_name_the_command_that_makes_them(url: str) -> None:
    broker = OutboxBroker(url, create_tables=False)

    with pytest.raises(SchemaMissing, match="nightmail migrate"):
        await broker.start()


async def test_the_embedded_default_makes_its_tables_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    async with OutboxBroker() as broker:
        await broker.publish("x", "q", activate_in=timedelta(hours=1))

    assert (tmp_path / "nightmail.db").exists()


async def test_a_store_that_was_passed_in_stays_open(url: str) -> None:
    store = open_store(url)
    await store.open()
    await store.migrate()

    async with OutboxBroker(store, logger=None) as broker:
        await broker.publish("x", "q", activate_in=timedelta(hours=1))

    assert [pending.queue for pending in await store.peek()] == ["q"]
    await store.close()
