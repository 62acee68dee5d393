"""How the messages of a batch are read: one by one, on the first look, and what cannot be read is never done."""

from __future__ import annotations

import json
import zlib
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from copy import copy
from datetime import timedelta
from typing import Any

import pytest
from faststream import AckPolicy, BaseMiddleware
from faststream.exceptions import AckMessage, SkipMessage
from faststream.message.utils import decode_message, encode_message

from nightmail import OutboxBroker
from nightmail.annotations import OutboxBatchMessage, OutboxSession
from nightmail.message import Message
from nightmail.outcome import Dead, Done, Outcome, Reason, Retry
from nightmail.stores.memory import MemoryData, MemoryStore
from nightmail.testing import TestOutboxBroker
from tests.broker.callers import Ledger
from tests.broker.support import IN_A_MINUTE, MINUTE, Heard, Make, in_memory, on_sqlite, one_or_many, started

AS_JSON = {"content-type": "application/json"}
POLICIES = [AckPolicy.NACK_ON_ERROR, AckPolicy.REJECT_ON_ERROR, AckPolicy.ACK, AckPolicy.MANUAL]

policies = pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)

Next = Callable[[Any], Awaitable[Any]]


async def publish_around_a_broken_one(broker: OutboxBroker) -> list[int | None]:
    """Three messages, of which the second is no JSON although it says so."""
    async with broker:
        return [
            await broker.publish({"cups": 1}, "q", headers={"number": 1}),
            await broker.publish(b"{not json", "q", headers={**AS_JSON, "number": 2}),
            await broker.publish({"cups": 3}, "q", headers={"number": 3}),
        ]


def reasons(outcomes: list[Outcome]) -> list[str]:
    """Why these are dead letters whose handler did not run."""
    return [outcome.reason for outcome in outcomes if isinstance(outcome, Dead) and not outcome.ran]


# ── the first look ────────────────────────────────────────────────────────────────────────────────────────


async def at_nothing(_message: Any) -> None: ...


async def at_the_items(message: Any) -> None:
    assert [item.headers["number"] for item in message.items] == [1, 2, 3]


async def at_the_headers(message: Any) -> None:
    assert [headers["number"] for headers in message.batch_headers] == [1, 2, 3]


async def at_what_it_says(message: Any) -> None:
    assert await message.decode() == [{"cups": 1}, {"cups": 3}]


async def at_what_it_says_twice(message: Any) -> None:
    await at_what_it_says(message)
    message.clear_cache()
    await at_what_it_says(message)


async def at_a_copy(message: Any) -> None:
    other = copy(message)
    await at_the_items(other)
    await at_what_it_says(other)


async def at_what_a_copy_says(message: Any) -> None:
    await at_what_it_says(copy(message))


async def at_how_it_is_printed(message: Any) -> None:
    assert repr(message).startswith("OutboxBatchMessage(")


LOOKS = [
    at_nothing,
    at_the_items,
    at_the_headers,
    at_what_it_says,
    at_what_it_says_twice,
    at_a_copy,
    at_what_a_copy_says,
    at_how_it_is_printed,
]


@in_memory
@pytest.mark.parametrize("where", ["middleware", "filter", "filter of another handler"])
@pytest.mark.parametrize("look", LOOKS)
async def test_a_caller_that_looks_first_changes_nothing_for_the_handler(
    make: Make, heard: Heard, look: Next, where: str
) -> None:
    got: list[Any] = []

    class Looks(BaseMiddleware):
        async def consume_scope(self, call_next: Next, msg: Any) -> Any:
            if where == "middleware":
                await look(msg)
            return await call_next(msg)

    async def no(message: Any) -> bool:
        if where == "filter of another handler":
            await look(message)
        return False

    async def yes(message: Any) -> bool:
        if where == "filter":
            await look(message)
        return True

    broker = make(retry=IN_A_MINUTE, middlewares=[Looks])
    subscriber = broker.subscriber("q", batch=True)

    @subscriber(filter=no)
    async def never(bodies: list[Any]) -> None:
        got.append("never")

    @subscriber(filter=yes)
    async def handle(bodies: list[Any], msg: OutboxBatchMessage) -> None:
        numbers = [headers["number"] for headers in msg.batch_headers]
        got.append((bodies, [item.id for item in msg.items], numbers, msg.headers["number"]))

    first, broken, last = await publish_around_a_broken_one(broker)
    async with started(broker):
        await heard.until(lambda: len(heard.outcomes) == 3)

    assert got == [([{"cups": 1}, {"cups": 3}], [first, last], [1, 3], 1)]
    assert (heard.of(first), heard.of(last)) == ([Done()], [Done()])
    assert reasons(heard.of(broken)) == ["undecodable"]


