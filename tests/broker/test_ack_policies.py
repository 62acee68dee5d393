"""What each acknowledgement policy makes of what goes wrong, wherever that happens. Nothing unknown is ever done."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from faststream import AckPolicy, BaseMiddleware, Depends
from faststream.exceptions import (
    AckMessage,
    HandlerException,
    NackMessage,
    RejectMessage,
    SkipMessage,
    StopConsume,
)

from nightmail import Delivery, OutboxBroker, PostponeMessage
from nightmail.annotations import OutboxBatchMessage, OutboxMessage, OutboxSession
from nightmail.outcome import Dead, Done, Outcome, Postpone, Reason, Release, Retry
from nightmail.testing import TestOutboxBroker
from tests.broker.callers import Ledger
from tests.broker.support import (
    IN_A_MINUTE,
    MINUTE,
    Heard,
    Make,
    in_memory,
    on_sqlite,
    one_or_many,
    soon,
    started,
)

BY_POLICY = {
    AckPolicy.NACK_ON_ERROR: Retry(MINUTE),
    AckPolicy.REJECT_ON_ERROR: Dead(Reason.REJECTED),
    AckPolicy.ACK: Done(),
    AckPolicy.MANUAL: Retry(MINUTE),
}
policies = pytest.mark.parametrize("policy", BY_POLICY, ids=lambda policy: policy.name)


class Unheard(HandlerException):
    """A decision of the application's own, which is not understood here."""


Subscribe = Callable[[str, AckPolicy], None]


async def under_each_policy(
    broker: OutboxBroker, heard: Heard, subscribe: Subscribe
) -> dict[AckPolicy, Outcome]:
    """How a message ends under each policy, with a queue and a subscriber for each."""
    for policy in BY_POLICY:
        subscribe(policy.name, policy)
    ended: dict[AckPolicy, Outcome] = {}
    async with started(broker):
        for policy in BY_POLICY:
            sent = await broker.publish("x", policy.name)
            await heard.until(lambda sent=sent: bool(heard.of(sent)))  # type: ignore[misc]
            (ended[policy],) = heard.of(sent)
    return ended


def always(outcome: Outcome) -> dict[AckPolicy, Outcome]:
    """The same under each policy."""
    return dict.fromkeys(BY_POLICY, outcome)


# ── wherever it is raised ─────────────────────────────────────────────────────────────────────────────────

PLACES = ["receiving", "filtering", "before", "handling", "after", "tearing down", "replying", "leaving"]


async def raising(
    error: BaseException, place: str, make: Make, heard: Heard, *, batch: bool
) -> dict[AckPolicy, Outcome]:
    """How a message ends under each policy when this is raised at that place on its way."""

    def trouble(here: str) -> None:
        if here == place:
            raise error

    class Middleware(BaseMiddleware):
        async def on_receive(self) -> None:
            trouble("receiving")

        async def consume_scope(self, call_next: Callable[[Any], Awaitable[Any]], msg: Any) -> Any:
            trouble("before")
            result = await call_next(msg)
            trouble("after")
            return result

        async def publish_scope(self, call_next: Callable[[Any], Awaitable[Any]], cmd: Any) -> Any:
            if cmd.destination == "replies":
                trouble("replying")
            return await call_next(cmd)

        async def after_processed(self, *raised: Any) -> bool | None:
            trouble("leaving")
            return await super().after_processed(*raised)

    async def dependency() -> AsyncIterator[None]:
        yield
        trouble("tearing down")

    async def chosen(_message: Any) -> bool:
        trouble("filtering")
        return True

    broker = make(retry=IN_A_MINUTE, middlewares=[Middleware])

    def subscribe(queue: str, policy: AckPolicy) -> None:
        @broker.publisher("replies")
        @broker.subscriber(queue, ack_policy=policy, batch=batch)(filter=chosen)
        async def handle(body: Any, _teardown: Any = Depends(dependency)) -> str:
            trouble("handling")
            return "an answer"

    return await under_each_policy(broker, heard, subscribe)


