"""A handler that asks for one of our classes by its name is told what to import, before any message fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import pytest
from faststream import Depends
from faststream.exceptions import SetupError

from nightmail import OutboxBroker, OutboxRouter
from nightmail import annotations as ours
from nightmail.broker.message import OutboxBatchMessage, OutboxMessage
from tests.broker.support import Make, started

CLASSES = [OutboxBroker, OutboxMessage, OutboxBatchMessage]
WRAPPED: list[Callable[[Any], Any]] = [
    lambda hint: hint,
    lambda hint: hint | None,
    lambda hint: Annotated[hint, "doc"],
    lambda hint: Annotated[hint, "doc"] | None,
]


def asking_for(hint: Any) -> Callable[..., Any]:
    async def take(driver: Any) -> None: ...

    take.__annotations__["driver"] = hint
    return take


@pytest.mark.parametrize("wrap", WRAPPED, ids=["class", "optional", "annotated", "both"])
@pytest.mark.parametrize("asked", CLASSES)
async def test_a_class_names_the_import(make: Make, asked: type[Any], wrap: Callable[[Any], Any]) -> None:
    broker = make()
    broker.subscriber("q")(asking_for(wrap(asked)))

    with pytest.raises(SetupError, match=rf"from nightmail\.annotations import {asked.__name__}\n"):
        await broker.start()
    await broker.stop()


async def test_a_class_behind_a_dependency_names_it(make: Make) -> None:
    broker = make()

    @broker.subscriber("q")
    async def take(value: None = Depends(asking_for(OutboxMessage))) -> None: ...

    with pytest.raises(SetupError, match="of dependency `take`"):
        await broker.start()
    await broker.stop()


async def test_a_class_asked_for_in_a_router_names_the_import(make: Make) -> None:
    broker, router = make(), OutboxRouter()
    router.subscriber("q")(asking_for(OutboxMessage))
    broker.include_router(router)

    with pytest.raises(SetupError, match="import OutboxMessage"):
        await broker.start()
    await broker.stop()


@pytest.mark.parametrize("hint", [ours.OutboxBroker, ours.OutboxMessage])
async def test_the_annotation_is_accepted(make: Make, hint: Any) -> None:
    broker = make()
    broker.subscriber("q")(asking_for(hint))

    async with started(broker):
        assert await broker.ping()


async def test_nothing_is_looked_up_when_types_are_not_applied(make: Make) -> None:
    broker = make(apply_types=False)
    broker.subscriber("q")(asking_for(OutboxMessage))

    async with started(broker):
        assert await broker.ping()


async def test_a_class_of_ones_own_may_be_added(make: Make) -> None:
    class Session: ...

    broker = make(underlying_driver_annotations={Session: "shop.Session"})
    broker.subscriber("q")(asking_for(Session))

    with pytest.raises(SetupError, match=r"shop\.Session"):
        await broker.start()
    await broker.stop()
