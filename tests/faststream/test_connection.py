"""Connecting: FastStream's scenarios of this name, on real stores."""

from __future__ import annotations

import pytest

from nightmail.broker.subscriber import OutboxSubscriber
from tests.broker.support import Make, started
from tests.faststream.support import Calls, on_every_store


@on_every_store
async def test_stopping_before_starting_does_nothing(make: Make) -> None:
    broker = make()

    await broker.stop()

    assert not broker.running


@on_every_store
async def test_a_connected_broker_answers(make: Make) -> None:
    broker = make()
    await broker.connect()

    assert await broker.ping(timeout=5.0)
    await broker.stop()


@on_every_store
async def test_a_block_connects_and_starts_no_subscriber(make: Make) -> None:
    broker = make()
    subscriber = broker.subscriber("q")

    @subscriber
    async def take(body: str) -> None:
        raise AssertionError

    async with broker:
        await broker.publish("x", "q")

        assert not subscriber.running
        assert (await broker.stats())["q"].ready == 1


async def test_a_broker_that_is_not_connected_does_not_answer(make: Make) -> None:
    broker = make()
    assert not await broker.ping()

    async with broker:
        assert await broker.ping()
    assert not await broker.ping()


async def test_a_broker_answers_only_when_all_its_subscribers_have_started(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = make()
    broker.subscriber("a")(Calls().handler)
    broker.subscriber("b")(Calls().handler)
    answers: list[bool] = []
    start = OutboxSubscriber.start

    async def asking(self: OutboxSubscriber) -> None:
        answers.append(await broker.ping())
        await start(self)

    monkeypatch.setattr(OutboxSubscriber, "start", asking)
    async with started(broker):
        answers.append(await broker.ping())

    assert answers == [False, False, True]
