"""What a relay promises whatever it relays to, tried on a second broker of ours, and what it refuses."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from faststream import AckPolicy, BaseMiddleware
from faststream.exceptions import SetupError
from faststream.response import PublishCommand

from nightmail import Delivery, NoRetry, OutboxBroker, OutboxResponse, OutboxRouter
from nightmail.broker._upstream import PublisherUsecase
from nightmail.broker.relay import relayed_id
from nightmail.errors import LeaseLost
from nightmail.message import DeadDelivery
from nightmail.outcome import Done
from tests.broker.support import started
from tests.relay.support import AT_ONCE, BYTES, Patient, box, done

PUBLISHED = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
MOMENT = "1767323045678901"


@pytest.fixture
def heard() -> Patient:
    return Patient()


@pytest.fixture
def other(tmp_path: Path) -> OutboxBroker:
    """A second broker, on another store."""
    return OutboxBroker(f"sqlite:///{tmp_path / 'other.db'}", logger=None)


async def test_a_relayed_message_arrives_in_another_store_as_it_was_published(
    other: OutboxBroker, heard: Patient
) -> None:
    outbox = box(heard)
    outbox.relay("orders", to=other.publisher("copies", headers={"via": "relay"}))

    async with started(other), started(outbox):
        sent = await outbox.publish(
            BYTES,
            "orders",
            headers={"content-type": "application/x-tea", "shop": "north", "deep": {"a": [1, None]}},
            correlation_id="c-1",
            reply_to="answers",
            ordering_key="customer 7",
            priority=5,
        )
        await heard.until(lambda: heard.of(sent) == [Done()])
        (copy,) = await other.pending("copies")

    assert copy.body == BYTES
    headers = copy.headers
    assert headers.pop("nightmail-message-id").startswith(f"orders:{sent}:")
    assert headers == {
        "content-type": "application/x-tea",
        "shop": "north",
        "deep": {"a": [1, None]},
        "correlation_id": "c-1",
        "reply_to": "answers",
        "via": "relay",
    }
    assert (copy.ordering_key, copy.priority) == ("customer 7", 5)


class Webhook(PublisherUsecase):
    """A publisher of a system that we have never heard of."""

    def __init__(self) -> None:
        self.taken: list[PublishCommand] = []

    def __call__(self, handler: Any) -> Any:
        handler._publishers.append(self)
        return handler

    async def _publish(self, cmd: PublishCommand, *, _extra_middlewares: Any) -> None:
        self.taken.append(cmd)

    async def publish(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError

    async def request(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError


async def test_a_system_that_we_do_not_know_gets_text_headers_and_the_id_among_them(heard: Patient) -> None:
    outbox, webhook = box(heard), Webhook()
    outbox.relay("orders", to=webhook)

    async with started(outbox):
        sent = await outbox.publish({"tea": 1}, "orders", headers={"number": 3}, correlation_id="c-1")
        await heard.until(lambda: done(heard) == 1)

    (command,) = webhook.taken
    assert (command.body, command.correlation_id) == (b'{"tea":1}', "c-1")
    assert command.headers.pop("nightmail-message-id").startswith(f"orders:{sent}:")
    assert command.headers == {"number": "3", "content-type": "application/json"}


async def test_a_router_relays_with_its_prefix(other: OutboxBroker, heard: Patient) -> None:
    router, outbox = OutboxRouter(prefix="shop-"), box(heard)
    relay = router.relay("orders", to=other.publisher("copies"))
    outbox.include_router(router)

    async with started(other), started(outbox):
        await outbox.publish("tea", "shop-orders")
        await heard.until(lambda: done(heard) == 1)
        (copy,) = await other.pending("copies")

    assert relay.queues == ("shop-orders",)
    assert copy.body == b"tea"
    assert copy.headers["nightmail-message-id"].startswith("shop-orders:")


async def test_dead_letters_can_be_relayed(other: OutboxBroker, heard: Patient) -> None:
    outbox = box(heard)

    @outbox.subscriber("orders", retry=NoRetry())
    async def fail(order: str) -> None:
        raise RuntimeError("no")

    outbox.relay("orders", to=other.publisher("died"), dead_letters=True)

    async with started(other), started(outbox):
        sent = await outbox.publish("tea", "orders")
        await heard.until(lambda: done(heard) == 1)
        assert await outbox.dead_letters("orders") == []
        (copy,) = await other.pending("died")

    assert copy.body == b"tea"
    # By the id that the message had, not by the letter's.
    assert copy.headers["nightmail-message-id"].startswith(f"orders:{sent}:")


async def test_a_message_that_is_relayed_again_or_copied_has_an_id_of_its_own(
    other: OutboxBroker, heard: Patient
) -> None:
    outbox = box(heard)
    outbox.relay("orders", to=other.publisher("copies"))

    async with started(other), started(outbox):
        for number in range(2):
            await outbox.publish("tea", "orders", headers={"nightmail-message-id": "of another message"})
            await heard.until(lambda number=number: done(heard) == number + 1)  # type: ignore[misc]
        ids = {copy.headers["nightmail-message-id"] for copy in await other.pending("copies")}

    assert len(ids) == 2
    assert "of another message" not in ids


class FailsAtFirst(BaseMiddleware):
    async def publish_scope(self, call_next: Any, cmd: Any) -> Any:
        if self.msg is not None and self.msg.delivery.attempt == 1:
            raise ConnectionError("away")
        return await call_next(cmd)


@pytest.mark.parametrize("policy", [AckPolicy.ACK, AckPolicy.REJECT_ON_ERROR, AckPolicy.MANUAL])
async def test_a_relay_tries_again_whatever_the_brokers_policy_for_its_handlers_is(
    policy: AckPolicy, other: OutboxBroker, heard: Patient
) -> None:
    outbox = box(heard, ack_policy=policy, retry=AT_ONCE, middlewares=[FailsAtFirst])
    outbox.relay("orders", to=other.publisher("copies"))

    async with started(other), started(outbox):
        await outbox.publish("tea", "orders")
        await heard.until(lambda: done(heard) == 1)
        assert [copy.body for copy in await other.pending("copies")] == [b"tea"]

    assert heard.errors == ["ConnectionError"]


async def test_a_relay_needs_no_dependency_injection(other: OutboxBroker, heard: Patient) -> None:
    outbox = box(heard, apply_types=False)
    outbox.relay("orders", to=other.publisher("copies"))

    async with started(other), started(outbox):
        await outbox.publish({"tea": 1}, "orders")
        await heard.until(lambda: done(heard) == 1)
        assert [copy.body for copy in await other.pending("copies")] == [b'{"tea":1}']


async def test_a_handler_that_returns_the_same_response_every_time_gets_it_back_unchanged(
    other: OutboxBroker, heard: Patient
) -> None:
    outbox = box(heard)
    always = OutboxResponse("yes", headers={"by": "handler"})

    @other.publisher("answers")
    @outbox.subscriber("questions", propagate_headers=True)
    async def answer(question: str) -> Any:
        return always

    async with started(other), started(outbox):
        await outbox.publish("tea?", "questions", headers={"asked": "first", "by": "message"})
        await heard.until(lambda: done(heard) == 1)
        await outbox.publish("bread?", "questions", headers={"asked too": "second"})
        await heard.until(lambda: done(heard) == 2)
        first, second = await other.pending("answers")

    assert (first.headers["asked"], first.headers["by"]) == ("first", "handler")
    assert "asked" not in second.headers
    assert always.headers == {"by": "handler"}


class LosesItsOwnLease(Webhook):
    """A publisher whose own work, the first time, is taken over by another worker: its messages are not ours."""

    async def _publish(self, cmd: PublishCommand, *, _extra_middlewares: Any) -> None:
        async def deliver(cmd: PublishCommand) -> None:
            self.taken.append(cmd)
            if len(self.taken) == 1:
                raise LeaseLost(self.named)

        publish = deliver
        for middleware in _extra_middlewares:
            publish = partial(middleware, publish)
        await publish(cmd)

    named: tuple[int, ...] = ()


@pytest.mark.parametrize("named", [(), (1234567,)])
async def test_a_lease_that_the_other_side_lost_is_a_failure_and_tried_again_by_the_policy(
    named: tuple[int, ...], heard: Patient
) -> None:
    outbox, webhook = box(heard, retry=AT_ONCE), LosesItsOwnLease()
    webhook.named = named
    outbox.relay("orders", to=webhook)

    async with started(outbox):
        sent = await outbox.publish("tea", "orders")
        await heard.until(lambda: done(heard) == 1)

    assert [command.body for command in webhook.taken] == [b"tea", b"tea"]
    assert heard.errors == ["NotTaken"]
    assert heard.lost == []
    assert heard.of(sent)[-1] == Done()


async def test_a_publisher_that_finds_our_own_lease_lost_is_believed(heard: Patient) -> None:
    outbox, webhook = box(heard), LosesItsOwnLease()
    outbox.relay("orders", to=webhook)

    async with outbox:
        sent = await outbox.publish("tea", "orders")
        assert sent is not None
        webhook.named = (sent,)
        await outbox.start()
        await heard.until(lambda: bool(heard.lost))

    assert (heard.lost, heard.errors) == ([sent], [])


# What is refused


def test_only_a_publisher_can_be_relayed_to() -> None:
    outbox = box(Patient())

    with pytest.raises(
        SetupError, match=r"must be a publisher, such as rabbit\.publisher\('orders'\), not str"
    ):
        outbox.relay("orders", to="orders")  # type: ignore[arg-type]

    assert outbox.subscribers == []


def test_an_option_that_a_relay_has_not_is_refused(other: OutboxBroker) -> None:
    outbox = box(Patient())

    with pytest.raises(TypeError, match=r"relay\(\) has no option 'id_prefixes': did you mean 'id_prefix'\?"):
        outbox.relay("orders", to=other.publisher("copies"), id_prefixes="a")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"relay\(\) has no option 'batch'"):
        outbox.relay("orders", to=other.publisher("copies"), batch=True)  # type: ignore[call-arg]


@pytest.mark.parametrize("prefix", ["x" * 65, "caf\xe9", "line\n"])
def test_a_prefix_that_not_every_system_can_carry_is_refused(prefix: str, other: OutboxBroker) -> None:
    with pytest.raises(ValueError, match="id_prefix must be at most 64 printable ASCII characters"):
        box(Patient()).relay("orders", to=other.publisher("copies"), id_prefix=prefix)


def test_headers_of_a_batch_cannot_go_on() -> None:
    with pytest.raises(SetupError, match="the headers of a batch are many"):
        box(Patient()).subscriber("orders", batch=True, propagate_headers=True)


# Ids


def message(**changes: Any) -> Delivery:
    fields: dict[str, Any] = {
        "id": 7,
        "token": UUID(int=1),
        "queue": "orders",
        "body": b"",
        "encoded_headers": "{}",
        "timer_id": None,
        "ordering_key": None,
        "priority": 0,
        "due_at": PUBLISHED,
        "published_at": PUBLISHED,
        "claimed_at": PUBLISHED,
        "expires_at": None,
        "attempts": 0,
        "deliveries": 1,
        "first_attempt_at": None,
        "last_attempt_at": None,
        "superseded": False,
        **changes,
    }
    kind = DeadDelivery if "message_id" in fields else Delivery
    return kind(**fields)


def test_an_id_says_which_message_of_which_queue_and_when_it_was_published() -> None:
    assert relayed_id(message()) == f"orders:7:{MOMENT}"
    assert relayed_id(message(), "north-") == f"north-orders:7:{MOMENT}"


def test_an_id_stays_the_same_from_delivery_to_delivery() -> None:
    again = message(
        token=UUID(int=2), attempts=3, deliveries=2, due_at=PUBLISHED + timedelta(1), claimed_at=PUBLISHED
    )

    assert relayed_id(again) == relayed_id(message())


def test_what_was_published_at_another_moment_has_another_id() -> None:
    # Another store's message with the same number, or the timer that replaced this one in its place.
    assert relayed_id(message(published_at=PUBLISHED + timedelta(microseconds=1))) != relayed_id(message())


@pytest.mark.parametrize("queue", ["q" * 255, "caf\xe9", "two\r\nlines"])
def test_an_id_is_short_printable_text_whatever_the_queue_is_called(queue: str) -> None:
    found = relayed_id(message(id=2**63 - 1, queue=queue), "p" * 64)

    assert len(found) <= 255
    assert found.isascii()
    assert found.isprintable()
    assert found.startswith("p" * 64)
    assert found.endswith(f":9223372036854775807:{MOMENT}")
    assert found != relayed_id(message(id=2**63 - 1, queue=queue[:-1] + "x"), "p" * 64)


def test_what_is_made_of_a_message_for_somewhere_has_an_id_of_its_own() -> None:
    assert relayed_id(message(), to="invoices") == f"orders:7:{MOMENT}:invoices"

    long = relayed_id(message(id=2**63 - 1, queue="q" * 255), "p" * 64, to="caf\xe9")
    assert len(long) <= 255
    assert long.isascii()
    assert long != relayed_id(message(id=2**63 - 1, queue="q" * 255), "p" * 64, to="cafe")