@in_memory
async def test_what_a_middleware_makes_of_the_items_is_what_is_read(make: Make, heard: Heard) -> None:
    got: list[Any] = []

    class Unpacks(BaseMiddleware):
        async def consume_scope(self, call_next: Next, msg: Any) -> Any:
            for item in msg.items:
                item.body, item.content_type = zlib.decompress(item.body), "application/json"
            return await call_next(msg)

    broker = make(middlewares=[Unpacks])

    @broker.subscriber("q", batch=True)
    async def handle(bodies: list[Any]) -> None:
        got.append(bodies)

    async with broker:
        await broker.publish_batch(*(zlib.compress(b'{"cups":%d}' % cups) for cups in (1, 2)), queue="q")
    async with started(broker):
        await heard.until(lambda: len(heard.outcomes) == 2)

    assert got == [[{"cups": 1}, {"cups": 2}]]


@in_memory
async def test_a_decision_of_a_middleware_on_an_item_counts(make: Make, heard: Heard) -> None:
    class Refuses(BaseMiddleware):
        async def consume_scope(self, call_next: Next, msg: Any) -> Any:
            await msg.items[0].reject("no such customer")
            return await call_next(msg)

    broker = make(middlewares=[Refuses])

    @broker.subscriber("q", batch=True)
    async def handle(bodies: list[str]) -> None: ...

    async with broker:
        sent = await broker.publish_batch("a", "b", queue="q")
    async with started(broker):
        await heard.until(lambda: len(heard.outcomes) == 2)

    assert [heard.of(each) for each in sent] == [[Dead("no such customer")], [Done()]]


# ── one at a time, or in a batch, or by a decoder of one's own ────────────────────────────────────────────

BODIES: list[tuple[bytes, Any, Any]] = [
    (b'{"a":1}', "application/json", {"a": 1}),
    (b'{"a":1}', "application/json; charset=utf-8", {"a": 1}),
    (b'{"a":1}', None, {"a": 1}),  # JSON by its looks.
    (b'"1"', "text/plain", '"1"'),
    (b"\xff\x00", None, b"\xff\x00"),
    (b"1", "image/png", b"1"),
    (b"1", 17, b"1"),  # No content type, whatever it is.
    (b"null", "application/json", None),
]


@in_memory
@pytest.mark.parametrize("how", ["one", "batch", "batch that is looked at", "batch with a decoder"])
async def test_a_body_says_the_same_however_it_is_read(make: Make, heard: Heard, how: str) -> None:
    got: list[Any] = []

    class Looks(BaseMiddleware):
        async def consume_scope(self, call_next: Next, msg: Any) -> Any:
            assert len(msg.items) == len(BODIES)
            return await call_next(msg)

    async def own(msg: Any, original: Any) -> Any:
        return await original(msg)

    broker = make(middlewares=[Looks] if how == "batch that is looked at" else [])
    options: Any = {"decoder": own} if how == "batch with a decoder" else {}

    @broker.subscriber("q", batch=how != "one", max_workers=1, **options)
    async def handle(body: Any) -> None:
        if how == "one":
            got.append(body)
        else:
            got.extend(body)

    async with broker:
        for body, content_type, _ in BODIES:
            headers = {} if content_type is None else {"content-type": content_type}
            await broker.publish(body, "q", headers=headers)
    async with started(broker):
        await heard.until(lambda: len(heard.outcomes) == len(BODIES))

    assert got == [said for _, _, said in BODIES]
    assert {outcome for _, outcome in heard.outcomes} == {Done()}


