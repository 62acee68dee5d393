"""Messages go on to a real NATS JetStream: as they are, when it has taken them, and none is lost with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from faststream import BaseMiddleware
from faststream.exceptions import SetupError
from faststream.nats import JStream, NatsBroker

from nightmail.outcome import Done
from testkit.servers.nats import Nats
from tests.broker.support import started
from tests.relay.support import AT_ONCE, BYTES, SOON, Patient, box, done, ids_by_body, jetstream, read

pytest_plugins = ["testkit.broker_fixtures"]


@pytest.fixture
def heard() -> Patient:
    return Patient()


@pytest.fixture
async def nats(nats_url: str) -> AsyncIterator[NatsBroker]:
    # It would wait two seconds before it connects again.
    broker = NatsBroker(nats_url, logger=None, reconnect_time_wait=0, max_reconnect_attempts=-1)
    yield broker
    await broker.stop()


@pytest.fixture
async def stream(nats_url: str, address: str) -> AsyncIterator[JStream]:
    """A stream of one subject, both of one name."""
    async with jetstream(nats_url) as js:
        await js.add_stream(name=address, subjects=[address])
    yield JStream(address, subjects=[address], declare=False)
    async with jetstream(nats_url) as js:
        await js.delete_stream(address)


@asynccontextmanager
async def both(outbox: Any, nats: NatsBroker) -> AsyncIterator[None]:
    await nats.start()
    async with started(outbox):
        yield


async def test_what_a_handler_returns_goes_on_with_the_headers_of_its_message(
    nats: NatsBroker, nats_url: str, stream: JStream, heard: Patient
) -> None:
    outbox = box(heard)

    @nats.publisher(stream.name, stream=stream)
    @outbox.subscriber("orders", propagate_headers=True)
    async def total(order: dict[str, int]) -> dict[str, int]:
        return {"total": order["price"] * order["count"]}

    async with both(outbox, nats):
        headers = {"shop": "north", "number": 3}
        await outbox.publish({"price": 7, "count": 3}, "orders", correlation_id="c-1", headers=headers)
        await heard.until(lambda: done(heard) == 1)

    (arrived,) = await read(nats_url, stream.name)
    assert arrived.body == b'{"total":21}'
    assert arrived.headers["content-type"] == "application/json"
    assert arrived.headers["correlation_id"] == "c-1"
    assert arrived.headers["shop"] == "north"
    # Headers are text there.
    assert arrived.headers["number"] == "3"


async def test_a_relayed_message_arrives_as_it_was_published(
    nats: NatsBroker, nats_url: str, stream: JStream, heard: Patient
) -> None:
    outbox = box(heard)
    outbox.relay("orders", to=nats.publisher(stream.name, stream=stream))

    async with both(outbox, nats):
        sent = await outbox.publish(
            BYTES,
            "orders",
            headers={"content-type": "application/x-tea", "shop": "nord\xe9", "deep": {"a": [1, None]}},
            correlation_id="c-1",
            reply_to="answers",
        )
        await heard.until(lambda: heard.of(sent) == [Done()])

    (arrived,) = await read(nats_url, stream.name)
    assert arrived.body == BYTES
    assert arrived.headers["content-type"] == "application/x-tea"
    assert arrived.headers["shop"] == "nord\xe9"
    assert arrived.headers["deep"] == '{"a": [1, null]}'
    assert arrived.headers["correlation_id"] == "c-1"
    assert arrived.headers["reply_to"] == "answers"
    assert arrived.id is not None
    assert arrived.id.startswith(f"orders:{sent}:")


class LosesTheFirstAnswer(BaseMiddleware):
    """As if the connection broke between the publish of a message's relay and the acknowledgement."""

    async def publish_scope(self, call_next: Any, cmd: Any) -> Any:
        answer = await call_next(cmd)
        if self.msg is not None and self.msg.delivery.attempt == 1:
            raise ConnectionError("the answer is lost")
        return answer


async def test_a_message_that_goes_twice_is_recognised_by_jetstream(
    nats: NatsBroker, nats_url: str, stream: JStream, heard: Patient
) -> None:
    outbox = box(heard, retry=AT_ONCE, middlewares=[LosesTheFirstAnswer])
    outbox.relay("orders", to=nats.publisher(stream.name, stream=stream))

    async with both(outbox, nats):
        await outbox.publish("tea", "orders")
        await outbox.publish("tea", "orders")
        await heard.until(lambda: done(heard) == 2)

    assert heard.errors == ["ConnectionError", "ConnectionError"]
    # Each of the two once, though each was sent twice.
    assert [arrived.body for arrived in await read(nats_url, stream.name)] == [b"tea", b"tea"]


