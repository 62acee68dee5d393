"""What a subscriber or a publisher inherits from the routers and the broker that include it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from faststream import BaseMiddleware, Depends
from faststream.specification import AsyncAPI

from nightmail import OutboxBroker, OutboxRouter
from tests.broker.support import Make, started
from tests.faststream.support import Calls


def note(calls: Calls, name: str) -> type[BaseMiddleware]:
    """A middleware that says its name."""

    class Named(BaseMiddleware):
        async def consume_scope(self, call_next: Any, msg: Any) -> Any:
            calls(f"consume {name}")
            return await call_next(msg)

        async def publish_scope(self, call_next: Any, cmd: Any) -> Any:
            calls(f"publish {name}")
            return await call_next(cmd)

    return Named


def of_broker(calls: Calls) -> tuple[dict[str, Any], Callable[[OutboxBroker], Any]]:
    return {"middlewares": (note(calls, "1"),)}, lambda broker: broker


def of_router(calls: Calls) -> tuple[dict[str, Any], Callable[[OutboxBroker], Any]]:
    def include(broker: OutboxBroker) -> OutboxRouter:
        router = OutboxRouter(middlewares=[note(calls, "2")])
        broker.include_router(router)
        return router

    return {"middlewares": (note(calls, "1"),)}, include


def of_nested_routers(calls: Calls) -> tuple[dict[str, Any], Callable[[OutboxBroker], Any]]:
    def include(broker: OutboxBroker) -> OutboxRouter:
        outer = OutboxRouter(middlewares=[note(calls, "2")])
        inner = OutboxRouter(middlewares=[note(calls, "3")])
        outer.include_router(inner)
        broker.include_router(outer)
        return inner

    return {"middlewares": (note(calls, "1"),)}, include


def of_inclusion(calls: Calls) -> tuple[dict[str, Any], Callable[[OutboxBroker], Any]]:
    def include(broker: OutboxBroker) -> OutboxRouter:
        router = OutboxRouter(middlewares=[note(calls, "3")])
        broker.include_router(router, middlewares=[note(calls, "2")])
        return router

    return {"middlewares": (note(calls, "1"),)}, include


EVERY_WAY = pytest.mark.parametrize(
    ("way", "names"),
    [
        pytest.param(of_broker, ["1"], id="broker"),
        pytest.param(of_router, ["1", "2"], id="router"),
        pytest.param(of_nested_routers, ["1", "2", "3"], id="nested routers"),
        pytest.param(of_inclusion, ["1", "2", "3"], id="given on inclusion"),
    ],
)


@EVERY_WAY
async def test_a_subscriber_is_inside_all_middlewares_outermost_first(
    make: Make, calls: Calls, way: Any, names: list[str]
) -> None:
    options, place = way(calls)
    broker = make(**options)
    done = Calls()
    place(broker).subscriber("q")(done.handler)

    async with started(broker):
        await broker.publish("x", "q")
        await done.times(1)

    assert [each for each in calls.made if each.startswith("consume")] == [
        f"consume {name}" for name in names
    ]


@EVERY_WAY
async def test_a_publisher_is_inside_all_middlewares_outermost_first(
    make: Make, calls: Calls, way: Any, names: list[str]
) -> None:
    options, place = way(calls)
    broker = make(**options)
    publisher = place(broker).publisher("q")

    async with broker:
        await publisher.publish("x")

    assert calls.made == [f"publish {name}" for name in names]


async def test_dependencies_of_broker_routers_and_subscriber_all_run(make: Make, calls: Calls) -> None:
    def named(name: str) -> Any:
        async def dependency() -> None:
            calls(name)

        return Depends(dependency)

    broker = make(dependencies=[named("broker")])
    outer, inner = OutboxRouter(dependencies=[named("outer")]), OutboxRouter(dependencies=[named("inner")])
    inner.subscriber("q", dependencies=[named("subscriber")])(calls.handler)
    outer.include_router(inner, dependencies=[named("inclusion")])
    broker.include_router(outer)

    async with started(broker):
        await broker.publish("x", "q")

        assert sorted(await calls.times(6)) == ["broker", "inclusion", "inner", "outer", "subscriber", "x"]


@pytest.mark.parametrize(
    ("router_says", "inclusion_says", "shown"),
    [
        (None, True, True),
        (True, True, True),
        (False, True, False),
        (None, False, False),
        (True, False, False),
        (False, False, False),
    ],
)
def test_what_is_hidden_anywhere_is_not_in_the_document(
    router_says: bool | None, inclusion_says: bool, shown: bool
) -> None:
    broker, router = OutboxBroker("memory://"), OutboxRouter(include_in_schema=router_says)

    @router.publisher("outgoing")
    @router.subscriber("incoming")
    async def take(body: str) -> str:
        return body

    broker.include_router(router, include_in_schema=inclusion_says)
    document = AsyncAPI(broker).to_specification().to_json()

    assert ("incoming" in document, "outgoing" in document) == (shown, shown)


@pytest.mark.parametrize("hidden", ["subscriber", "publisher"])
def test_a_subscriber_or_publisher_may_hide_itself(hidden: str) -> None:
    broker = OutboxBroker("memory://")

    @broker.publisher("outgoing", include_in_schema=hidden != "publisher")
    @broker.subscriber("incoming", include_in_schema=hidden != "subscriber")
    async def take(body: str) -> str:
        return body

    document = AsyncAPI(broker).to_specification().to_json()

    assert ("incoming" in document, "outgoing" in document) == (hidden != "subscriber", hidden != "publisher")


async def test_the_brokers_grace_reaches_the_subscribers_of_nested_routers() -> None:
    broker, outer, inner = (
        OutboxBroker("memory://", graceful_timeout=7, logger=None),
        OutboxRouter(),
        OutboxRouter(),
    )
    subscriber = inner.subscriber("q")
    subscriber(Calls().handler)
    outer.include_router(inner)
    broker.include_router(outer)

    async with started(broker):
        assert subscriber.settings.graceful_timeout.total_seconds() == 7


@pytest.mark.parametrize(
    ("inclusion", "expected"), [("", ("1.", "1.5.")), ("4.", ("1.", "1.4.5."))], ids=["nested", "complex"]
)
def test_prefixes_add_up(inclusion: str, expected: tuple[str, str]) -> None:
    broker = OutboxBroker("memory://")
    first, second, third = OutboxRouter(prefix="1."), OutboxRouter(), OutboxRouter(prefix="5.")
    of_second, of_third = second.subscriber("q"), third.subscriber("q")
    publisher = third.publisher("q")
    second.include_router(third, prefix=inclusion)
    first.include_router(second)
    broker.include_router(first)

    assert of_second.queues == (f"{expected[0]}q",)
    assert of_third.queues == (f"{expected[1]}q",)
    assert publisher.queue == f"{expected[1]}q"


async def test_including_a_router_twice_is_including_it_once(make: Make, calls: Calls) -> None:
    broker, router = make(), OutboxRouter(prefix="a.", middlewares=[note(calls, "1")])
    router.subscriber("q")(Calls().handler)
    publisher = router.publisher("q")
    broker.include_router(router)
    broker.include_router(router)

    async with broker:
        await publisher.publish("x")

    assert calls.made == ["publish 1"]
    assert len(broker.subscribers) == 1


def test_a_router_belongs_to_the_broker_that_included_it_last() -> None:
    one, two, router = OutboxBroker("memory://"), OutboxBroker("memory://"), OutboxRouter()
    router.subscriber("q")
    one.include_router(router)
    two.include_router(router)

    assert (len(one.subscribers), len(two.subscribers)) == (0, 1)