@in_memory
@one_or_many
async def test_the_error_of_a_body_that_cannot_be_read_is_its_own(
    make: Make, heard: Heard, batch: bool
) -> None:
    broker = make(describe_error=lambda error: type(error).__name__)

    @broker.subscriber("q", batch=batch)
    async def handle(body: Any) -> None: ...

    async with started(broker):
        sent = await broker.publish(b"\xff", "q", headers={"content-type": "text/plain"})
        await heard.until(lambda: bool(heard.of(sent)))

    assert heard.of(sent) == [Dead(Reason.UNDECODABLE, "UnicodeDecodeError", ran=False)]


class Zipped:
    """What FastStream does, packed."""

    async def encode(self, msg: Any, serializer: Any = None) -> tuple[bytes, str | None]:
        body, content_type = encode_message(msg, serializer)
        return zlib.compress(body), content_type

    async def decode(self, msg: Any) -> Any:
        unpacked = copy(msg)
        unpacked.body = zlib.decompress(msg.body)
        return decode_message(unpacked)

    async def encode_batch(
        self, msgs: Sequence[Any], serializer: Any = None
    ) -> list[tuple[bytes, str | None]]:
        return [await self.encode(each, serializer) for each in msgs]

    async def decode_batch(self, msg: Any) -> list[Any]:
        return [await self.decode(each) for each in msg.items]


@in_memory
async def test_what_a_codec_cannot_unpack_is_buried_and_the_others_are_handled(
    make: Make, heard: Heard
) -> None:
    broker, got = make(), []

    @broker.subscriber("q", batch=True, codec=Zipped())
    async def handle(bodies: list[Any], msg: OutboxBatchMessage) -> None:
        got.append((bodies, [item.id for item in msg.items]))

    async with broker:
        good = await broker.publish(zlib.compress(b"tea"), "q")
        bad = await broker.publish(b"never packed", "q")
    async with started(broker):
        await heard.until(lambda: len(heard.outcomes) == 2)

    assert got == [([b"tea"], [good])]
    assert heard.of(good) == [Done()]
    assert reasons(heard.of(bad)) == ["undecodable"]


# ── what is left out is never done ────────────────────────────────────────────────────────────────────────

Ending = Callable[[Any], Awaitable[Any]]


async def returns(_msg: Any) -> None: ...


async def returns_an_outcome_for_each(msg: Any) -> list[Outcome]:
    return [Done() for _ in msg.items]


async def acknowledges_all(msg: Any) -> None:
    await msg.ack()


async def acknowledges_all_and_fails(msg: Any) -> None:
    await msg.ack()
    raise RuntimeError("no")


async def acknowledges_each(msg: Any) -> None:
    for item in msg.items:
        await item.ack()


async def raises_ack(_msg: Any) -> None:
    raise AckMessage


async def fails(_msg: Any) -> None:
    raise RuntimeError("no")


ENDINGS = [
    returns,
    returns_an_outcome_for_each,
    acknowledges_all,
    acknowledges_all_and_fails,
    acknowledges_each,
    raises_ack,
    fails,
]


async def picky_parser(msg: Any, original: Any) -> Any:
    parsed = await original(msg)
    if parsed.body == b"skip":
        raise SkipMessage
    if parsed.body == b"{not json":
        raise KeyError("no such thing")
    return parsed


async def picky_decoder(msg: Any, original: Any) -> Any:
    if msg.body == b"skip":
        raise SkipMessage
    return await original(msg)


READINGS: list[tuple[str, dict[str, Any]]] = [
    ("nothing of one's own", {}),
    ("a parser", {"parser": picky_parser}),
    ("a decoder", {"decoder": picky_decoder}),
]


@in_memory
@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("reading", [pytest.param(options, id=name) for name, options in READINGS])
async def test_what_is_left_out_of_a_batch_is_not_done_with_it(
    make: Make, heard: Heard, ending: Ending, reading: Any
) -> None:
    broker, got = make(retry=IN_A_MINUTE), []
    skips = bool(reading)

    def subscribe(policy: AckPolicy) -> None:
        @broker.subscriber(policy.name, batch=True, ack_policy=policy, **reading)
        async def handle(bodies: list[Any], msg: OutboxBatchMessage) -> Any:
            got.append(bodies)
            return await ending(msg)

    skipped, broken = [], []
    async with broker:
        for policy in POLICIES:
            subscribe(policy)
            await broker.publish("tea", policy.name)
            skipped.append(await broker.publish(b"skip", policy.name))
            broken.append(await broker.publish(b"{not json", policy.name, headers=AS_JSON))
    async with started(broker):
        await heard.until(lambda: len(heard.outcomes) == 3 * len(POLICIES))

    assert got == [["tea"] if skips else ["tea", b"skip"]] * len(POLICIES)
    assert [reasons(heard.of(each)) for each in broken] == [["undecodable"]] * len(POLICIES)
    if skips:
        assert [heard.of(each) for each in skipped] == [[Retry(MINUTE)]] * len(POLICIES)


