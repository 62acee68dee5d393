"""What a handler returns has an id, by which the other side can tell one that is sent twice."""

from __future__ import annotations

from typing import Annotated, Any

import aio_pika
import pytest
from faststream import BaseMiddleware, Response, kafka, nats, rabbit
from faststream.message import StreamMessage
from faststream.params import Context

from nightmail import NoRetry
from nightmail.annotations import OutboxMessage
from nightmail.outcome import Dead, Done
from tests.broker.support import started
from tests.relay.support import AT_ONCE, Patient, box, done

Message = Annotated[StreamMessage[Any], Context("message")]


@pytest.fixture
def heard() -> Patient:
    return Patient()


class FailsAfterPublishing(BaseMiddleware):
    """As if the connection broke, the first time, between the publish and its answer."""

    async def publish_scope(self, call_next: Any, cmd: Any) -> Any:
        answer = await call_next(cmd)
        if self.msg is not None and self.msg.delivery.attempt == 1:
            raise ConnectionError("the answer is lost")
        return answer


class Arrivals:
    """What subscribers of FastStream's stand-in for NATS or RabbitMQ got: where it was sent to, and under which id."""

    def __init__(self) -> None:
        self.broker: Any
        self.stand_in: Any
        self.ids: list[tuple[str, str | None]] = []

    def at(self, destination: str) -> None:
        async def take(message: Message) -> None:
            self.ids.append((destination, self.id_of(message)))

        self.broker.subscriber(destination)(take)

    def id_of(self, message: StreamMessage[Any]) -> str | None:
        raise NotImplementedError


class InNats(Arrivals):
    def __init__(self) -> None:
        super().__init__()
        self.broker = nats.NatsBroker(logger=None)
        self.stand_in = nats.TestNatsBroker(self.broker)

    def id_of(self, message: StreamMessage[Any]) -> str | None:
        return message.headers.get("Nats-Msg-Id")


class InRabbit(Arrivals):
    def __init__(self) -> None:
        super().__init__()
        self.broker = rabbit.RabbitBroker(logger=None)
        self.stand_in = rabbit.TestRabbitBroker(self.broker)

    def id_of(self, message: StreamMessage[Any]) -> str | None:
        found: str | None = message.raw_message.message_id
        return found


@pytest.fixture(params=[InNats, InRabbit], ids=["nats", "rabbit"])
def other(request: pytest.FixtureRequest) -> Arrivals:
    made: Arrivals = request.param()
    return made


async def test_it_is_the_same_at_every_delivery_and_another_for_another_message(
    other: Arrivals, heard: Patient
) -> None:
    outbox = box(heard, retry=AT_ONCE, middlewares=[FailsAfterPublishing])
    other.at("invoices")

    @other.broker.publisher("invoices")
    @outbox.subscriber("orders")
    async def invoice(order: str) -> str:
        return order

    async with other.stand_in, started(outbox):
        first = await outbox.publish("tea", "orders", correlation_id="shared")
        await heard.until(lambda: done(heard) == 1)
        second = await outbox.publish("tea", "orders", correlation_id="shared")
        await heard.until(lambda: done(heard) == 2)

    ids = [given for _, given in other.ids]
    assert len(ids) == 4
    assert ids[0] == ids[1]
    assert ids[2] == ids[3]
    assert str(ids[0]).startswith(f"orders:{first}:")
    assert str(ids[2]).startswith(f"orders:{second}:")


async def test_each_publisher_of_a_handler_gives_one_of_its_own(other: Arrivals, heard: Patient) -> None:
    outbox = box(heard)
    other.at("invoices")
    other.at("parcels")

    @other.broker.publisher("parcels")
    @other.broker.publisher("invoices")
    @other.broker.publisher("invoices", description="and once more")
    @outbox.subscriber("orders")
    async def spread(order: str) -> str:
        return order

    async with other.stand_in, started(outbox):
        await outbox.publish("tea", "orders")
        await heard.until(lambda: done(heard) == 1)

    invoices = [given for destination, given in other.ids if destination == "invoices"]
    (parcel,) = [given for destination, given in other.ids if destination == "parcels"]
    assert [str(given).rpartition(":")[2] for given in (*invoices, parcel)] == [
        "invoices",
        "invoices#2",
        "parcels",
    ]


