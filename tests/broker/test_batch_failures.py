"""Batches in which something fails: a lost lease, a body that cannot be read, a decoder that skips, a stop."""

from __future__ import annotations

from typing import Any

import pytest
from faststream import AckPolicy
from faststream.exceptions import SkipMessage, StopConsume

from nightmail.annotations import OutboxBatchMessage
from nightmail.errors import LeaseLost
from nightmail.outcome import Dead, Done, Outcome, Retry
from tests.broker.support import IN_A_MINUTE, MINUTE, Heard, Make, in_memory, publish, started

AS_JSON = {"content-type": "application/json"}
UNKNOWN_ID = 999_999

pytestmark = in_memory


@pytest.mark.parametrize("ids", [(), (UNKNOWN_ID,)], ids=["no id", "an unknown id"])
async def test_a_lost_lease_of_none_of_the_batch_does_not_bring_it_back_at_full_speed(
    make: Make, heard: Heard, ids: tuple[int, ...]
) -> None:
    broker, runs = make(retry=IN_A_MINUTE), []

    @broker.subscriber("q", batch=True)
    async def handle(bodies: list[str]) -> None:
        runs.append(bodies)
        raise LeaseLost(ids)

    sent = await publish(broker, "a", "b")
    async with started(broker):
        await heard.until(lambda: len(heard.lost) + len(heard.outcomes) >= 2)

    if ids:
        # Another message's lease: an error like any other, for the retry policy.
        assert heard.lost == []
        assert [type(outcome) for _, outcome in heard.outcomes] == [Retry, Retry]
    else:
        # Nothing is known of any of them: they come back when their leases end.
        assert sorted(heard.lost) == sent
        assert heard.outcomes == []
    assert runs == [["a", "b"]]


async def test_outcomes_are_for_the_bodies_that_the_handler_was_given(make: Make, heard: Heard) -> None:
    broker = make(retry=IN_A_MINUTE)

    @broker.subscriber("q", batch=True)
    async def handle(bodies: list[dict[str, int]]) -> list[Outcome]:
        return [Done() if body["cups"] == 1 else Dead("too many") for body in bodies]

    async with broker:
        first = await broker.publish({"cups": 1}, "q")
        broken = await broker.publish(b"{not json", "q", headers=AS_JSON)
        last = await broker.publish({"cups": 2}, "q")
    async with started(broker):
        await heard.until(lambda: len(heard.outcomes) == 3)

    assert heard.of(first) == [Done()]
    assert heard.of(last) == [Dead("too many")]
    (buried,) = heard.of(broken)
    assert isinstance(buried, Dead)
    assert (buried.reason, buried.ran) == ("undecodable", False)


async def test_what_a_decoder_skips_is_tried_again_and_the_others_are_handled(
    make: Make, heard: Heard
) -> None:
    broker, got = make(retry=IN_A_MINUTE), []

    async def picky(msg: Any, original: Any) -> Any:
        body = await original(msg)
        if body == "skip":
            raise SkipMessage
        return body

    @broker.subscriber("q", batch=True, decoder=picky)
    async def handle(bodies: list[str]) -> None:
        got.append(bodies)

    skipped, handled = await publish(broker, "skip", "tea")
    async with started(broker):
        await heard.until(lambda: len(heard.outcomes) == 2)

    assert got == [["tea"]]
    assert heard.of(skipped) == [Retry(MINUTE)]
    assert heard.of(handled) == [Done()]


async def test_what_a_decoder_skips_is_not_done_where_failing_is(make: Make, heard: Heard) -> None:
    broker = make(retry=IN_A_MINUTE)

    async def never(msg: Any, original: Any) -> Any:
        raise SkipMessage

    @broker.subscriber("q", batch=True, decoder=never, ack_policy=AckPolicy.ACK)
    async def handle(bodies: list[str]) -> None: ...

    (sent,) = await publish(broker, "tea")
    async with started(broker):
        await heard.until(lambda: len(heard.outcomes) == 1)

    assert heard.of(sent) == [Retry(MINUTE)]


async def test_a_batch_that_stops_its_subscriber_keeps_the_decisions_it_has_made(
    make: Make, heard: Heard
) -> None:
    broker = make(retry=IN_A_MINUTE)

    @broker.subscriber("q", batch=True)
    async def handle(bodies: list[str], msg: OutboxBatchMessage) -> None:
        await msg.items[0].ack()
        raise StopConsume

    sent = await publish(broker, "a", "b")
    async with started(broker):
        await heard.until(lambda: len(heard.outcomes) == 2)

    assert [heard.of(each) for each in sent] == [[Done()], [Retry(MINUTE)]]


async def test_a_handler_that_a_filter_chose_has_the_items_to_itself(make: Make, heard: Heard) -> None:
    broker, chosen = make(retry=IN_A_MINUTE), []
    subscriber = broker.subscriber("q", batch=True)

    @subscriber(filter=lambda _message: False)
    async def never(bodies: list[str]) -> None:
        chosen.append("never")

    @subscriber
    async def always(bodies: list[str], msg: OutboxBatchMessage) -> None:
        chosen.append("always")
        await msg.items[0].reject("no such customer")

    sent = await publish(broker, "a", "b")
    async with started(broker):
        await heard.until(lambda: len(heard.outcomes) == 2)

    assert chosen == ["always"]
    assert [heard.of(each) for each in sent] == [[Dead("no such customer")], [Done()]]


async def test_what_is_taken_by_hand_comes_one_at_a_time_and_its_decision_is_written(make: Make) -> None:
    broker = make()
    subscriber = broker.subscriber("q", batch=True)

    async with broker:
        await broker.publish_batch("a", "b", queue="q")
        message = await subscriber.get_one(timeout=1)
        assert message is not None
        said = await message.decode()
        await message.ack()
        left = await broker.pending("q")

    assert (said, [each.body for each in left]) == ("a", [b"b"])