@in_memory
@one_or_many
@pytest.mark.parametrize("place", PLACES)
async def test_an_error_means_the_same_wherever_it_is_raised(
    make: Make, heard: Heard, place: str, batch: bool
) -> None:
    ended = await raising(RuntimeError("no"), place, make, heard, batch=batch)

    assert ended == {**BY_POLICY, AckPolicy.REJECT_ON_ERROR: Dead(Reason.REJECTED, "RuntimeError('no')")}


@in_memory
@one_or_many
@pytest.mark.parametrize("place", PLACES)
async def test_a_decision_counts_wherever_it_is_raised(
    make: Make, heard: Heard, place: str, batch: bool
) -> None:
    ended = await raising(RejectMessage(reason="fraud"), place, make, heard, batch=batch)

    assert ended == always(Dead("fraud"))


@in_memory
@one_or_many
@pytest.mark.parametrize("raised", [SkipMessage(), Unheard(), AckMessage(forever=True)], ids=repr)
@pytest.mark.parametrize("place", PLACES)
async def test_what_is_not_understood_is_tried_again_wherever_it_is_raised(
    make: Make, heard: Heard, place: str, raised: Exception, batch: bool
) -> None:
    ended = await raising(raised, place, make, heard, batch=batch)

    assert ended == always(Retry(MINUTE))


@in_memory
@one_or_many
async def test_a_message_that_no_handler_wants_is_decided_by_the_policy(
    make: Make, heard: Heard, batch: bool
) -> None:
    broker = make(retry=IN_A_MINUTE)

    def subscribe(queue: str, policy: AckPolicy) -> None:
        @broker.subscriber(queue, ack_policy=policy, batch=batch)(filter=lambda _message: False)
        async def never(body: Any) -> None: ...

    ended = await under_each_policy(broker, heard, subscribe)

    assert {policy: type(outcome) for policy, outcome in ended.items()} == {
        AckPolicy.NACK_ON_ERROR: Retry,
        AckPolicy.REJECT_ON_ERROR: Dead,
        AckPolicy.ACK: Done,
        AckPolicy.MANUAL: Retry,
    }


@in_memory
@one_or_many
@pytest.mark.parametrize("what", ["parser", "decoder"])
@pytest.mark.parametrize("raised", [RuntimeError("no"), AckMessage()], ids=repr)
async def test_what_cannot_be_read_is_buried_under_every_policy(
    make: Make, heard: Heard, what: str, raised: Exception, batch: bool
) -> None:
    broker = make(retry=IN_A_MINUTE)

    async def broken(_msg: Any, original: Any) -> Any:
        raise raised

    def subscribe(queue: str, policy: AckPolicy) -> None:
        options: Any = {"ack_policy": policy, "batch": batch, what: broken}

        @broker.subscriber(queue, **options)
        async def handle(body: Any) -> None: ...

    ended = await under_each_policy(broker, heard, subscribe)

    assert ended == always(Dead(Reason.UNDECODABLE, repr(raised), ran=False))


# ── however it ends ───────────────────────────────────────────────────────────────────────────────────────


@in_memory
@one_or_many
@pytest.mark.parametrize("ending", [StopConsume, SystemExit])
async def test_a_handler_that_stops_its_subscriber_has_failed(
    make: Make, heard: Heard, ending: type[BaseException], batch: bool
) -> None:
    assert await raising(ending(), "handling", make, heard, batch=batch) == BY_POLICY


@in_memory
@one_or_many
async def test_a_handler_that_cancels_itself_is_tried_again(make: Make, heard: Heard, batch: bool) -> None:
    ended = await raising(asyncio.CancelledError(), "handling", make, heard, batch=batch)

    assert ended == always(Retry(MINUTE))


