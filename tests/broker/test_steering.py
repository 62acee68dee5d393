"""Pauses, stops, workers and why, as a broker's users have them."""

from __future__ import annotations

import asyncio
import getpass
import os
import socket
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from faststream.exceptions import SetupError

from nightmail import Breaker, NoRetry, OutboxBroker, PauseQueue, TestOutboxBroker
from nightmail.annotations import OutboxMessage
from nightmail.controls import PauseCause
from nightmail.errors import HandlerTimeout
from nightmail.operations.reasons import Available, Died, Leased, Paused
from nightmail.outcome import Dead, Done, Outcome, Postpone, Reason, Release, Retry
from tests.broker import process_app
from tests.broker.support import HOUR, Heard, Make, in_memory, soon, started


class Steered(Heard):
    """Hears of pauses, too."""

    def __init__(self) -> None:
        super().__init__()
        self.paused_queues: list[str] = []

    def paused(
        self, queue: str, cause: PauseCause, by: str, delay: timedelta | None, reason: str | None
    ) -> None:
        self.paused_queues.append(queue)
        self._news.set()


@pytest.fixture
def heard() -> Steered:
    return Steered()


STOPPED = Dead(Reason.STOPPED, "stopped by ann")


# ── pauses ─────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_paused_queue_is_not_delivered_until_it_is_resumed(make: Make, heard: Heard) -> None:
    broker, got = make(), []

    @broker.subscriber("q")
    async def handle(n: int) -> None:
        got.append(n)

    async with started(broker):
        await broker.pause("q", reason="provider down", until=HOUR)
        sent = await broker.publish(1, "q")
        assert sent is not None
        (pause,) = await broker.pauses("q")
        reasons = await broker.why(sent)

        assert got == []
        assert (pause.by, pause.reason) == (f"{getpass.getuser()}@{socket.gethostname()}", "provider down")
        assert pause.until is not None
        assert pause.until - pause.since == HOUR
        assert Paused in [type(reason) for reason in reasons]

        assert await broker.resume("q")
        await heard.until(lambda: bool(heard.of(sent)))
        assert not await broker.resume("q")
        assert await broker.pauses() == []

    assert got == [1]


async def test_one_ordering_key_is_paused(make: Make, heard: Heard) -> None:
    broker = make()

    @broker.subscriber("q")
    async def handle(n: int) -> None: ...

    async with started(broker):
        await broker.pause("q", key="acct-7", by="ann")
        held = await broker.publish(1, "q", ordering_key="acct-7")
        free = await broker.publish(2, "q", ordering_key="acct-8")
        await heard.until(lambda: bool(heard.of(free)))
        assert heard.of(held) == []
        assert [pause.ordering_key for pause in await broker.pauses()] == ["acct-7"]
        assert await broker.resume("q", key="acct-7")
        await heard.until(lambda: bool(heard.of(held)))


@in_memory
@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"until": 0}, "until must be positive, not 0 s"),
        ({"until": "tomorrow"}, "until must be a timedelta or a number of seconds, not str"),
        ({"until": datetime(2030, 1, 1)}, "until must be an aware datetime"),  # noqa: DTZ001 - that is what is refused
        ({"key": ""}, "ordering_key"),
        ({"by": ""}, "by"),
    ],
)
async def test_a_senseless_pause_is_refused(make: Make, arguments: dict[str, Any], error: str) -> None:
    async with make() as broker:
        with pytest.raises((TypeError, ValueError), match=error):
            await broker.pause("q", **arguments)
        assert await broker.pauses() == []


@in_memory
async def test_a_moment_ends_a_pause_too(make: Make) -> None:
    async with make() as broker:
        moment = datetime.now(UTC).replace(microsecond=0) + HOUR
        await broker.pause("q", until=moment)
        (pause,) = await broker.pauses()
        assert pause.until == moment


