"""One broker on two event loops: it works, or it is told in one line what to do."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine
from typing import Any

import pytest

from nightmail import OutboxBroker
from nightmail.errors import NotOpen, WrongEventLoop
from tests.broker.support import PATIENCE, Heard, Make, on_sqlite, started


def on_another_loop(waiting: Coroutine[Any, Any, Any]) -> Any:
    """What this returns or raises on an event loop of its own."""

    async def in_time() -> Any:
        async with asyncio.timeout(PATIENCE):
            return await waiting

    return asyncio.run(in_time())


async def connect_and_publish(broker: OutboxBroker, body: str) -> int | None:
    """As a script does that never closes its broker."""
    await broker.connect()
    return await broker.publish(body, "q")


async def look_and_close(broker: OutboxBroker) -> list[bytes]:
    """What waits."""
    async with broker:
        return [each.body for each in await broker.pending("q")]


# The connections of the event loops that ended were never closed, and whoever collects them says so.
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_a_broker_publishes_on_one_event_loop_after_another(make: Make) -> None:
    broker = make()

    ids = [
        on_another_loop(connect_and_publish(broker, "first")),
        on_another_loop(broker.publish("second", "q")),
        on_another_loop(broker.publish("third", "q")),
    ]

    assert None not in ids
    assert on_another_loop(look_and_close(broker)) == [b"first", b"second", b"third"]
    gc.collect()


@on_sqlite
def test_one_that_was_never_connected_is_told_how_to_connect_on_each_of_them(make: Make) -> None:
    broker = make()

    for body in "first", "second":
        with pytest.raises(NotOpen, match=r"`async with broker`, or `await broker\.connect\(\)`") as told:
            on_another_loop(broker.publish(body, "q"))
        assert "\n" not in str(told.value)

    assert on_another_loop(look_and_close(broker)) == []


async def test_a_thread_with_an_event_loop_of_its_own_publishes_or_is_told_what_to_do(
    make: Make, heard: Heard
) -> None:
    broker, taken = make(), []

    @broker.subscriber("q")
    async def take(body: str) -> None:
        taken.append(body)

    def publish_there() -> None:
        on_another_loop(broker.publish("there", "q"))

    async with started(broker):
        if broker.store.capabilities.embedded:
            await asyncio.to_thread(publish_there)
        else:
            # Its connections are of the broker's own event loop.
            with pytest.raises(WrongEventLoop, match="use it there, or open another store here") as told:
                await asyncio.to_thread(publish_there)
            assert "\n" not in str(told.value)
        await broker.publish("here", "q")
        expected = ["here", "there"] if broker.store.capabilities.embedded else ["here"]
        await heard.until(lambda: len(heard.outcomes) == len(expected))

    assert sorted(taken) == expected
