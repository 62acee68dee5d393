"""Routers: FastStream's scenarios of this name, on real stores."""

from __future__ import annotations

from typing import Any

import pytest
from faststream import AckPolicy, Context
from faststream.exceptions import SetupError

from nightmail import Dead, OutboxRoute, OutboxRoutePublisher, OutboxRouter
from tests.broker.support import Heard, Make, started
from tests.faststream.support import Calls, on_every_store


async def test_a_router_without_a_prefix_leaves_names_as_they_are(make: Make, calls: Calls) -> None:
    broker, router = make(), OutboxRouter()
    router.subscriber("q")(calls.handler)
    broker.include_router(router)

    async with started(broker):
        await broker.publish("hello", "q")

        assert await calls.times(1) == ["hello"]


@on_every_store
async def test_a_prefix_goes_before_the_queues_of_subscribers(make: Make, calls: Calls) -> None:
    broker, router = make(), OutboxRouter(prefix="shop.")
    router.subscriber("a", "b")(calls.handler)
    broker.include_router(router)

    async with started(broker):
        await broker.publish("one", "shop.a")
        await broker.publish("two", "shop.b")

        assert sorted(await calls.times(2)) == ["one", "two"]


async def test_a_prefix_may_be_given_when_the_router_is_included(make: Make, calls: Calls) -> None:
    broker, router = make(), OutboxRouter()
    router.subscriber("q")(calls.handler)
    broker.include_router(router, prefix="shop.")

    async with started(broker):
        await broker.publish("hello", "shop.q")

        assert await calls.times(1) == ["hello"]


@pytest.mark.parametrize("prefix", ["", "shop."])
async def test_publishers_and_subscribers_of_a_router_meet(make: Make, calls: Calls, prefix: str) -> None:
    broker, router = make(), OutboxRouter(prefix=prefix)

    @router.subscriber("q")
    @router.publisher("next")
    async def answer(body: str) -> str:
        return "hi"

    router.subscriber("next")(calls.handler)
    broker.include_router(router)

    async with started(broker):
        await broker.publish("hello", f"{prefix}q")

        assert await calls.times(1) == ["hi"]


async def test_a_prefix_given_on_inclusion_holds_for_publishers(make: Make, calls: Calls) -> None:
    broker, router = make(), OutboxRouter()
    publisher = router.publisher("q")
    broker.subscriber("shop.q")(calls.handler)
    broker.include_router(router, prefix="shop.")

    async with started(broker):
        await publisher.publish("hello")

        assert await calls.times(1) == ["hello"]


async def test_a_publisher_of_a_router_is_called_by_hand(make: Make, calls: Calls) -> None:
    broker, router = make(), OutboxRouter(prefix="shop.")
    publisher = router.publisher("next")

    @router.subscriber("q")
    async def answer(body: str) -> None:
        await publisher.publish("hi")

    router.subscriber("next")(calls.handler)
    broker.include_router(router)

    async with started(broker):
        await broker.publish("hello", "shop.q")

        assert await calls.times(1) == ["hi"]


@on_every_store
async def test_routes_tell_a_router_of_its_handlers(make: Make, calls: Calls) -> None:
    async def answer(body: str) -> str:
        return f"{body}!"

    broker = make()
    router = OutboxRouter(
        prefix="shop.",
        handlers=(
            OutboxRoute(answer, "q", publishers=(OutboxRoutePublisher("next", priority=2),), max_workers=1),
            OutboxRoute(calls.handler, "next"),
        ),
    )
    broker.include_router(router)

    async with started(broker):
        await broker.publish("hello", "shop.q")

        assert await calls.times(1) == ["hello!"]


async def test_prefixes_of_nested_routers_add_up_for_subscribers(make: Make, calls: Calls) -> None:
    broker, outer, inner = make(), OutboxRouter(prefix="shop."), OutboxRouter(prefix="till.")
    inner.subscriber("q")(calls.handler)
    outer.include_routers(inner)
    broker.include_routers(outer)

    async with started(broker):
        await broker.publish("hello", "shop.till.q")

        assert await calls.times(1) == ["hello"]


async def test_prefixes_of_nested_routers_add_up_for_publishers(make: Make, calls: Calls) -> None:
    broker, outer, inner = make(), OutboxRouter(prefix="shop."), OutboxRouter(prefix="till.")

    @inner.subscriber("q")
    @inner.publisher("next")
    async def answer(body: str) -> str:
        return "hi"

    broker.subscriber("shop.till.next")(calls.handler)
    outer.include_routers(inner)
    broker.include_router(outer)

    async with started(broker):
        await broker.publish("hello", "shop.till.q")

        assert await calls.times(1) == ["hi"]