@in_memory
async def test_a_breakers_pause_is_ended_by_name(make: Make) -> None:
    async with make() as broker:
        await broker.store.pause("q", until=HOUR, by="host/1", automatic=True)
        assert not await broker.resume("q")
        assert await broker.resume("q", breaker=True)
        assert await broker.pauses() == []
        with pytest.raises(ValueError, match="give key or breaker, not both"):
            await broker.resume("q", key="acct-7", breaker=True)


# ── asked for by handlers ──────────────────────────────────────────────────────────────────────────────────


def _handlers() -> dict[str, Any]:
    async def asynchronous(n: int) -> None:
        raise PauseQueue(HOUR, "rate limit")

    def threaded(n: int) -> None:
        raise PauseQueue(HOUR, "rate limit")

    async def returning(n: int) -> Any:
        return PauseQueue(HOUR, "rate limit")

    async def batched(ns: list[int]) -> None:
        raise PauseQueue(HOUR, "rate limit")

    return {
        "async": (asynchronous, {}),
        "def": (threaded, {}),
        "returned": (returning, {}),
        "batch": (batched, {"batch": True}),
        "process": (process_app.pauses_its_queue, {"run": "process"}),
    }


@in_memory
@pytest.mark.parametrize("kind", ["async", "def", "returned", "batch", "process"])
async def test_a_handler_pauses_its_queue_and_its_message_costs_no_attempt(
    make: Make, heard: Heard, kind: str
) -> None:
    broker = make(retry=NoRetry())
    handler, options = _handlers()[kind]
    broker.subscriber("q", **options)(handler)

    async with started(broker):
        sent = await broker.publish(1, "q")
        await heard.until(lambda: bool(heard.of(sent)))
        other = await broker.publish(2, "q")
        assert sent is not None
        assert other is not None
        (pause,) = await broker.pauses()
        assert (pause.automatic, pause.reason) == (True, "rate limit")
        assert heard.of(sent) == [Postpone(HOUR)]
        assert heard.of(other) == []
        assert heard.errors == []


@in_memory
async def test_a_breaker_is_an_option_of_broker_and_subscriber(make: Make, heard: Steered) -> None:
    broker = make(breaker=Breaker(failures=2))

    @broker.subscriber("q", breaker=Breaker(failures=1, on=(ConnectionError,)))
    async def handle(n: int) -> None:
        raise ConnectionError

    async with started(broker):
        sent = await broker.publish(1, "q")
        await heard.until(lambda: bool(heard.of(sent)))
        assert [type(outcome) for outcome in heard.of(sent)] == [Retry]
        await heard.until(lambda: heard.paused_queues == ["q"])
        (pause,) = await broker.pauses()
        assert pause.automatic


@in_memory
async def test_wrong_breakers_are_refused(make: Make) -> None:
    broker = make()
    with pytest.raises(TypeError, match="breaker must be a Breaker"):
        broker.subscriber("q", breaker=20)  # type: ignore[arg-type]
    with pytest.raises(SetupError, match="dead letters are not paused"):
        broker.subscriber("q", breaker=Breaker(), dead_letters=True)


# ── stopping ───────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_running_message_is_stopped_wherever_it_runs(make: Make, heard: Heard) -> None:
    broker, begun, cancelled = make(), asyncio.Event(), asyncio.Event()

    @broker.subscriber("q", lease_ttl_seconds=0.5)
    async def handle(n: int) -> None:
        begun.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async with started(broker):
        sent = await broker.publish(1, "q")
        assert sent is not None
        await soon(begun)
        assert [type(reason) for reason in await broker.why(sent)] == [Leased]
        assert await broker.stop_message(sent, by="ann")
        await heard.until(lambda: bool(heard.of(sent)))
        (letter,) = await broker.dead_letters("q")
        assert not await broker.stop_message(sent)
        assert [type(reason) for reason in await broker.why(sent)] == [Died]

    assert cancelled.is_set()
    assert heard.of(sent) == [STOPPED]
    assert (letter.reason, letter.error, letter.attempts) == ("stopped", "stopped by ann", 1)