async def test_what_a_handler_returned_twice_is_recognised_by_jetstream(
    nats: NatsBroker, nats_url: str, address: str, heard: Patient
) -> None:
    outbox = box(heard, retry=AT_ONCE, middlewares=[LosesTheFirstAnswer])
    stream = JStream(address, subjects=[f"{address}.*"], declare=False)

    # Two subjects of one stream, which knows messages by their ids alone.
    @nats.publisher(f"{address}.invoices", stream=stream)
    @nats.publisher(f"{address}.parcels", stream=stream)
    @outbox.subscriber("orders")
    async def spread(order: str) -> str:
        return order

    async with jetstream(nats_url) as js:
        await js.add_stream(name=address, subjects=[f"{address}.*"])
    async with both(outbox, nats):
        first = await outbox.publish("tea", "orders", correlation_id="shared")
        second = await outbox.publish("tea", "orders", correlation_id="shared")
        await heard.until(lambda: done(heard) == 2)

    arrived = await read(nats_url, address)
    async with jetstream(nats_url) as js:
        await js.delete_stream(address)
    # The first of its two publishers failed, so it was asked again: what each made of each message is there once.
    assert heard.errors == ["ConnectionError", "ConnectionError"]
    assert [message.body for message in arrived] == [b"tea"] * 4
    assert sorted(_shortened(message.id) for message in arrived) == [
        f"orders:{sent}:{address}.{subject}"
        for sent in (first, second)
        for subject in ("invoices", "parcels")
    ]


def _shortened(given: str | None) -> str:
    """An id, without the moment at which its message was published."""
    queue, number, _, destination = str(given).split(":")
    return f"{queue}:{number}:{destination}"


async def test_a_stream_that_is_not_there_took_nothing(
    nats: NatsBroker, nats_url: str, address: str, heard: Patient
) -> None:
    outbox = box(heard, retry=SOON)
    outbox.relay("orders", to=nats.publisher(address, stream=JStream(address, declare=False)))

    async with both(outbox, nats):
        await outbox.publish("tea", "orders")
        await heard.until(lambda: "NoStreamResponseError" in heard.errors)
        async with jetstream(nats_url) as js:
            await js.add_stream(name=address, subjects=[address])
        await heard.until(lambda: done(heard) == 1)

    assert [arrived.body for arrived in await read(nats_url, address)] == [b"tea"]


def test_a_relay_to_a_subject_without_a_stream_is_refused() -> None:
    nats, outbox = NatsBroker(logger=None), box(Patient())

    with pytest.raises(SetupError, match="acknowledges nothing without JetStream"):
        outbox.relay("orders", to=nats.publisher("orders"))

    assert outbox.subscribers == []


@pytest.mark.slow
async def test_nothing_is_lost_when_nats_is_killed_twice_under_load(
    nats: NatsBroker, nats_server: Nats, nats_url: str, stream: JStream, heard: Patient
) -> None:
    count = 2000
    outbox = box(heard, retry=SOON)
    outbox.relay("orders", to=nats.publisher(stream.name, stream=stream))

    async def kill() -> None:
        await asyncio.to_thread(nats_server.kill)
        # Else nothing was on its way when it died. The client may send that again by itself, without an error.
        assert done(heard) < count
        await asyncio.to_thread(nats_server.start)

    async with both(outbox, nats):
        await outbox.publish_batch(*(f"order {number}" for number in range(count)), queue="orders")
        for enough in (count // 4, count // 2):
            await heard.until(lambda enough=enough: done(heard) >= enough)  # type: ignore[misc]
            await kill()
        await heard.until(lambda: done(heard) == count)

    ids = ids_by_body(await read(nats_url, stream.name))
    assert ids.keys() == {f"order {number}".encode() for number in range(count)}
    # What came twice can be told: one id for each message, and one message for each id.
    assert all(len(set(those)) == 1 for those in ids.values())
    assert len({those[0] for those in ids.values()}) == count