Saying = Callable[[Any], Awaitable[None]]
SAID_FIRST: list[tuple[str, Saying, Exception, Outcome]] = [
    ("ack", lambda msg: msg.ack(), RuntimeError("no"), Done()),
    ("ack", lambda msg: msg.ack(), SkipMessage(), Done()),
    ("ack", lambda msg: msg.ack(), NackMessage(), Done()),
    ("nack", lambda msg: msg.nack(), AckMessage(), Retry(MINUTE)),
    ("nack", lambda msg: msg.nack(), PostponeMessage(9), Retry(MINUTE)),
    ("nack in 5", lambda msg: msg.nack(delay=5), AckMessage(), Retry(timedelta(seconds=5))),
    ("reject", lambda msg: msg.reject("fraud"), AckMessage(), Dead("fraud")),
    ("reject", lambda msg: msg.reject("fraud"), Unheard(), Dead("fraud")),
    ("postpone", lambda msg: msg.postpone(9), RejectMessage(), Postpone(timedelta(seconds=9))),
    ("postpone", lambda msg: msg.postpone(9), RuntimeError("no"), Postpone(timedelta(seconds=9))),
]


@in_memory
@one_or_many
@pytest.mark.parametrize(
    ("say", "raised", "outcome"),
    [pytest.param(*case, id=f"{name}, {case[1]!r}") for name, *case in SAID_FIRST],
)
async def test_what_was_said_first_counts_whatever_is_raised_then(
    make: Make, heard: Heard, say: Saying, raised: Exception, outcome: Outcome, batch: bool
) -> None:
    broker = make(retry=IN_A_MINUTE)
    kind: Any = OutboxBatchMessage if batch else OutboxMessage

    def subscribe(queue: str, policy: AckPolicy) -> None:
        @broker.subscriber(queue, ack_policy=policy, batch=batch)
        async def handle(body: Any, msg: kind) -> None:
            await say(msg)
            raise raised

    assert await under_each_policy(broker, heard, subscribe) == always(outcome)


@in_memory
@policies
@pytest.mark.parametrize(
    ("say", "outcome"),
    [
        (lambda msg: msg.ack(), Done()),
        (lambda msg: msg.reject("fraud"), Dead("fraud")),
        # Not even a failure: it was interrupted, and the next free worker gets it.
        (lambda msg: msg.nack(), Release()),
    ],
    ids=["ack", "reject", "nack"],
)
async def test_what_was_said_before_a_shutdown_interrupted_it_stands(
    make: Make, heard: Heard, say: Saying, outcome: Outcome, policy: AckPolicy
) -> None:
    broker, running = make(retry=IN_A_MINUTE, graceful_timeout=0), asyncio.Event()

    @broker.subscriber("q", ack_policy=policy)
    async def handle(body: str, msg: OutboxMessage) -> None:
        await say(msg)
        running.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ConnectionError("the driver's word for it") from None

    async with started(broker):
        sent = await broker.publish("x", "q")
        await soon(running)

    assert heard.of(sent) == [outcome]


# ── transactions ──────────────────────────────────────────────────────────────────────────────────────────

not_understood = pytest.mark.parametrize("raised", [SkipMessage(), NackMessage(dellay=3)], ids=repr)


@on_sqlite
@not_understood
async def test_an_acknowledgement_that_was_rolled_back_by_what_is_not_understood_is_none(
    make: Make, heard: Heard, ledger: Ledger, raised: Exception
) -> None:
    broker = make(retry=IN_A_MINUTE)

    def subscribe(queue: str, policy: AckPolicy) -> None:
        @broker.subscriber(queue, ack_policy=policy)
        async def handle(body: str, msg: OutboxMessage) -> None:
            async with ledger.sessions() as session, session.begin():
                await ledger.write(session, body)
                await msg.ack(session=session)
                raise raised

    assert await under_each_policy(broker, heard, subscribe) == always(Retry(MINUTE))
    assert await ledger.effects() == []


@on_sqlite
@policies
@not_understood
async def test_an_acknowledgement_that_was_committed_stands_whatever_is_raised_then(
    make: Make, heard: Heard, ledger: Ledger, raised: Exception, policy: AckPolicy
) -> None:
    broker = make(retry=IN_A_MINUTE)

    @broker.subscriber("q", ack_policy=policy)
    async def handle(body: str, msg: OutboxMessage) -> None:
        async with ledger.sessions() as session, session.begin():
            await ledger.write(session, body)
            await msg.ack(session=session)
        raise raised

    async with started(broker):
        sent = await broker.publish("tea", "q")
        await heard.until(lambda: heard.uncertainties == [sent])
        assert await broker.stats() == {}

    assert heard.lost == []
    assert await ledger.effects() == ["tea"]


