"""What is said about a handler when it is registered."""

from __future__ import annotations

import warnings
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

import pytest
from faststream.exceptions import SetupError

from nightmail import OutboxBroker, OutboxRoute, OutboxRouter


async def yields(body: str) -> AsyncIterator[str]:
    yield body


def yields_at_once(body: str) -> Iterator[str]:
    yield body


class Yields:
    async def __call__(self, body: str) -> AsyncIterator[str]:
        yield body


@pytest.mark.parametrize("handler", [yields, yields_at_once, Yields(), partial(yields)])
def test_a_generator_is_refused(handler: Any) -> None:
    broker = OutboxBroker("memory://", logger=None)

    with pytest.raises(SetupError, match="generator"):
        broker.subscriber("q")(handler)


def test_a_generator_is_refused_under_a_publisher_and_in_a_route() -> None:
    broker = OutboxBroker("memory://", logger=None)

    with pytest.raises(SetupError, match="generator"):
        broker.subscriber("q")(broker.publisher("next")(yields))
    with pytest.raises(SetupError, match="generator"):
        OutboxRouter(handlers=[OutboxRoute(yields, "q")])


def test_a_handler_that_takes_nothing_is_warned_of_where_it_is_registered() -> None:
    broker = OutboxBroker("memory://", logger=None)

    with pytest.warns(UserWarning, match="takes no parameters") as warned:

        @broker.subscriber("q")
        async def handle() -> None: ...

    assert warned[0].filename == __file__


def test_a_handler_that_takes_anything_is_fine() -> None:
    broker = OutboxBroker("memory://", logger=None)

    with warnings.catch_warnings():
        warnings.simplefilter("error")

        @broker.subscriber("q")
        async def handle(_: Any) -> None: ...