async def test_publishers_in_another_order_give_the_same_ids(other: Arrivals, heard: Patient) -> None:
    # Code is deployed between two deliveries: nothing may then pass for something else.
    outbox = box(heard)
    other.at("invoices")
    other.at("parcels")

    async def spread(order: str) -> str:
        return order

    one, two = other.broker.publisher("invoices"), other.broker.publisher("parcels")
    one(two(outbox.subscriber("before")(spread)))
    two(one(outbox.subscriber("after")(spread)))

    async with other.stand_in, started(outbox):
        await outbox.publish("tea", "before")
        await heard.until(lambda: done(heard) == 1)
        await outbox.publish("tea", "after")
        await heard.until(lambda: done(heard) == 2)

    assert [str(given).endswith(f":{destination}") for destination, given in other.ids] == [True] * 4


@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        (InNats, nats.NatsResponse("tea", headers={"Nats-Msg-Id": "mine"})),
        (InNats, Response("tea", headers={"Nats-Msg-Id": "mine"})),
        (InRabbit, rabbit.RabbitResponse("tea", message_id="mine")),
        (InRabbit, aio_pika.Message(b"tea", message_id="mine")),
    ],
    ids=["nats", "any response", "rabbit", "aio-pika"],
)
async def test_one_that_the_handler_gave_is_kept(kind: type[Arrivals], answer: Any, heard: Patient) -> None:
    outbox, other = box(heard), kind()
    other.at("invoices")

    @other.broker.publisher("invoices")
    @outbox.subscriber("orders")
    async def invoice(order: str) -> Any:
        return answer

    async with other.stand_in, started(outbox):
        await outbox.publish("tea", "orders")
        await heard.until(lambda: done(heard) == 1)

    assert other.ids == [("invoices", "mine")]


@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        (InNats, nats.NatsResponse("tea")),
        (InRabbit, rabbit.RabbitResponse("tea")),
        (InRabbit, aio_pika.Message(b"tea")),
    ],
    ids=["nats", "rabbit", "aio-pika"],
)
async def test_a_handler_may_return_the_same_object_every_time(
    kind: type[Arrivals], answer: Any, heard: Patient
) -> None:
    outbox, other = box(heard), kind()
    other.at("invoices")

    @other.broker.publisher("invoices")
    @outbox.subscriber("orders")
    async def invoice(order: str) -> Any:
        return answer

    async with other.stand_in, started(outbox):
        for number in (1, 2):
            await outbox.publish("tea", "orders")
            await heard.until(lambda number=number: done(heard) == number)  # type: ignore[misc]

    first, second = (given for _, given in other.ids)
    assert str(first).startswith("orders:1:")
    assert str(second).startswith("orders:2:")


async def test_one_that_a_middleware_gave_is_kept(heard: Patient) -> None:
    class Names(BaseMiddleware):
        async def publish_scope(self, call_next: Any, cmd: Any) -> Any:
            cmd.add_headers({"Nats-Msg-Id": "named"}, override=False)
            return await call_next(cmd)

    outbox, other = box(heard, middlewares=[Names]), InNats()
    other.at("invoices")

    @other.broker.publisher("invoices")
    @outbox.subscriber("orders")
    async def invoice(order: str) -> str:
        return order

    async with other.stand_in, started(outbox):
        await outbox.publish("tea", "orders")
        await heard.until(lambda: done(heard) == 1)

    assert other.ids == [("invoices", "named")]


async def test_one_of_the_message_itself_does_not_go_on_with_its_headers(heard: Patient) -> None:
    # A handler that copies the headers of one message to three others would see two of them dropped.
    outbox, other = box(heard), InNats()
    other.at("invoices")

    @other.broker.publisher("invoices")
    @outbox.subscriber("orders", propagate_headers=True)
    async def invoice(order: str) -> str:
        return order

    async with other.stand_in, started(outbox):
        sent = await outbox.publish("tea", "orders", headers={"Nats-Msg-Id": "copied", "shop": "north"})
        await heard.until(lambda: done(heard) == 1)

    ((_, given),) = other.ids
    assert str(given).startswith(f"orders:{sent}:")