@on_sqlite
@one_or_many
@not_understood
async def test_a_session_is_undone_by_what_is_not_understood(
    make: Make, heard: Heard, ledger: Ledger, raised: Exception, batch: bool
) -> None:
    broker = make(session_factory=ledger.sessions, retry=IN_A_MINUTE)

    def subscribe(queue: str, policy: AckPolicy) -> None:
        @broker.subscriber(queue, ack_policy=policy, batch=batch)
        async def handle(body: Any, session: OutboxSession) -> None:
            await ledger.write(session, queue)
            raise raised

    assert await under_each_policy(broker, heard, subscribe) == always(Retry(MINUTE))
    assert heard.acked == []
    assert await ledger.effects() == []


@on_sqlite
@one_or_many
async def test_a_session_is_undone_by_a_decision_that_is_raised_while_the_answer_is_published(
    make: Make, heard: Heard, ledger: Ledger, batch: bool
) -> None:
    class Refuses(BaseMiddleware):
        async def publish_scope(self, call_next: Callable[[Any], Awaitable[Any]], cmd: Any) -> Any:
            if cmd.destination == "replies":
                raise NackMessage(delay=5)
            return await call_next(cmd)

    broker = make(session_factory=ledger.sessions, middlewares=[Refuses])

    def subscribe(queue: str, policy: AckPolicy) -> None:
        @broker.publisher("replies")
        @broker.subscriber(queue, ack_policy=policy, batch=batch)
        async def handle(body: Any, session: OutboxSession) -> str:
            await ledger.write(session, queue)
            return "an answer"

    assert await under_each_policy(broker, heard, subscribe) == always(Retry(timedelta(seconds=5)))
    assert await ledger.effects() == []


# ── what others see of it ─────────────────────────────────────────────────────────────────────────────────


@in_memory
@one_or_many
@pytest.mark.parametrize("said", [None, "ack", "nack", "reject"])
async def test_a_middleware_sees_what_the_handler_has_said_and_nothing_that_a_policy_will_say(
    make: Make, heard: Heard, said: str | None, batch: bool
) -> None:
    seen: list[str | None] = []

    class Looks(BaseMiddleware):
        async def consume_scope(self, call_next: Callable[[Any], Awaitable[Any]], msg: Any) -> Any:
            self.message = msg
            try:
                return await call_next(msg)
            finally:
                seen.append(msg.committed and msg.committed.value)

        async def after_processed(self, *raised: Any) -> bool | None:
            seen.append(self.message.committed and self.message.committed.value)
            return await super().after_processed(*raised)

    broker = make(middlewares=[Looks])
    kind: Any = OutboxBatchMessage if batch else OutboxMessage

    @broker.subscriber("q", batch=batch)
    async def handle(body: Any, msg: kind) -> None:
        if said is not None:
            await getattr(msg, said)()

    async with started(broker):
        sent = await broker.publish("x", "q")
        await heard.until(lambda: bool(heard.of(sent)))

    assert seen == [said and f"{said}ed".upper()] * 2


@one_or_many
@policies
@pytest.mark.parametrize("raised", [RuntimeError("no"), NackMessage(), SkipMessage()], ids=repr)
async def test_a_failure_is_one_line_and_a_decision_is_none(
    heard: Heard, caplog: pytest.LogCaptureFixture, raised: Exception, policy: AckPolicy, batch: bool
) -> None:
    logger = logging.getLogger("tests.broker.policies")
    broker = OutboxBroker("memory://", logger=logger, observer=heard, retry=IN_A_MINUTE)

    @broker.subscriber("q", ack_policy=policy, batch=batch)
    async def handle(body: Any) -> None:
        raise raised

    async with started(broker):
        sent = await broker.publish("x", "q")
        await heard.until(lambda: bool(heard.of(sent)))

    logged = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(logged) == (not isinstance(raised, NackMessage))
    assert not any(record.exc_info for record in logged)
    if isinstance(raised, RuntimeError):
        assert "attempt 1 failed: RuntimeError('no'); " in logged[0].getMessage()


