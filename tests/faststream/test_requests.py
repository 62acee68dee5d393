"""Requests: a durable message may be handled in days, so there are none, and that is said clearly."""

from __future__ import annotations

import pytest
from faststream.exceptions import FeatureNotSupportedException

from nightmail import OutboxRouter
from tests.broker.support import Make, started
from tests.faststream.support import Calls


async def test_a_request_says_what_to_do_instead_and_stores_nothing(make: Make) -> None:
    async with make() as broker:
        with pytest.raises(FeatureNotSupportedException, match="reply_to"):
            await broker.request("x", "q", timeout=1)

        assert await broker.pending() == []


async def test_a_request_of_a_publisher_says_the_same(make: Make) -> None:
    broker, router = make(), OutboxRouter()
    publishers = [broker.publisher("q"), router.publisher("q")]
    broker.include_router(router)

    async with broker:
        for publisher in publishers:
            with pytest.raises(FeatureNotSupportedException, match="reply_to"):
                await publisher.request("x", timeout=1)

        assert await broker.pending() == []


async def test_what_to_do_instead_works(make: Make, calls: Calls) -> None:
    broker = make()

    @broker.subscriber("questions")
    async def answer(question: str) -> str:
        return f"{question} 42"

    broker.subscriber("answers")(calls.handler)

    async with started(broker):
        await broker.publish("the answer?", "questions", reply_to="answers", correlation_id="7")

        assert await calls.times(1) == ["the answer? 42"]