@in_memory
async def test_a_def_handler_is_told_to_end(make: Make, heard: Heard) -> None:
    broker, begun, checked = make(), asyncio.Event(), []
    loop = asyncio.get_running_loop()

    @broker.subscriber("q", lease_ttl_seconds=0.5)
    def handle(n: int, msg: OutboxMessage) -> None:
        loop.call_soon_threadsafe(begun.set)
        while not msg.stopping:
            time.sleep(0.01)
        try:
            msg.check()
        except HandlerTimeout:
            checked.append(n)
            raise

    async with started(broker):
        sent = await broker.publish(1, "q")
        assert sent is not None
        await soon(begun)
        await broker.stop_message(sent, by="ann")
        await heard.until(lambda: bool(heard.of(sent)))

    assert checked == [1]
    assert heard.of(sent) == [STOPPED]


@in_memory
async def test_a_handler_in_a_process_is_killed(make: Make, heard: Heard, tmp_path: Path) -> None:
    broker, begun = make(), tmp_path / "begun"
    broker.subscriber("q", run="process", lease_ttl_seconds=0.5)(process_app.sleeps)

    async with started(broker):
        sent = await broker.publish(str(begun), "q")
        assert sent is not None
        async with asyncio.timeout(90):
            while not begun.exists():  # noqa: ASYNC110 - another process makes it
                await asyncio.sleep(0.01)
        await broker.stop_message(sent, by="ann")
        await heard.until(lambda: bool(heard.of(sent)))

    assert heard.of(sent) == [STOPPED]


@in_memory
async def test_stopping_one_of_a_batch_hands_the_others_back(make: Make, heard: Heard) -> None:
    broker, begun, runs = make(), asyncio.Event(), []

    @broker.subscriber("q", batch=True, lease_ttl_seconds=0.5)
    async def handle(ns: list[int]) -> None:
        runs.append(ns)
        if len(runs) == 1:
            begun.set()
            await asyncio.sleep(3600)

    async with broker:
        first, second = await broker.publish_batch(1, 2, queue="q")
        await broker.start()
        await soon(begun)
        await broker.stop_message(first, by="ann")
        await heard.until(lambda: len(heard.of(second)) == 2)

    assert heard.of(first) == [STOPPED]
    expected: list[Outcome] = [Release(), Done()]
    assert heard.of(second) == expected
    assert runs == [[1, 2], [2]]


@in_memory
async def test_ids_are_numbers(make: Make) -> None:
    async with make() as broker:
        for verb in (broker.stop_message, broker.why):
            with pytest.raises(TypeError, match="a message's id is a whole number, not str"):
                await verb("7")  # type: ignore[arg-type]


# ── workers ────────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_workers_of_a_store_and_what_they_hold(make: Make, heard: Heard) -> None:
    broker, begun, release = make(), asyncio.Event(), asyncio.Event()

    @broker.subscriber("q", max_workers=3)
    async def handle(n: int) -> None:
        begun.set()
        await release.wait()

    @broker.subscriber("r")
    def blocking(n: int) -> None: ...

    async with started(broker):
        sent = await broker.publish(1, "q")
        await soon(begun)
        async with asyncio.timeout(30):
            # Reported half a second after the second one has started.
            while not (found := await broker.workers()) or found[0].worker.queues != ("q", "r"):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        (process,) = found
        release.set()
        await heard.until(lambda: bool(heard.of(sent)))

    assert process.worker.pid == os.getpid()
    assert [lease.id for lease in process.holds] == [sent]
    states = {state["queues"][0]: state for state in process.worker.state["subscribers"]}
    assert (states["q"]["handlers"], states["r"]["handlers"]) == ("event loop", "thread")
    assert (states["q"]["max_workers"], states["q"]["lease_seconds"]) == (3, 20.0)
    assert process.worker.state["faststream"]
    async with make() as other:
        if other.store.capabilities.name != "memory":
            assert await other.workers() == []