async def test_a_nested_router_takes_new_subscribers_while_the_broker_runs(make: Make, calls: Calls) -> None:
    inner = OutboxRouter(prefix="till.")
    broker = make(routers=[OutboxRouter(routers=[inner])])

    async with started(broker):
        subscriber = inner.subscriber("q")
        subscriber(calls.handler)
        await subscriber.start()
        await broker.publish("hello", "till.q")

        assert await calls.times(1) == ["hello"]


async def test_a_router_brings_its_parser_and_decoder(make: Make, calls: Calls) -> None:
    async def parser(msg: Any, original: Any) -> Any:
        calls("parsed")
        return await original(msg)

    async def decoder(msg: Any, original: Any) -> Any:
        calls("decoded")
        return await original(msg)

    broker, router = make(), OutboxRouter(parser=parser, decoder=decoder)
    router.subscriber("q")(calls.handler)
    broker.include_router(router)

    async with started(broker):
        await broker.publish("hello", "q")

        assert await calls.times(3) == ["parsed", "decoded", "hello"]


async def test_a_subscribers_parser_and_decoder_go_before_its_routers(make: Make, calls: Calls) -> None:
    async def of_router(msg: Any, original: Any) -> Any:
        raise AssertionError

    async def parser(msg: Any, original: Any) -> Any:
        calls("parsed")
        return await original(msg)

    async def decoder(msg: Any, original: Any) -> Any:
        calls("decoded")
        return await original(msg)

    broker, router = make(), OutboxRouter(parser=of_router, decoder=of_router)
    router.subscriber("q", parser=parser, decoder=decoder)(calls.handler)
    broker.include_router(router)

    async with started(broker):
        await broker.publish("hello", "q")

        assert await calls.times(3) == ["parsed", "decoded", "hello"]


async def test_a_router_may_be_given_to_the_broker(make: Make, calls: Calls) -> None:
    router = OutboxRouter()
    router.subscriber("q")(calls.handler)
    broker = make(routers=[router])

    async with started(broker):
        await broker.publish("hello", "q")

        assert await calls.times(1) == ["hello"]


async def test_publishers_of_routers_publish_through_the_broker_that_includes_them(make: Make) -> None:
    broker, one, two = make(), OutboxRouter(), OutboxRouter()
    first, second = one.publisher("q"), two.publisher("q")
    broker.include_routers(one, two)

    async with broker:
        await first.publish("a")
        await second.publish("b")

        assert (await broker.stats())["q"].ready == 2


async def test_a_router_may_move_to_another_broker(make: Make, calls: Calls) -> None:
    router = OutboxRouter()

    @router.subscriber("q")
    async def take(broker: Any = Context()) -> None:
        calls(broker)

    one, two = make(), make()
    one.include_router(router)
    async with started(one):
        await one.publish({}, "q")
        await calls.times(1)

    two.include_router(router)
    async with started(two):
        await two.publish({}, "q")

        assert await calls.times(2) == [one, two]


@pytest.mark.parametrize(
    ("broker_says", "router_says", "subscriber_says", "died"),
    [
        pytest.param({}, {}, {}, False, id="none"),
        pytest.param({"ack_policy": AckPolicy.REJECT_ON_ERROR}, {}, {}, True, id="the broker"),
        pytest.param({}, {"ack_policy": AckPolicy.REJECT_ON_ERROR}, {}, True, id="the router"),
        pytest.param({}, {}, {"ack_policy": AckPolicy.REJECT_ON_ERROR}, True, id="the subscriber"),
        pytest.param(
            {"ack_policy": AckPolicy.NACK_ON_ERROR},
            {"ack_policy": AckPolicy.REJECT_ON_ERROR},
            {},
            True,
            id="the router goes before the broker",
        ),
        pytest.param(
            {"ack_policy": AckPolicy.NACK_ON_ERROR},
            {"ack_policy": AckPolicy.ACK},
            {"ack_policy": AckPolicy.REJECT_ON_ERROR},
            True,
            id="the subscriber goes before all",
        ),
    ],
)
async def test_who_says_what_an_error_means(
    make: Make,
    heard: Heard,
    broker_says: dict[str, Any],
    router_says: dict[str, Any],
    subscriber_says: dict[str, Any],
    died: bool,
) -> None:
    broker, router = make(**broker_says), OutboxRouter(**router_says)

    @router.subscriber("q", **subscriber_says)
    async def fail(body: str) -> None:
        raise ValueError

    broker.include_router(router)

    async with started(broker):
        sent = await broker.publish("x", "q")
        await heard.until(lambda: bool(heard.of(sent)))

    assert isinstance(heard.of(sent)[0], Dead) is died


def test_a_router_cannot_ask_for_messages_to_be_deleted_first() -> None:
    with pytest.raises(SetupError, match="ACK_FIRST"):
        OutboxRouter(ack_policy=AckPolicy.ACK_FIRST)
