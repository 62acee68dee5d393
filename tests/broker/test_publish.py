"""Publishing: what is refused before anything is written, and what a transaction carries."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from faststream import BaseMiddleware

from nightmail import MessageTooLarge, OutboxBroker, TimerExists
from nightmail import message as message_module
from nightmail.limits import MAX_BODY_BYTES
from tests.broker.support import HOUR, Make

NOON = datetime(2031, 5, 1, 12, tzinfo=UTC)

REFUSED = [
    pytest.param({"activate_in": HOUR, "activate_at": NOON}, ValueError, "not both", id="both times"),
    pytest.param({"activate_at": datetime(2031, 5, 1)}, ValueError, "aware", id="a naive datetime"),  # noqa: DTZ001
    pytest.param({"activate_at": "tomorrow"}, TypeError, "datetime", id="a time that is none"),
    pytest.param({"activate_in": "soon"}, TypeError, "timedelta", id="a delay that is none"),
    pytest.param({"activate_in": float("nan")}, ValueError, "finite", id="a delay that is not a number"),
    pytest.param({"activate_in": 1e30}, ValueError, "too long", id="a delay beyond all bounds"),
    pytest.param({"queue": ""}, ValueError, "queue must not be empty", id="no queue"),
    pytest.param({"queue": "q" * 256}, ValueError, "at most 255", id="a long queue"),
    pytest.param({"queue": 5}, TypeError, "queue must be a str", id="a queue that is none"),
    pytest.param({"queue": "a\x00b"}, ValueError, "NUL", id="NUL in a queue"),
    pytest.param({"queue": "\ud800"}, ValueError, "surrogate", id="half a character in a queue"),
    pytest.param({"timer_id": ""}, ValueError, "timer_id must not be empty", id="an empty timer id"),
    pytest.param({"timer_id": "t" * 256}, ValueError, "at most 255", id="a long timer id"),
    pytest.param({"ordering_key": "k" * 256}, ValueError, "at most 255", id="a long ordering key"),
    pytest.param(
        {"timer_id": "t", "on_conflict": "ignore"}, ValueError, "on_conflict", id="an unknown policy"
    ),
    pytest.param({"on_conflict": "replace"}, ValueError, "needs a timer_id", id="a policy without a timer"),
    pytest.param({"priority": 10}, ValueError, "0 to 9", id="a priority too high"),
    pytest.param({"priority": -1}, ValueError, "0 to 9", id="a priority too low"),
    pytest.param({"priority": "high"}, TypeError, "whole number", id="a priority that is none"),
    pytest.param({"expires_in": 0}, ValueError, "expires_in", id="expired before it begins"),
    pytest.param(
        {"activate_in": HOUR, "expires_in": 60}, ValueError, "before it is due", id="expired when due"
    ),
    pytest.param({"dedup_for": HOUR}, ValueError, "needs a timer_id", id="dedup without a timer"),
    pytest.param(
        {"headers": {"a": object()}}, ValueError, "headers must be JSON", id="headers that are not JSON"
    ),
    pytest.param({"headers": {"a": "b" * 65_536}}, ValueError, "at most 65,536 bytes", id="large headers"),
    pytest.param({"headers": {1: "a"}}, TypeError, "header names", id="header names that are none"),
    pytest.param(
        {"headers": {"content-type": "text/html"}}, ValueError, "contradicts", id="a false content type"
    ),
    pytest.param(
        {"headers": {"correlation_id": "a"}, "correlation_id": "b"},
        ValueError,
        "contradicts",
        id="two correlations",
    ),
    pytest.param({"message": object()}, TypeError, "cannot be encoded", id="a body that cannot be encoded"),
    pytest.param({"session": object()}, TypeError, "object", id="a session that is none"),
]


@pytest.mark.parametrize(("arguments", "error", "says"), REFUSED)
async def test_bad_input_is_refused_and_nothing_is_written(
    make: Make, arguments: dict[str, Any], error: type[Exception], says: str
) -> None:
    async with make() as broker:
        with pytest.raises(error, match=says):
            await broker.publish(**{"message": "x", "queue": "q", **arguments})

        assert await broker.pending() == []


async def test_a_body_over_the_limit_of_the_broker_is_refused_and_nothing_is_written(make: Make) -> None:
    async with make(max_body_bytes=100) as broker:
        with pytest.raises(MessageTooLarge, match=r"101 bytes.*at most 100.*max_body_bytes="):
            await broker.publish(b"x" * 101, "q")
        with pytest.raises(MessageTooLarge):
            await broker.publish_batch(b"small", b"x" * 101, queue="q")
        assert await broker.pending() == []

        await broker.publish(b"x" * 100, "q")
        assert [pending.body for pending in await broker.pending()] == [b"x" * 100]


async def test_a_broker_with_a_raised_limit_stores_larger_bodies_and_no_larger_ones(make: Make) -> None:
    body = b"x" * (MAX_BODY_BYTES + 1)
    async with make(max_body_bytes=len(body)) as broker:
        await broker.publish(body, "q")
        with pytest.raises(MessageTooLarge):
            await broker.publish(body + b"x", "q")

        assert [pending.body == body for pending in await broker.pending()] == [True]


async def test_publish_tells_the_id_and_a_conflict_that_stored_nothing_is_none(make: Make) -> None:
    async with make() as broker:
        first = await broker.publish("first", "q", timer_id="t", activate_in=HOUR)

        assert isinstance(first, int)
        assert await broker.publish("second", "q", timer_id="t") is None
        assert (
            await broker.publish("third", "q", timer_id="t", on_conflict="replace", activate_in=HOUR) == first
        )
        with pytest.raises(TimerExists, match="'t'"):
            await broker.publish("fourth", "q", timer_id="t", on_conflict="raise")
        assert [pending.body for pending in await broker.pending("q")] == [b"third"]


async def test_a_batch_is_stored_whole_and_in_order(make: Make) -> None:
    async with make() as broker:
        ids = await broker.publish_batch("a", None, {"b": 1}, queue="q", activate_in=HOUR)

        assert ids == sorted(ids)
        assert [(pending.id, pending.body) for pending in await broker.pending("q")] == list(
            zip(ids, [b"a", b"", b'{"b":1}'], strict=True)
        )


async def test_one_bad_body_spoils_the_whole_batch(make: Make) -> None:
    async with make() as broker:
        with pytest.raises(TypeError, match="cannot be encoded"):
            await broker.publish_batch("a", object(), queue="q")

        assert await broker.pending() == []


async def test_an_empty_batch_is_empty_and_its_queue_is_still_checked(make: Make) -> None:
    async with make() as broker:
        assert await broker.publish_batch(queue="q") == []
        with pytest.raises(ValueError, match="queue must not be empty"):
            await broker.publish_batch(queue="")


async def test_timers_are_cancelled_rescheduled_and_looked_for(make: Make) -> None:
    async with make() as broker:
        await broker.publish("x", "q", timer_id="t", activate_at=NOON)

        assert await broker.has_pending("q", "t")
        assert not await broker.has_pending("q", "other")
        assert await broker.reschedule_timer("q", "t", activate_at=NOON + HOUR)
        assert [pending.due_at for pending in await broker.pending("q")] == [NOON + HOUR]
        assert await broker.pending("q", due_before=NOON) == []
        assert await broker.cancel_timer("q", "t")
        assert not await broker.cancel_timer("q", "t")
        assert not await broker.reschedule_timer("q", "t", activate_in=5)
        assert not await broker.has_pending("q", "t")


async def test_what_waits_is_paged(make: Make) -> None:
    async with make() as broker:
        for body in ("a", "b", "c"):
            await broker.publish(body, "q", activate_at=NOON)
        (first,) = await broker.pending("q", limit=1)

        rest = await broker.pending("q", cursor=(first.due_at, first.id))

        assert [each.body for each in rest] == [b"b", b"c"]
        with pytest.raises(ValueError, match="aware"):
            await broker.pending("q", cursor=(NOON.replace(tzinfo=None), 1))


async def test_what_timers_refuse(make: Make) -> None:
    async with make() as broker:
        with pytest.raises(ValueError, match="say when"):
            await broker.reschedule_timer("q", "t")
        with pytest.raises(ValueError, match="not both"):
            await broker.reschedule_timer("q", "t", activate_in=5, activate_at=NOON)
        with pytest.raises(ValueError, match="timer_id must not be empty"):
            await broker.cancel_timer("q", "")
        with pytest.raises(ValueError, match="queue must not be empty"):
            await broker.has_pending("", "t")
        with pytest.raises(ValueError, match="limit"):
            await broker.pending(limit=0)
        with pytest.raises(ValueError, match="aware"):
            await broker.pending(due_before=datetime(2031, 5, 1))  # noqa: DTZ001
        with pytest.raises(ValueError, match="queue must not be empty"):
            await broker.cancel_all("")


async def test_cancel_all_empties_one_queue(make: Make) -> None:
    async with make() as broker:
        await broker.publish_batch(*"abc", queue="q", activate_in=HOUR)
        await broker.publish("d", "other", activate_in=HOUR)

        assert await broker.cancel_all("q") == 3
        assert [pending.queue for pending in await broker.pending()] == ["other"]


async def test_stats_count_what_waits(make: Make) -> None:
    async with make() as broker:
        await broker.publish_batch("a", "b", queue="q")
        await broker.publish("c", "q", activate_in=HOUR)

        stats = (await broker.stats())["q"]
        assert (stats.ready, stats.scheduled, stats.running, stats.dead) == (2, 1, 0, 0)


async def test_there_is_no_request(make: Make) -> None:
    async with make() as broker:
        with pytest.raises(Exception, match="reply_to"):
            await broker.request("x", "q")
        with pytest.raises(Exception, match="reply_to"):
            await broker.publisher("q").request("x")


def test_an_unknown_scheme_names_those_that_are_known() -> None:
    with pytest.raises(ValueError, match="sqlite://"):
        OutboxBroker("carrier-pigeon://loft")


def test_what_is_no_url_is_refused_without_being_repeated() -> None:
    with pytest.raises(ValueError, match="looks like") as refused:
        OutboxBroker("user:hunter2@host/db")

    assert "hunter2" not in str(refused.value)


def test_what_is_no_store_is_refused() -> None:
    with pytest.raises(TypeError, match="a URL, an AsyncEngine, a Redis client or a Store"):
        OutboxBroker(5)  # type: ignore[arg-type]


async def test_a_message_is_built_and_its_headers_are_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[Any] = []
    encode = message_module.encode_headers

    def counted(headers: Any) -> str:
        encoded.append(dict(headers))
        return encode(headers)

    async with OutboxBroker("memory://", logger=None) as broker:
        monkeypatch.setattr(message_module, "encode_headers", counted)
        await broker.publish("x", "q", headers={"a": 1}, correlation_id="c")
        await broker.publisher("q", headers={"a": 1}).publish("x", correlation_id="c")

    # Twice for the publisher: where it was declared, so that a bad default is refused there, and at its publish.
    given = {"a": 1, "correlation_id": "c", "content-type": "text/plain"}
    assert encoded == [given, {"a": 1}, given]


async def test_what_a_middleware_makes_of_a_message_is_checked() -> None:
    class Breaks(BaseMiddleware):
        async def publish_scope(self, call_next: Any, cmd: Any) -> Any:
            cmd.headers = {"a": object()}
            return await call_next(cmd)

    async with OutboxBroker("memory://", logger=None, middlewares=[Breaks]) as broker:
        with pytest.raises(ValueError, match="headers must be JSON"):
            await broker.publish("x", "q")
        assert await broker.stats() == {}


@pytest.mark.parametrize("queue", ["x" * 256, "nul\x00", 7])
async def test_a_reply_queue_that_cannot_be_is_refused_at_publish(queue: Any) -> None:
    async with OutboxBroker("memory://", logger=None) as broker:
        with pytest.raises((TypeError, ValueError), match="reply_to"):
            await broker.publish("tea", "q", reply_to=queue)
