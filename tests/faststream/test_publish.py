"""Publishing: FastStream's scenarios of this name, on real stores."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from faststream import BaseMiddleware, Response
from pydantic import BaseModel

from nightmail import OutboxResponse
from nightmail.annotations import OutboxMessage
from tests.broker.support import Heard, Make, started
from tests.faststream.support import Calls, on_every_store

HOUR = 3600
NOON = datetime(2031, 2, 3, 12, 0, 0, 123456, tzinfo=UTC)


class Model(BaseModel):
    r: str


@dataclass
class Plain:
    r: str


@pytest.mark.parametrize(
    ("message", "wanted", "expected"),
    [
        pytest.param("hello", str, "hello", id="str to str"),
        pytest.param(b"hello", bytes, b"hello", id="bytes to bytes"),
        pytest.param(1, int, 1, id="int to int"),
        pytest.param(1.0, float, 1.0, id="float to float"),
        pytest.param(1, float, 1.0, id="int to float"),
        pytest.param(False, bool, False, id="bool to bool"),
        pytest.param({"m": 1}, dict[str, int], {"m": 1}, id="dict to dict"),
        pytest.param([1, 2, 3], list[int], [1, 2, 3], id="list to list"),
        pytest.param(NOON, datetime, NOON, id="datetime to datetime"),
        pytest.param(b'{"r": "hi"}', Plain, Plain("hi"), id="bytes to dataclass"),
        pytest.param(Plain("hi"), Plain, Plain("hi"), id="dataclass to dataclass"),
        pytest.param(Plain("hi"), dict, {"r": "hi"}, id="dataclass to dict"),
        pytest.param({"r": "hi"}, Plain, Plain("hi"), id="dict to dataclass"),
        pytest.param(b'{"r": "hi"}', Model, Model(r="hi"), id="bytes to model"),
        pytest.param(Model(r="hi"), Model, Model(r="hi"), id="model to model"),
        pytest.param(Model(r="hi"), dict, {"r": "hi"}, id="model to dict"),
        pytest.param({"r": "hi"}, Model, Model(r="hi"), id="dict to model"),
    ],
)
async def test_a_body_arrives_as_the_type_that_the_handler_asks_for(
    make: Make, calls: Calls, message: Any, wanted: Any, expected: Any
) -> None:
    broker = make()

    async def take(body: Any) -> None:
        calls(body)

    take.__annotations__["body"] = wanted
    broker.subscriber("q")(take)

    async with started(broker):
        await broker.publish(message, "q")

        assert await calls.times(1) == [expected]


@on_every_store
async def test_a_response_carries_its_headers_and_its_correlation_id(make: Make, calls: Calls) -> None:
    broker = make()

    @broker.subscriber("q")
    @broker.publisher("next")
    async def answer(_: Any) -> Response:
        return Response(1, headers={"custom": "1"}, correlation_id="cor-1")

    @broker.subscriber("next")
    async def take(msg: OutboxMessage) -> None:
        calls(msg.body, msg.headers["custom"], msg.correlation_id)

    async with started(broker):
        await broker.publish(None, "q")

        assert await calls.times(1) == [(b"1", "1", "cor-1")]


async def test_a_response_of_ours_says_when(make: Make, heard: Heard) -> None:
    broker = make()

    @broker.subscriber("q")
    @broker.publisher("later")
    async def answer(_: Any) -> OutboxResponse:
        return OutboxResponse("x", activate_in=HOUR, timer_id="t")

    async with started(broker):
        sent = await broker.publish(None, "q")
        await heard.until(lambda: bool(heard.of(sent)))

        assert await broker.has_pending("later", "t")
        assert (await broker.stats())["later"].scheduled == 1


async def test_an_answer_keeps_the_correlation_id_of_the_question(make: Make, calls: Calls) -> None:
    broker = make()

    @broker.subscriber("q")
    @broker.publisher("next")
    async def answer(_: Any) -> str:
        return "x"

    @broker.subscriber("next")
    async def take(msg: OutboxMessage) -> None:
        calls(msg.correlation_id)

    async with started(broker):
        await broker.publish(None, "q", correlation_id="cor-7")

        assert await calls.times(1) == ["cor-7"]


async def test_a_dict_is_spread_over_several_parameters(make: Make, calls: Calls) -> None:
    broker = make()

    @broker.subscriber("q")
    async def take(a: int, b: int) -> None:
        calls(a, b)

    async with started(broker):
        await broker.publish({"a": 1, "b": 1.0}, "q")

        assert await calls.times(1) == [(1, 1)]


async def test_a_list_is_spread_over_several_parameters(make: Make, calls: Calls) -> None:
    broker = make()

    @broker.subscriber("q")
    async def take(a: int, b: int, *rest: tuple[int, ...]) -> None:  # The rest as a whole has this type.
        calls(a, b, rest)

    async with started(broker):
        await broker.publish([1, 1.0, 2.0, 3.0], "q")

        assert await calls.times(1) == [(1, 1, (2, 3))]


@on_every_store
async def test_a_publisher_decorates_a_handler(make: Make, calls: Calls) -> None:
    broker = make()

    @broker.subscriber("q")
    @broker.publisher("next")
    async def answer(_: Any) -> str:
        return ""

    broker.subscriber("next")(calls.handler)

    async with started(broker):
        await broker.publish("", "q")

        assert await calls.times(1) == [""]


async def test_a_publisher_may_be_an_object_above_the_subscriber(make: Make, calls: Calls) -> None:
    broker = make()
    publisher = broker.publisher("next")

    @publisher
    @broker.subscriber("q")
    async def answer(_: Any) -> str:
        return ""

    broker.subscriber("next")(calls.handler)

    async with started(broker):
        await broker.publish("", "q")

        assert await calls.times(1) == [""]


async def test_a_handler_publishes_by_itself(make: Make, calls: Calls) -> None:
    broker = make()
    publisher = broker.publisher("next")

    @broker.subscriber("q")
    async def answer(_: Any) -> None:
        await publisher.publish("by hand")

    broker.subscriber("next")(calls.handler)

    async with started(broker):
        await broker.publish("", "q")

        assert await calls.times(1) == ["by hand"]


async def test_a_return_value_goes_to_every_publisher(make: Make) -> None:
    broker = make()
    first, second = Calls(), Calls()

    @broker.publisher("second")
    @broker.subscriber("q")
    @broker.publisher("first")
    async def answer(_: Any) -> str:
        return "x"

    broker.subscriber("first")(first.handler)
    broker.subscriber("second")(second.handler)

    async with started(broker):
        await broker.publish("", "q")

        assert await first.times(1) == ["x"]
        assert await second.times(1) == ["x"]


async def test_one_publisher_decorates_several_handlers(make: Make, calls: Calls) -> None:
    broker = make()
    publisher = broker.publisher("next")

    @publisher
    @broker.subscriber("a")
    async def one(_: Any) -> str:
        return "from a"

    @publisher
    @broker.subscriber("b")
    async def two(_: Any) -> str:
        return "from b"

    broker.subscriber("next")(calls.handler)

    async with started(broker):
        await broker.publish("", "a")
        await broker.publish("", "b")

        assert sorted(await calls.times(2)) == ["from a", "from b"]


@on_every_store
async def test_a_return_value_goes_where_the_message_asks(make: Make, calls: Calls) -> None:
    broker = make()

    @broker.subscriber("q")
    async def answer(body: str) -> str:
        return body

    broker.subscriber("replies")(calls.handler)

    async with started(broker):
        await broker.publish("Hello!", "q", reply_to="replies")

        assert await calls.times(1) == ["Hello!"]


async def test_a_subscriber_may_refuse_to_reply(make: Make, heard: Heard) -> None:
    broker = make()

    @broker.subscriber("q", no_reply=True)
    async def answer(body: str) -> str:
        return body

    async with started(broker):
        sent = await broker.publish("Hello!", "q", reply_to="replies")
        await heard.until(lambda: bool(heard.of(sent)))

        assert await broker.stats() == {}


async def test_a_publisher_may_come_after_the_connection(make: Make) -> None:
    async with make() as broker:
        await broker.publisher("q").publish(None)

        assert (await broker.stats())["q"].ready == 1


async def test_a_publisher_may_come_after_the_start(make: Make, calls: Calls) -> None:
    broker = make()
    broker.subscriber("q")(calls.handler)

    async with started(broker):
        await broker.publisher("q").publish("Hello!")

        assert await calls.times(1) == ["Hello!"]


async def test_a_publisher_may_publish_elsewhere_for_once(make: Make) -> None:
    async with make() as broker:
        publisher = broker.publisher("q", priority=3)
        await publisher.publish("x", "elsewhere")
        await publisher.publish("x", queue="elsewhere")

        assert [(each.queue, each.priority) for each in await broker.pending()] == [("elsewhere", 3)] * 2


async def test_what_a_publisher_says_holds_unless_the_message_says_otherwise(make: Make) -> None:
    async with make() as broker:
        publisher = broker.publisher("q", activate_in=HOUR, priority=3, headers={"from": "shop"})
        await publisher.publish("later")
        await publisher.publish("now", activate_in=0, headers={"to": "you"})

        now, later = await broker.pending("q")

        assert (now.priority, later.priority) == (3, 3)
        assert now.due_at < later.due_at
        assert now.headers["from"] == later.headers["from"] == "shop"
        assert now.headers["to"] == "you"


async def test_what_a_publisher_says_holds_for_a_return_value_too(make: Make, heard: Heard) -> None:
    broker = make()

    @broker.publisher("later", activate_in=HOUR, priority=9)
    @broker.subscriber("q")
    async def answer(_: Any) -> str:
        return "x"

    async with started(broker):
        sent = await broker.publish("", "q")
        await heard.until(lambda: bool(heard.of(sent)))

        (later,) = await broker.pending("later")

        assert later.priority == 9
        assert (await broker.stats())["later"].ready == 0


async def test_a_middleware_counts_the_message_as_published_by_the_handler(make: Make, calls: Calls) -> None:
    class Watch(BaseMiddleware):
        async def publish_scope(self, call_next: Any, cmd: Any) -> Any:
            calls(cmd.destination, cmd.body)
            return await call_next(cmd)

    broker = make(middlewares=(Watch,))

    @broker.publisher("next")
    @broker.subscriber("q")
    async def answer(_: Any) -> str:
        return "x"

    async with started(broker):
        await broker.publish("go", "q")

        assert await calls.times(2) == [("q", "go"), ("next", "x")]
