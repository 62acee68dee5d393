"""Every way in which a handler can say how it ended, and every way in which it can fail to."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from faststream import AckPolicy
from faststream.exceptions import AckMessage, NackMessage, RejectMessage, SkipMessage

from nightmail import ConstantRetry, Delivery, PostponeMessage
from nightmail.annotations import OutboxMessage
from nightmail.errors import LeaseLost
from nightmail.outcome import Dead, Done, Outcome, Postpone, Reason, Retry
from nightmail.store import Settlement
from tests.broker.support import IN_A_MINUTE, MINUTE, Heard, Make, in_memory, started

POLICIES = [AckPolicy.NACK_ON_ERROR, AckPolicy.REJECT_ON_ERROR, AckPolicy.ACK, AckPolicy.MANUAL]

Ending = Callable[[Any], Awaitable[None]]


async def acks(msg: Any) -> None:
    await msg.ack()


async def nacks(msg: Any) -> None:
    await msg.nack()


async def nacks_with_a_delay(msg: Any) -> None:
    await msg.nack(delay=timedelta(hours=1))


async def nacks_with_a_negative_delay(msg: Any) -> None:
    await msg.nack(delay=-5)


async def rejects(msg: Any) -> None:
    await msg.reject()


async def rejects_with_a_reason(msg: Any) -> None:
    await msg.reject("no such customer")


async def postpones(msg: Any) -> None:
    await msg.postpone(30)


async def raises_ack(_msg: Any) -> None:
    raise AckMessage


async def raises_nack(_msg: Any) -> None:
    raise NackMessage


async def raises_nack_with_a_delay(_msg: Any) -> None:
    raise NackMessage(delay=30)


async def raises_reject(_msg: Any) -> None:
    raise RejectMessage


async def raises_reject_with_a_reason(_msg: Any) -> None:
    raise RejectMessage(reason="no such customer")


async def raises_postpone(_msg: Any) -> None:
    raise PostponeMessage(timedelta(seconds=30))


HALF_A_MINUTE = timedelta(seconds=30)
ENDINGS: list[tuple[Ending, Outcome]] = [
    (acks, Done()),
    (nacks, Retry(MINUTE)),
    (nacks_with_a_delay, Retry(timedelta(hours=1))),
    (nacks_with_a_negative_delay, Retry(timedelta(0))),
    (rejects, Dead(Reason.REJECTED)),
    (rejects_with_a_reason, Dead("no such customer")),
    (postpones, Postpone(HALF_A_MINUTE)),
    (raises_ack, Done()),
    (raises_nack, Retry(MINUTE)),
    (raises_nack_with_a_delay, Retry(HALF_A_MINUTE)),
    (raises_reject, Dead(Reason.REJECTED)),
    (raises_reject_with_a_reason, Dead("no such customer")),
    (raises_postpone, Postpone(HALF_A_MINUTE)),
]


@pytest.mark.parametrize("url", ["memory", "sqlite"], indirect=True)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("ending", "outcome"), ENDINGS)
async def test_whatever_a_handler_says_is_what_happens_under_every_policy(
    make: Make, heard: Heard, ending: Ending, outcome: Outcome, policy: AckPolicy
) -> None:
    broker = make(retry=IN_A_MINUTE)

    @broker.subscriber("q", ack_policy=policy)
    async def handle(body: str, msg: OutboxMessage) -> None:
        await ending(msg)

    async with started(broker):
        sent = await broker.publish("x", "q")
        await heard.until(lambda: bool(heard.of(sent)))

    assert heard.of(sent)[0] == outcome


async def raises_nack_with_an_unknown_option(_msg: Any) -> None:
    raise NackMessage(dellay=30)


async def raises_ack_with_an_unknown_option(_msg: Any) -> None:
    raise AckMessage(forever=True)


async def raises_reject_with_an_unknown_option(_msg: Any) -> None:
    raise RejectMessage(requeue=False)


async def calls_nack_with_nonsense(msg: Any) -> None:
    await msg.nack(delay="soon")


async def skips(_msg: Any) -> None:
    raise SkipMessage


async def returns_nothing(_msg: Any) -> None:
    return


@pytest.mark.parametrize("url", ["memory", "sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("ending", "policy"),
    [
        (raises_nack_with_an_unknown_option, AckPolicy.NACK_ON_ERROR),
        (raises_ack_with_an_unknown_option, AckPolicy.NACK_ON_ERROR),
        (raises_reject_with_an_unknown_option, AckPolicy.NACK_ON_ERROR),
        (raises_nack_with_an_unknown_option, AckPolicy.MANUAL),
        (raises_ack_with_an_unknown_option, AckPolicy.MANUAL),
        (raises_reject_with_an_unknown_option, AckPolicy.MANUAL),
        (calls_nack_with_nonsense, AckPolicy.NACK_ON_ERROR),
        (calls_nack_with_nonsense, AckPolicy.MANUAL),
        (skips, AckPolicy.NACK_ON_ERROR),
        (skips, AckPolicy.MANUAL),
        (returns_nothing, AckPolicy.MANUAL),
    ],
)
async def test_what_cannot_be_understood_is_retried_and_never_deleted(
    make: Make, heard: Heard, ending: Ending, policy: AckPolicy
) -> None:
    broker = make(retry=IN_A_MINUTE)

    @broker.subscriber("q", ack_policy=policy)
    async def handle(body: str, msg: OutboxMessage) -> None:
        await ending(msg)

    async with started(broker):
        sent = await broker.publish("x", "q")
        await heard.until(lambda: bool(heard.of(sent)))
        assert [waiting.attempts for waiting in await broker.pending("q")] == [1]

    assert heard.of(sent) == [Retry(MINUTE)]


@in_memory
async def test_a_delay_of_ones_own_does_not_outwit_the_retry_policy(make: Make, heard: Heard) -> None:
    broker = make(retry=ConstantRetry(delay=MINUTE, jitter=0, max_attempts=3))

    @broker.subscriber("q")
    async def handle(body: str, msg: OutboxMessage) -> None:
        if msg.attempt == 1:
            await msg.nack(delay=0)
        else:
            raise NackMessage(delay=0)

    async with started(broker):
        sent = await broker.publish("x", "q")
        await heard.until(lambda: len(heard.of(sent)) == 3)

    assert heard.of(sent) == [Retry(), Retry(), Dead(Reason.RETRIES_EXHAUSTED)]


@in_memory
async def test_a_policy_that_rejects_errors_keeps_what_went_wrong(make: Make, heard: Heard) -> None:
    broker = make(describe_error=lambda error: f"redacted {type(error).__name__}")

    @broker.subscriber("q", ack_policy=AckPolicy.REJECT_ON_ERROR)
    async def handle(body: str) -> None:
        raise RuntimeError("a secret")

    async with started(broker):
        sent = await broker.publish("x", "q")
        await heard.until(lambda: bool(heard.of(sent)))
        (letter,) = await broker.dead_letters("q")

    assert (letter.reason, letter.error) == ("rejected", "redacted RuntimeError")
    assert heard.errors == ["RuntimeError"]


def _raises(error: BaseException) -> str:
    raise ValueError("cannot be described")


@in_memory
@pytest.mark.parametrize("batch", [False, True])
async def test_what_cannot_be_decoded_dies_without_an_attempt_however_its_error_is_described(
    make: Make, heard: Heard, batch: bool
) -> None:
    broker = make(describe_error=_raises)

    @broker.subscriber("q", batch=batch)
    async def handle(body: Any) -> None: ...

    async with started(broker):
        await broker.publish(b"{not json", "q", headers={"content-type": "application/json"})
        await heard.until(lambda: bool(heard.outcomes))
        (letter,) = await broker.dead_letters("q")

    assert (letter.reason, letter.attempts) == ("undecodable", 0)
    assert letter.error is not None
    assert "describing it raised ValueError" in letter.error


@in_memory
async def test_an_acknowledgement_that_was_refused_is_never_taken_for_done(make: Make, heard: Heard) -> None:
    broker = make(retry=IN_A_MINUTE)

    @broker.subscriber("q", ack_policy=AckPolicy.ACK)
    async def handle(body: str, msg: OutboxMessage) -> None:
        await msg.ack(session="no session at all")

    async with started(broker):
        sent = await broker.publish("x", "q")
        await heard.until(lambda: bool(heard.of(sent)))

    assert heard.of(sent) == [Retry(MINUTE)]


@in_memory
async def test_the_first_outcome_wins(make: Make, heard: Heard) -> None:
    broker = make(retry=IN_A_MINUTE)

    @broker.subscriber("q")
    async def handle(body: str, msg: OutboxMessage) -> None:
        await msg.postpone(30)
        await msg.ack()
        await msg.reject()
        raise RuntimeError("and then this")

    async with started(broker):
        sent = await broker.publish("x", "q")
        await heard.until(lambda: bool(heard.of(sent)))

    assert heard.of(sent) == [Postpone(HALF_A_MINUTE)]


async def test_a_message_that_was_postponed_often_is_not_buried(make: Make, heard: Heard) -> None:
    broker = make(max_deliveries=3)
    seen: list[tuple[int, int]] = []

    @broker.subscriber("q")
    async def handle(body: str, msg: OutboxMessage) -> None:
        seen.append((msg.attempt, msg.deliveries))
        if len(seen) < 6:
            raise PostponeMessage(0.1)

    async with started(broker):
        sent = await broker.publish("x", "q")
        await heard.until(lambda: Done() in heard.of(sent))

    assert seen == [(1, 1)] * 6


@pytest.mark.parametrize("url", ["memory", "sqlite"], indirect=True)
async def test_a_policy_sees_the_error_and_one_that_raises_buries_the_message(
    make: Make, heard: Heard
) -> None:
    shown: list[Exception | None] = []

    def policy(delivery: Delivery, error: Exception | None) -> Outcome:
        shown.append(error)
        raise KeyError("the policy is broken")

    broker = make(retry=policy)
    failure = RuntimeError("the handler is broken")

    @broker.subscriber("q")
    async def handle(body: str) -> None:
        raise failure

    async with started(broker):
        sent = await broker.publish("x", "q")
        await heard.until(lambda: bool(heard.of(sent)))
        (letter,) = await broker.dead_letters("q")

    assert shown == [failure]
    assert letter.reason == "policy_error"
    assert letter.error == "KeyError('the policy is broken')"


async def test_a_lease_can_be_extended_and_a_lost_one_says_so(make: Make, heard: Heard) -> None:
    broker, lost = make(retry=IN_A_MINUTE), asyncio.Event()
    other = broker.store

    @broker.subscriber("q")
    async def handle(body: str, msg: OutboxMessage) -> None:
        await msg.extend(timedelta(hours=1))
        await msg.reject("kept")
        # It is ended under the same lease, so that the handler has lost it.
        await other.settle([Settlement(msg.delivery, Done())])
        with pytest.raises(LeaseLost):
            await msg.extend(60)
        lost.set()

    async with started(broker):
        sent = await broker.publish("x", "q")
        await heard.until(lambda: heard.lost == [sent])

    assert lost.is_set()