@policies
async def test_headers_that_another_broke_are_buried_and_the_others_are_handled(
    heard: Heard, policy: AckPolicy
) -> None:
    data = MemoryData()
    store, got = MemoryStore(data), []
    first, broken, last = [await store.publish(Message(queue="q", body=body)) for body in (b"a", b"b", b"c")]
    assert broken is not None
    data.tables.queue("q").rows[broken].encoded_headers = "[1, 2]"
    broker = OutboxBroker(store, logger=None, observer=heard, retry=IN_A_MINUTE)

    @broker.subscriber("q", batch=True, ack_policy=policy)
    async def handle(bodies: list[Any], msg: OutboxBatchMessage) -> None:
        got.append((bodies, [item.id for item in msg.items], msg.batch_headers))
        await msg.ack()

    async with started(broker):
        await heard.until(lambda: len(heard.outcomes) == 3)

    assert got == [([b"a", b"c"], [first, last], [{}, {}])]
    assert (heard.of(first), heard.of(last)) == ([Done()], [Done()])
    assert reasons(heard.of(broken)) == ["undecodable"]


@policies
@pytest.mark.parametrize("broken", ["headers", "bodies"])
async def test_a_batch_of_which_nothing_can_be_read_reaches_no_handler(
    heard: Heard, broken: str, policy: AckPolicy
) -> None:
    data = MemoryData()
    store = MemoryStore(data)
    sent = [await store.publish(Message(queue="q", body=b"{not json", headers=AS_JSON)) for _ in range(3)]
    if broken == "headers":
        for row in data.tables.queue("q").rows.values():
            row.encoded_headers = "[1, 2]"
    broker = OutboxBroker(store, logger=None, observer=heard, retry=IN_A_MINUTE)

    @broker.subscriber("q", batch=True, ack_policy=policy)
    async def handle(bodies: list[Any]) -> None:
        raise AssertionError("not reached")

    async with started(broker):
        await heard.until(lambda: len(heard.outcomes) == 3)

    assert [reasons(heard.of(each)) for each in sent] == [["undecodable"]] * 3


@on_sqlite
async def test_what_cannot_be_read_does_not_leave_with_the_transaction_of_its_batch(
    make: Make, heard: Heard, ledger: Ledger
) -> None:
    broker = make()

    @broker.subscriber("q", batch=True)
    async def handle(bodies: list[Any], msg: OutboxBatchMessage) -> None:
        async with ledger.sessions() as session, session.begin():
            await ledger.write(session, json.dumps(bodies))
            await msg.ack(session=session)

    first, broken, last = await publish_around_a_broken_one(broker)
    async with started(broker):
        await heard.until(lambda: len(heard.acked) + len(heard.outcomes) == 3)

    assert sorted(heard.acked) == [first, last]
    assert reasons(heard.of(broken)) == ["undecodable"]
    assert await ledger.effects() == ['[{"cups": 1}, {"cups": 3}]']


@on_sqlite
@pytest.mark.parametrize("policy", [AckPolicy.ACK, AckPolicy.MANUAL])
@pytest.mark.parametrize("ending", [acknowledges_all, acknowledges_each, raises_ack])
async def test_what_cannot_be_read_does_not_leave_with_the_session_of_its_batch(
    make: Make, heard: Heard, ledger: Ledger, ending: Ending, policy: AckPolicy
) -> None:
    broker = make(session_factory=ledger.sessions)

    @broker.subscriber("q", batch=True, ack_policy=policy)
    async def handle(bodies: list[Any], msg: OutboxBatchMessage, session: OutboxSession) -> None:
        await ledger.write(session, json.dumps(bodies))
        await ending(msg)

    first, broken, last = await publish_around_a_broken_one(broker)
    async with started(broker):
        await heard.until(lambda: len(heard.acked) + len(heard.outcomes) == 3)

    assert sorted(heard.acked) == [first, last]
    assert reasons(heard.of(broken)) == ["undecodable"]
    assert await ledger.effects() == ['[{"cups": 1}, {"cups": 3}]']


