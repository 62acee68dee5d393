"""`run="process"`: handlers that can be killed, and whose death is that of their message's delivery alone."""

from __future__ import annotations

import multiprocessing
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from faststream import AckPolicy
from faststream.exceptions import SetupError

from nightmail import ConstantRetry, Delivery, OutboxBroker
from nightmail.outcome import Dead, Done, Outcome, Postpone, Reason, Release, Retry
from tests.broker import process_app
from tests.broker.process_app import Film
from tests.broker.support import AT_ONCE, Heard, Make, in_memory, started


class Slow(Heard):
    """A child takes a while to start on a busy machine."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: list[int] = []

    def started(self, delivery: Delivery) -> None:
        self.begun.append(delivery.id)
        self._news.set()


@pytest.fixture
def heard() -> Slow:
    return Slow()


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.broker.support.PATIENCE", 60.0)


@in_memory
async def test_a_process_is_used_again_and_ends_with_its_subscriber(make: Make, heard: Slow) -> None:
    broker, pids = make(), []
    broker.publisher("pids")(broker.subscriber("q", run="process", max_workers=1)(process_app.who))

    @broker.subscriber("pids")
    async def note(pid: int) -> None:
        pids.append(pid)

    async with started(broker):
        await broker.publish_batch(1, 2, 3, queue="q")
        await heard.until(lambda: len(pids) == 3)

    assert len(set(pids)) == 1
    assert pids[0] != os.getpid()
    for child in multiprocessing.active_children():
        child.join(60)
    assert pids[0] not in [child.pid for child in multiprocessing.active_children()]


@in_memory
async def test_a_process_inherits_nothing_that_its_parent_has_opened(
    make: Make, heard: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_app, "connection", "open")
    broker, found = make(), []
    broker.publisher("found")(broker.subscriber("q", run="process")(process_app.connection_here))

    @broker.subscriber("found")
    async def note(connection: str) -> None:
        found.append(connection)

    async with started(broker):
        await broker.publish(1, "q")
        await heard.until(lambda: bool(found))

    assert found == ["none"]


@in_memory
async def test_what_the_message_says_is_decoded_here_and_handed_over(make: Make, heard: Slow) -> None:
    broker, got = make(), []
    broker.publisher("titles")(broker.subscriber("q", run="process")(process_app.title_of))
    broker.publisher("titles")(broker.subscriber("b", run="process", batch=True)(process_app.titles_of))

    @broker.subscriber("titles")
    async def note(title: Any) -> None:
        got.append(title)

    async with started(broker):
        await broker.publish(Film(title="Nosferatu"), "q")
        await broker.publish(Film(title="M"), "b")
        await heard.until(lambda: len(got) == 2)

    assert sorted(got, key=str) == [1, "NOSFERATU"]


@in_memory
@pytest.mark.parametrize(
    ("handler", "error"),
    [
        (process_app.fails, "LookupError"),
        (process_app.fails_oddly, "RuntimeError"),
        (process_app.returns_what_cannot_be_pickled, "TypeError"),
        (process_app.publishes_without_await, "NotAwaited"),
    ],
)
async def test_what_is_raised_there_is_raised_here(make: Make, heard: Slow, handler: Any, error: str) -> None:
    broker = make(retry=ConstantRetry(delay=3600, jitter=0))
    broker.subscriber("q", run="process")(handler)

    async with started(broker):
        sent = await broker.publish(1, "q")
        await heard.until(lambda: bool(heard.of(sent)))

    assert heard.errors == [error]
    assert [type(outcome) for outcome in heard.of(sent)] == [Retry]


@in_memory
@pytest.mark.parametrize(
    ("handler", "meant"),
    [(process_app.postpones, Postpone(timedelta(hours=1))), (process_app.rejects, Dead("bad"))],
)
async def test_a_decision_is_raised_or_returned_there(
    make: Make, heard: Slow, handler: Any, meant: Outcome
) -> None:
    broker = make()
    broker.subscriber("q", run="process")(handler)

    async with started(broker):
        sent = await broker.publish(1, "q")
        await heard.until(lambda: bool(heard.of(sent)))

    assert heard.of(sent) == [meant]


@in_memory
async def test_a_handler_that_runs_too_long_is_killed_and_its_message_retried(
    make: Make, heard: Slow, tmp_path: Path
) -> None:
    broker, runs = make(retry=AT_ONCE), tmp_path / "runs"
    broker.subscriber("q", run="process", handler_timeout=1)(process_app.never_ends_the_first_time)

    async with started(broker):
        sent = await broker.publish(str(runs), "q")
        await heard.until(lambda: Done() in heard.of(sent))

    assert heard.errors == ["TimeoutError"]
    assert heard.of(sent) == [Retry(), Done()]
    assert runs.read_text().splitlines() == ["ran", "ran"]


@in_memory
async def test_stopping_past_the_grace_period_kills_and_hands_back(
    make: Make, heard: Slow, tmp_path: Path
) -> None:
    broker = make(graceful_timeout=0.05)
    broker.subscriber("q", run="process")(process_app.never_ends_the_first_time)

    await broker.start()
    sent = await broker.publish(str(tmp_path / "runs"), "q")
    await heard.until(lambda: heard.begun == [sent])
    await broker.stop()

    assert heard.of(sent) == [Release()]


@in_memory
@pytest.mark.parametrize("policy", [AckPolicy.NACK_ON_ERROR, AckPolicy.ACK, AckPolicy.REJECT_ON_ERROR])
async def test_a_process_that_dies_is_a_delivery_that_was_lost(
    make: Make, heard: Slow, tmp_path: Path, policy: AckPolicy
) -> None:
    broker, runs = make(lease_ttl_seconds=1), tmp_path / "runs"
    broker.subscriber("q", run="process", ack_policy=policy)(process_app.dies_the_first_time)

    async with started(broker):
        sent = await broker.publish(str(runs), "q")
        await heard.until(lambda: bool(heard.of(sent)))

    assert heard.errors == ["HandlerDied"]
    assert heard.of(sent) == [Done()]
    assert runs.read_text().splitlines() == ["ran", "ran"]


@in_memory
async def test_a_message_that_kills_every_process_is_buried_and_others_go_on(make: Make, heard: Slow) -> None:
    broker = make(lease_ttl_seconds=0.2, max_deliveries=4)
    broker.subscriber("poison", run="process")(process_app.dies)
    broker.subscriber("q", run="process")(process_app.who)

    async with started(broker):
        poison = await broker.publish(1, "poison")
        await heard.until(lambda: bool(heard.of(poison)))
        sent = await broker.publish(1, "q")
        await heard.until(lambda: bool(heard.of(sent)))

    assert heard.of(poison) == [Dead(Reason.MAX_DELIVERIES, ran=False)]
    assert heard.errors == ["HandlerDied"] * 4
    assert heard.of(sent) == [Done()]


@in_memory
async def test_signals_to_the_whole_group_are_for_the_parent(make: Make, heard: Slow, tmp_path: Path) -> None:
    broker, there = make(), tmp_path / "there"
    broker.subscriber("q", run="process")(process_app.ignores_signals)

    async with started(broker):
        sent = await broker.publish(str(there), "q")
        await heard.until(lambda: heard.of(sent) == [Done()])

    assert there.read_text() == "survived"


@pytest.mark.parametrize(
    ("handler", "why"),
    [
        (process_app.asks_for_its_message, "'msg'"),
        (process_app.asks_for_a_session, "'session'"),
        (process_app.asks_for_a_synchronous_session, "'session'"),
        (process_app.is_async, "async def"),
        (lambda n: None, "imported"),
    ],
)
def test_what_cannot_run_in_a_process_is_refused_where_it_is_registered(handler: Any, why: str) -> None:
    broker = OutboxBroker("memory://")

    with pytest.raises(SetupError, match=why):
        broker.subscriber("q", run="process")(handler)


def test_another_place_to_run_is_refused() -> None:
    with pytest.raises(ValueError, match='"thread" or "process"'):
        OutboxBroker("memory://").subscriber("q", run="fork")  # type: ignore[arg-type]