async def test_a_broker_says_how_its_queues_stand_and_what_is_wrong(make: Make) -> None:
    async with make() as broker:
        await broker.publish(1, "q")
        await broker.publish(2, "q", activate_in=HOUR)
        await broker.publish(3, "r")
        await broker.pause("r", by="ann")

        every = {each.queue: each for each in await broker.status()}
        (changing,) = await broker.status("q", over=0.01)
        wrong = await broker.doctor()

    assert (every["q"].ready, every["q"].scheduled, every["q"].change_per_second) == (1, 1, None)
    assert [pause.by for pause in every["r"].pauses] == ["ann"]
    assert every["r"].paused_for is not None
    assert (changing.queue, changing.change_per_second) == ("q", 0.0)
    found = {each.what: each for each in wrong if each.code == "no-worker"}
    assert len(found) == 2
    assert all(each.runbook.endswith("/no-worker.md") for each in found.values())


@in_memory
@pytest.mark.parametrize(("queues", "over"), [(("",), None), (("q",), 0), (("q",), timedelta(seconds=-1))])
async def test_a_senseless_look_is_refused(make: Make, queues: tuple[str, ...], over: Any) -> None:
    async with make() as broker:
        with pytest.raises(ValueError, match=r"queue|over must be positive"):
            await broker.status(*queues, over=over)


# ── without a server ───────────────────────────────────────────────────────────────────────────────────────


async def test_the_test_broker_pauses_in_virtual_time() -> None:
    broker, got = OutboxBroker("memory://", logger=None), []

    @broker.subscriber("q")
    async def handle(n: int) -> None:
        got.append(n)

    @broker.subscriber("other")
    async def handle_other(n: int) -> None:
        got.append(-n)

    tb = TestOutboxBroker(broker)
    async with tb as br:
        await br.pause("q", until=HOUR)
        await br.pause("q", key="acct-7")
        first = await br.publish(1, "q")
        await br.publish(2, "q", ordering_key="acct-7")
        await br.publish(3, "other", activate_in=60)
        assert first is not None
        assert [type(reason) for reason in await br.why(first)] == [Paused]
        await tb.advance(timedelta(minutes=59))
        assert got == [-3]
        await tb.advance(timedelta(minutes=2))
        assert got == [-3, 1]
        await br.resume("q", key="acct-7")
        await tb.run()
        assert got == [-3, 1, 2]
        assert [(each.worker.queues, each.live) for each in await br.workers()] == [(("other", "q"), True)]
        assert [(each.queue, each.workers) for each in await br.status()] == [("other", 1), ("q", 1)]


async def test_the_test_broker_probes_in_virtual_time() -> None:
    broker, runs, is_up = OutboxBroker("memory://", logger=None), [], False

    @broker.subscriber("q", breaker=Breaker(failures=2, pause=30, maximum=60))
    async def handle(n: int) -> None:
        runs.append((tb.now - start).total_seconds())
        if not is_up:
            raise ConnectionError

    tb = TestOutboxBroker(broker, raise_errors=False)
    start = tb.now
    async with tb as br:
        sent = [await br.publish(n, "q") for n in range(4)]
        assert runs == [0.0, 0.0]
        await tb.advance(100)
        # The first probe after 30 s, the next one after twice as long.
        assert runs == [0.0, 0.0, 30.0, 90.0]
        is_up = True
        await tb.advance(200)
        assert await br.pauses() == []
        assert await br.find(*[each for each in sent if each is not None]) == []


async def test_the_test_broker_stops_a_message() -> None:
    broker, begun = OutboxBroker("memory://", logger=None), asyncio.Event()

    @broker.subscriber("q")
    async def handle(n: int) -> None:
        begun.set()
        await asyncio.sleep(3600)

    async with TestOutboxBroker(broker) as br:
        publishing = asyncio.create_task(br.publish(1, "q"))
        await soon(begun)
        (process,) = await br.workers()
        (lease,) = process.holds
        assert await br.stop_message(lease.id, by="ann")
        await publishing
        (letter,) = await br.dead_letters()
        assert letter.error == "stopped by ann"
        assert Available not in [type(reason) for reason in await br.why(lease.id)]