async def test_what_is_returned_by_a_handler_that_wants_its_message_again_has_none(
    other: Arrivals, heard: Patient
) -> None:
    # It goes on once for every round, and JetStream would drop all but the first.
    outbox = box(heard)
    other.at("progress")

    @other.broker.publisher("progress")
    @outbox.subscriber("jobs")
    async def look(job: str, msg: OutboxMessage) -> str:
        if not heard.outcomes:
            await msg.postpone(0)
            return "not yet"
        return "finished"

    async with other.stand_in, started(outbox):
        sent = await outbox.publish("tea", "jobs")
        await heard.until(lambda: done(heard) == 1)

    assert heard.of(sent)[-1] == Done()
    (_, first), (_, last) = other.ids
    assert not str(first).startswith("jobs:")
    assert str(last).startswith(f"jobs:{sent}:")


async def test_what_a_batch_was_made_into_has_none(other: Arrivals, heard: Patient) -> None:
    # Its messages may come again in other company.
    outbox = box(heard)
    other.at("sums")

    @other.broker.publisher("sums")
    @outbox.subscriber("numbers", batch=True)
    async def add(numbers: list[int]) -> str:
        return str(sum(numbers))

    async with other.stand_in, started(outbox):
        await outbox.publish(1, "numbers")
        await heard.until(lambda: done(heard) == 1)

    ((_, given),) = other.ids
    assert not str(given).startswith("numbers:")


async def test_what_is_made_of_a_dead_letter_is_not_taken_for_what_was_made_of_the_message(
    other: Arrivals, heard: Patient
) -> None:
    outbox = box(heard, retry=NoRetry(), middlewares=[FailsAfterPublishing])
    other.at("news")

    @other.broker.publisher("news")
    @outbox.subscriber("orders")
    async def good(order: str) -> str:
        return "good news"

    @other.broker.publisher("news")
    @outbox.subscriber("orders", dead_letters=True, retry=AT_ONCE)
    async def bad(order: str) -> str:
        return "bad news"

    async with other.stand_in, started(outbox):
        sent = await outbox.publish("tea", "orders")
        await heard.until(lambda: done(heard) == 1)

    (_, published), (_, once), (_, again) = other.ids
    assert str(published).startswith(f"orders:{sent}:")
    assert str(published).endswith(":news")
    assert once == again
    assert str(once).endswith(":dead:news")


async def test_the_same_key_of_two_exchanges_is_not_the_same(heard: Patient) -> None:
    outbox, other = box(heard), InRabbit()
    taken: list[str | None] = []

    async def take(message: Message) -> None:
        taken.append(other.id_of(message))

    for exchange in ("north", "south"):
        queue = rabbit.RabbitQueue(f"{exchange}-queue", routing_key="new")
        other.broker.subscriber(queue, exchange=exchange)(take)

    @other.broker.publisher(routing_key="new", exchange="north")
    @other.broker.publisher(routing_key="new", exchange="south")
    @outbox.subscriber("orders")
    async def spread(order: str) -> str:
        return order

    async with other.stand_in, started(outbox):
        await outbox.publish("tea", "orders")
        await heard.until(lambda: done(heard) == 1)

    assert sorted(str(given).rpartition(":")[2] for given in taken) == [
        "north/new",
        "south/new",
    ]


async def test_how_a_handler_ended_goes_nowhere(other: Arrivals, heard: Patient) -> None:
    outbox = box(heard)
    other.at("invoices")

    @other.broker.publisher("invoices")
    @outbox.subscriber("orders")
    async def invoice(order: str) -> Dead:
        return Dead("no such customer")

    async with other.stand_in, started(outbox):
        sent = await outbox.publish("tea", "orders")
        await heard.until(lambda: heard.of(sent) == [Dead("no such customer")])

    assert other.ids == []


async def test_where_there_is_no_place_for_one_the_headers_stay_those_of_the_handler(heard: Patient) -> None:
    outbox, other = box(heard), kafka.KafkaBroker(logger=None)
    taken: list[dict[str, Any]] = []

    @other.subscriber("invoices")
    async def take(message: Message) -> None:
        taken.append(message.headers)

    @other.publisher("invoices")
    @outbox.subscriber("orders")
    async def invoice(order: str) -> str:
        return order

    async with kafka.TestKafkaBroker(other), started(outbox):
        await outbox.publish("tea", "orders", correlation_id="c-1")
        await heard.until(lambda: done(heard) == 1)

    assert [sorted(headers) for headers in taken] == [["content-type", "correlation_id"]]