@one_or_many
async def test_a_rejected_message_tells_the_error_and_not_what_caused_it(heard: Heard, batch: bool) -> None:
    broker = OutboxBroker("memory://", logger=None, observer=heard)

    @broker.subscriber("q", ack_policy=AckPolicy.REJECT_ON_ERROR, batch=batch)
    async def handle(body: Any) -> None:
        raise RuntimeError("no such customer") from KeyError(7)

    async with started(broker):
        sent = await broker.publish("x", "q")
        await heard.until(lambda: bool(heard.of(sent)))

    assert heard.of(sent) == [Dead("rejected", "RuntimeError('no such customer')")]


@in_memory
async def test_an_observer_that_raises_changes_no_decision(make: Make) -> None:
    class Broken(Heard):
        def failed(self, delivery: Delivery, error: BaseException) -> None:
            raise RuntimeError("the metrics are down")

    heard = Broken()
    broker = make(observer=heard, retry=IN_A_MINUTE)

    @broker.subscriber("q", ack_policy=AckPolicy.REJECT_ON_ERROR)
    async def handle(body: str) -> None:
        raise ValueError("no such customer")

    async with started(broker):
        sent = await broker.publish("tea", "q")
        await heard.until(lambda: bool(heard.of(sent)))

    assert heard.of(sent) == [Dead("rejected", "ValueError('no such customer')")]


# ── with the test broker, and by hand ─────────────────────────────────────────────────────────────────────


@one_or_many
@pytest.mark.parametrize(
    ("policy", "waiting", "dead"),
    [
        (AckPolicy.NACK_ON_ERROR, 1, 0),
        (AckPolicy.REJECT_ON_ERROR, 0, 1),
        (AckPolicy.ACK, 0, 0),
        (AckPolicy.MANUAL, 1, 0),
    ],
)
async def test_an_error_comes_out_of_the_test_broker_under_every_policy(
    policy: AckPolicy, waiting: int, dead: int, batch: bool
) -> None:
    broker, error = OutboxBroker("memory://", logger=None, retry=IN_A_MINUTE), RuntimeError("no")

    @broker.subscriber("q", ack_policy=policy, batch=batch)
    async def handle(body: Any) -> None:
        raise error

    tested = TestOutboxBroker(broker)
    async with tested as br:
        with pytest.raises(RuntimeError, match="no"):
            await br.publish("x", "q")

        assert tested.errors == [error]
        assert (len(await tested.pending("q")), len(await tested.dead_letters("q"))) == (waiting, dead)


@one_or_many
@policies
async def test_a_decision_that_is_not_understood_is_tried_again_when_its_time_has_come(
    policy: AckPolicy, batch: bool
) -> None:
    broker, endings = OutboxBroker("memory://", logger=None, retry=IN_A_MINUTE), [AckMessage(), SkipMessage()]

    @broker.subscriber("q", ack_policy=policy, batch=batch)
    async def handle(body: Any) -> None:
        raise endings.pop()

    tested = TestOutboxBroker(broker, raise_errors=False)
    async with tested as br:
        await br.publish("x", "q")
        assert len(await tested.pending("q")) == 1
        await tested.advance(MINUTE)
        assert endings == []
        assert await br.stats() == {}


@in_memory
async def test_no_policy_speaks_for_what_is_taken_by_hand(make: Make) -> None:
    class Fails(BaseMiddleware):
        async def consume_scope(self, call_next: Callable[[Any], Awaitable[Any]], msg: Any) -> Any:
            raise RuntimeError("no")

    broker = make(retry=IN_A_MINUTE, middlewares=[Fails])
    subscriber = broker.subscriber("q", ack_policy=AckPolicy.ACK)

    async with started(broker):
        await broker.publish("x", "q")
        with pytest.raises(RuntimeError, match="no"):
            await subscriber.get_one(timeout=1)

        assert [waiting.attempts for waiting in await broker.pending("q")] == [1]
