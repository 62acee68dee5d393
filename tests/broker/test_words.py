"""What is said to who gets an option, a name or a number wrong."""

from __future__ import annotations

import re
from typing import Any

import pytest

import nightmail
from nightmail import ConstantRetry, ExponentialRetry, LinearRetry, OutboxBroker, TestOutboxBroker
from nightmail.message import Message
from nightmail.stores.memory import MemoryStore
from tests.broker.support import Heard, started


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ("max_retries", "write retry=ExponentialRetry(max_attempts=...)"),
        ("max_attempts", "write retry=ExponentialRetry(max_attempts=...)"),
        ("concurrency", "write max_workers="),
        ("max_worker", "did you mean 'max_workers'?"),
        ("colour", "no option 'colour'"),
    ],
)
def test_an_unknown_option_names_the_one_that_is_meant(option: str, hint: str) -> None:
    options: Any = {option: 3}

    with pytest.raises(TypeError, match=re.escape(hint)) as refused:
        OutboxBroker("memory://", **options)
    with pytest.raises(TypeError, match=re.escape(hint)):
        OutboxBroker("memory://").subscriber("q", **options)
    assert option == "colour" or "workers" in hint or "max_workers" not in str(refused.value)


@pytest.mark.parametrize(("option", "hint"), [("delay", "activate_in="), ("eta", "activate_at=")])
async def test_an_unknown_option_of_publish_names_the_one_that_is_meant(option: str, hint: str) -> None:
    options: Any = {option: 3}

    async with OutboxBroker("memory://", logger=None) as broker:
        with pytest.raises(TypeError, match=hint):
            await broker.publish("tea", "q", **options)


@pytest.mark.parametrize("what", ["subscriber", "publisher"])
def test_a_decorator_without_brackets_says_what_is_missing(what: str) -> None:
    async def handle(body: str) -> None: ...

    decorate: Any = getattr(OutboxBroker("memory://"), what)

    with pytest.raises(TypeError, match=re.escape(f'@broker.{what}("orders")')):
        decorate(handle)


@pytest.mark.parametrize(
    ("policy", "delay"), [(ConstantRetry, "delay"), (LinearRetry, "initial"), (ExponentialRetry, "initial")]
)
def test_a_number_for_a_policy_is_asked_for_its_name(policy: Any, delay: str) -> None:
    with pytest.raises(TypeError, match=re.escape(f"{policy.__name__}({delay}=5)")):
        policy(5)


def test_a_negative_duration_is_shown_in_seconds() -> None:
    with pytest.raises(ValueError, match="lease_ttl_seconds must be positive, not -1 s"):
        OutboxBroker("memory://", lease_ttl_seconds=-1)


@pytest.mark.parametrize(
    "name",
    [
        "OutboxMessage",
        "OutboxSession",
        "SyncOutboxSession",
        "TestOutboxBroker",
        "PublishUncertain",
        "HandlerTimeout",
        "HandlerDied",
        "NotAwaited",
        "DeadLetter",
        "QueueStats",
    ],
)
def test_what_users_type_or_catch_is_at_the_root(name: str) -> None:
    assert name in nightmail.__all__
    assert hasattr(nightmail, name)


async def test_the_message_from_the_root_is_what_a_handler_gets(heard: Heard) -> None:
    broker = OutboxBroker("memory://", logger=None, observer=heard)
    seen = []

    @broker.subscriber("q")
    async def handle(body: str, msg: nightmail.OutboxMessage) -> None:
        seen.append(msg.id)

    async with started(broker):
        await broker.publish("tea", "q")
        await heard.until(lambda: bool(heard.outcomes))

    assert seen == [1]


@pytest.mark.parametrize("queue", ["x" * 256, "nul\x00", 7])
async def test_a_reply_queue_that_cannot_be_is_refused_at_publish(queue: Any) -> None:
    async with OutboxBroker("memory://", logger=None) as broker:
        with pytest.raises((TypeError, ValueError), match="reply_to"):
            await broker.publish("tea", "q", reply_to=queue)


@pytest.mark.parametrize("queue", ["x" * 256, 7, ["a"]])
async def test_a_stored_message_with_such_a_reply_queue_is_buried_before_its_handler_runs(
    heard: Heard, queue: Any
) -> None:
    store = MemoryStore()
    broker = OutboxBroker(store, logger=None, observer=heard)
    runs = []

    @broker.subscriber("q")
    async def handle(body: str) -> str:
        runs.append(body)
        return body

    async with started(broker):
        await store.publish(Message(queue="q", body=b"tea", headers={"reply_to": queue}))
        await heard.until(lambda: bool(heard.outcomes))
        (letter,) = await broker.dead_letters()

    assert letter.reason == "undecodable"
    assert "reply_to" in (letter.error or "")
    assert runs == []


async def test_a_reason_of_several_lines_is_whole_in_the_letter() -> None:
    broker = OutboxBroker("memory://", logger=None)

    @broker.subscriber("q")
    async def handle(body: str, msg: nightmail.OutboxMessage) -> None:
        await msg.reject("spam\nCRITICAL all is lost")

    tb = TestOutboxBroker(broker)
    async with tb:
        await broker.publish("tea", "q")
        (letter,) = await tb.dead_letters()

    assert letter.reason == "spam\nCRITICAL all is lost"