# ── decisions on items beside what the handler returns ─────────────────────────────────────────────────────


@in_memory
@policies
async def test_a_decision_made_on_an_item_counts_more_than_what_is_returned_for_it(
    make: Make, heard: Heard, policy: AckPolicy
) -> None:
    broker = make(retry=IN_A_MINUTE)

    @broker.subscriber("q", batch=True, ack_policy=policy)
    async def handle(bodies: list[str], msg: OutboxBatchMessage) -> list[Outcome]:
        await msg.items[0].nack()
        await msg.items[1].reject("no such customer")
        return [Done(), Done(), Done()]

    async with broker:
        sent = await broker.publish_batch("a", "b", "c", queue="q")
    async with started(broker):
        await heard.until(lambda: len(heard.outcomes) == 3)

    assert [heard.of(each) for each in sent] == [[Retry(MINUTE)], [Dead("no such customer")], [Done()]]


@in_memory
@pytest.mark.parametrize(
    ("policy", "outcome"),
    [
        (AckPolicy.NACK_ON_ERROR, Done()),
        (AckPolicy.REJECT_ON_ERROR, Done()),
        (AckPolicy.ACK, Done()),
        (AckPolicy.MANUAL, Retry(MINUTE)),
    ],
)
async def test_nothing_returned_for_an_item_is_what_the_policy_makes_of_it(
    make: Make, heard: Heard, policy: AckPolicy, outcome: Outcome
) -> None:
    broker = make(retry=IN_A_MINUTE)

    @broker.subscriber("q", batch=True, ack_policy=policy)
    async def handle(bodies: list[str]) -> list[Outcome | None]:
        return [None, Dead("no such customer")]

    async with broker:
        sent = await broker.publish_batch("a", "b", queue="q")
    async with started(broker):
        await heard.until(lambda: len(heard.outcomes) == 2)

    assert [heard.of(each) for each in sent] == [[outcome], [Dead("no such customer")]]


@in_memory
async def test_of_a_batch_an_item_whose_refusal_was_swallowed_is_not_done_by_a_returned_outcome(
    make: Make, heard: Heard
) -> None:
    broker = make(retry=IN_A_MINUTE)

    @broker.subscriber("q", batch=True)
    async def handle(bodies: list[str], msg: OutboxBatchMessage) -> list[Outcome]:
        with suppress(TypeError):
            await msg.items[0].ack(session="no session at all")
        return [Done(), Done()]

    async with broker:
        sent = await broker.publish_batch("a", "b", queue="q")
    async with started(broker):
        await heard.until(lambda: len(heard.outcomes) == 2)

    assert [heard.of(each) for each in sent] == [[Retry(MINUTE)], [Done()]]


# ── with the test broker ──────────────────────────────────────────────────────────────────────────────────


async def test_a_batch_is_read_by_the_test_broker_as_it_is_in_earnest() -> None:
    broker, got = OutboxBroker("memory://", logger=None, retry=IN_A_MINUTE), []

    @broker.subscriber("q", batch=True, decoder=picky_decoder)
    async def handle(bodies: list[str], msg: OutboxBatchMessage) -> None:
        got.append((bodies, [item.attempt for item in msg.items]))
        if len(got) == 1:
            await msg.items[0].postpone(30)

    tested = TestOutboxBroker(broker, raise_errors=False)
    async with tested as br:
        await br.publish_batch("late", b"skip", "tea", queue="q")
        assert got == [(["late", "tea"], [1, 1])]
        assert [waiting.body for waiting in await tested.pending("q")] == [b"late", b"skip"]
        await tested.advance(timedelta(seconds=30))
        assert got[1:] == [(["late"], [1])]
        assert [waiting.body for waiting in await tested.pending("q")] == [b"skip"]
