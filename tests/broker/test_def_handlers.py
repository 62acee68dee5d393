"""`def` handlers: as many at once as their subscriber may run; a message whose thread runs is not given out again."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import anyio.to_thread
import pytest
from faststream import Depends

from nightmail import Delivery, ExponentialRetry, NoRetry, Store
from nightmail.annotations import OutboxBatchMessage, OutboxMessage
from nightmail.engine.draining import Draining
from nightmail.errors import HandlerTimeout
from nightmail.outcome import Done, Release, Retry
from nightmail.store import Claimed
from tests.broker.support import PATIENCE, Heard, Make, in_memory, started

AT_ONCE = ExponentialRetry(initial=0.01)


class Overlaps:
    """Counts runs, and those that overlapped another of the same message."""

    def __init__(self) -> None:
        self.runs = 0
        self.overlaps = 0
        self.most = 0
        self._running: list[int] = []
        self._lock = threading.Lock()

    @contextmanager
    def run(self, which: int) -> Iterator[None]:
        with self._lock:
            self.runs += 1
            self.overlaps += which in self._running
            self._running.append(which)
            self.most = max(self.most, len(self._running))
        try:
            yield
        finally:
            with self._lock:
                self._running.remove(which)


class Late(Heard):
    """Hears of what is overdue, too."""

    def __init__(self) -> None:
        super().__init__()
        self.late: list[int] = []
        self.left: list[int] = []

    def drained(self, left: int) -> None:
        self.left.append(left)

    def overdue(self, delivery: Delivery, seconds: float) -> None:
        assert seconds > 0
        self.late.append(delivery.id)
        self._news.set()


@contextmanager
def traced() -> Iterator[None]:
    """As with a debugger."""

    def trace(frame: object, event: str, arg: object) -> Any:
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


@pytest.fixture
def heard() -> Late:
    return Late()


@in_memory
async def test_sixty_workers_run_sixty_def_handlers_at_once(make: Make, heard: Late) -> None:
    broker, together, seen = make(), threading.Barrier(60), Overlaps()

    @broker.subscriber("q", max_workers=60)
    def handle(n: int) -> None:
        with seen.run(n):
            together.wait(PATIENCE)

    async with started(broker):
        await broker.publish_batch(*range(60), queue="q")
        await heard.until(lambda: len(heard.outcomes) == 60)

    assert seen.most == 60
    assert heard.errors == []


@in_memory
async def test_a_subscriber_has_no_more_threads_than_workers(make: Make, heard: Late) -> None:
    broker, names = make(), set()

    @broker.subscriber("q", max_workers=3)
    def handle(n: int) -> None:
        names.add(threading.current_thread().name)

    async with started(broker):
        await broker.publish_batch(*range(100), queue="q")
        await heard.until(lambda: len(heard.outcomes) == 100)

    assert 1 <= len(names) <= 3
    assert all(name.startswith("nightmail q ") for name in names)


@in_memory
async def test_threads_of_others_do_not_count(make: Make, heard: Late) -> None:
    broker, release = make(), threading.Event()

    @broker.subscriber("q")
    def handle(n: int) -> None:
        """Does nothing."""

    limiter = anyio.to_thread.current_default_thread_limiter()
    async with started(broker), anyio.create_task_group() as others:
        for _ in range(int(limiter.total_tokens)):
            others.start_soon(partial(anyio.to_thread.run_sync, partial(release.wait, PATIENCE)))
        sent = await broker.publish(1, "q")
        try:
            await heard.until(lambda: heard.of(sent) == [Done()])
        finally:
            release.set()


@in_memory
async def test_the_threads_end_with_their_worker(make: Make, heard: Late) -> None:
    broker = make()

    @broker.subscriber("gone")
    def handle(n: int) -> None:
        """Does nothing."""

    async with started(broker):
        await broker.publish_batch(1, 2, 3, queue="gone")
        await heard.until(lambda: len(heard.outcomes) == 3)
    for thread in threading.enumerate():
        if thread.name.startswith("nightmail gone"):
            thread.join(PATIENCE)
            assert not thread.is_alive()


on_loop_and_in_thread: ContextVar[str] = ContextVar("on_loop_and_in_thread")


@in_memory
async def test_context_variables_go_along_and_do_not_come_back(make: Make, heard: Late) -> None:
    broker, got = make(max_workers=1), []

    async def set_it() -> None:
        on_loop_and_in_thread.set("from the loop")

    @broker.subscriber("q", dependencies=[Depends(set_it)])
    def handle(n: int) -> None:
        got.append(on_loop_and_in_thread.get(None))
        on_loop_and_in_thread.set("from the thread")

    async with started(broker):
        await broker.publish_batch(1, 2, queue="q")
        await heard.until(lambda: len(heard.outcomes) == 2)

    assert got == ["from the loop", "from the loop"]
    assert on_loop_and_in_thread.get(None) is None


@in_memory
async def test_a_def_handler_can_still_be_called_directly(make: Make) -> None:
    broker = make()

    @broker.subscriber("q")
    def double(n: int) -> int:
        return 2 * n

    assert double(2) == 4
    async with started(broker):
        assert double(3) == 6
    assert double(4) == 8


@in_memory
async def test_one_def_handler_of_two_subscribers_runs_in_the_threads_of_each(
    make: Make, heard: Late
) -> None:
    broker, names = make(), []

    @broker.subscriber("left")
    @broker.subscriber("right")
    def handle(n: int) -> None:
        names.append(threading.current_thread().name)

    async with started(broker):
        for queue in ("left", "right"):
            await broker.publish(1, queue)
        await heard.until(lambda: len(heard.outcomes) == 2)

    assert sorted(names) == ["nightmail left 1", "nightmail right 1"]


@in_memory
async def test_what_a_def_handler_returns_and_raises_is_what_counts(make: Make, heard: Late) -> None:
    broker, got = make(retry=ExponentialRetry(initial=3600)), []

    @broker.subscriber("q")
    @broker.publisher("answers")
    def handle(n: int) -> int:
        if n == 2:
            raise LookupError(n)
        if n == 3:
            raise StopIteration(n)
        return n + 10

    @broker.subscriber("answers")
    def answer(n: int) -> None:
        got.append(n)

    async with started(broker):
        ids = await broker.publish_batch(1, 2, 3, queue="q")
        await heard.until(lambda: len(heard.outcomes) == 4)

    assert got == [11]
    assert sorted(heard.errors) == ["LookupError", "RuntimeError"]
    assert [type(heard.of(each)[0]) for each in ids] == [Done, Retry, Retry]


# ── the time-out ───────────────────────────────────────────────────────────────────────────────────────────


@in_memory
async def test_a_handler_that_runs_too_long_is_not_run_beside_itself(make: Make, heard: Late) -> None:
    broker, seen = make(retry=AT_ONCE), Overlaps()

    @broker.subscriber("q", handler_timeout=0.05)
    def handle(n: int) -> None:
        with seen.run(n):
            if seen.runs < 3:
                time.sleep(1.3)  # In C, where nothing can be raised.

    async with started(broker):
        sent = await broker.publish(1, "q")
        await heard.until(lambda: Done() in heard.of(sent))

    assert seen.overlaps == 0
    assert seen.runs == 3
    assert heard.errors == ["TimeoutError", "TimeoutError"]
    assert heard.late == [sent, sent]


@in_memory
async def test_a_debugger_stops_nothing_while_a_thread_does_not_end(make: Make, heard: Late) -> None:
    broker, release = make(retry=AT_ONCE), threading.Event()

    @broker.subscriber("q", handler_timeout=0.05)
    def handle(n: int) -> None:
        release.wait(PATIENCE)

    async with started(broker):
        with traced():
            sent = await broker.publish(1, "q")
            await heard.until(lambda: heard.late == [sent])
        release.set()
        await heard.until(lambda: Done() in heard.of(sent))


@in_memory
async def test_a_handler_that_ends_while_it_is_interrupted_leaves_nothing_pending(
    make: Make, heard: Late
) -> None:
    broker = make(retry=AT_ONCE)

    @broker.subscriber("q", handler_timeout=0.05)
    def handle(n: int) -> None:
        time.sleep(1.3)  # The exception is raised meanwhile, and noticed when the handler has ended.

    async with started(broker):
        sent = await broker.publish(1, "q")
        await heard.until(lambda: bool(heard.of(sent)))

    with traced():
        (
            lambda: None
        )()  # Python 3.11 never begins this function while an exception for any thread is pending.


@in_memory
async def test_a_handler_that_asks_is_told_first(make: Make, heard: Late) -> None:
    broker, ways = make(retry=AT_ONCE), []

    @broker.subscriber("q", handler_timeout=0.05)
    def handle(n: int, msg: OutboxMessage) -> None:
        if msg.attempt > 1:
            msg.check()
            assert not msg.stopping
            return
        deadline = time.monotonic() + PATIENCE
        while not msg.stopping:
            assert time.monotonic() < deadline
        try:
            msg.check()
        except HandlerTimeout:
            ways.append("asked")
            raise

    async with started(broker):
        sent = await broker.publish(1, "q")
        await heard.until(lambda: Done() in heard.of(sent))

    assert ways == ["asked"]
    assert heard.errors == ["TimeoutError"]
    assert heard.late == []


@in_memory
async def test_a_handler_that_does_not_ask_is_interrupted(make: Make, heard: Late) -> None:
    broker, ways = make(retry=AT_ONCE, max_workers=1), []

    @broker.subscriber("q", handler_timeout=0.05)
    def handle(n: int, msg: OutboxMessage) -> None:
        if msg.attempt > 1:
            return
        deadline = time.monotonic() + PATIENCE
        try:
            while time.monotonic() < deadline:
                with suppress(Exception):  # As code does that goes on whatever happens.
                    sum(range(100))
        except HandlerTimeout:
            ways.append("interrupted")
            raise ValueError("on the way out") from None

    async with started(broker):
        sent = [await broker.publish(n, "q") for n in range(5)]
        await heard.until(lambda: all(Done() in heard.of(each) for each in sent))

    assert ways == ["interrupted"] * 5
    assert heard.errors == ["TimeoutError"] * 5
    assert heard.late == []


@in_memory
async def test_a_handler_that_finishes_after_all_is_done(make: Make, heard: Late) -> None:
    broker = make(retry=AT_ONCE)

    @broker.subscriber("q", handler_timeout=0.05)
    def handle(n: int) -> None:
        try:
            while True:
                sum(range(100))
        except HandlerTimeout:
            return

    async with started(broker):
        sent = await broker.publish(1, "q")
        await heard.until(lambda: bool(heard.of(sent)))

    assert heard.of(sent) == [Done()]
    assert heard.errors == []


@in_memory
async def test_a_batch_that_runs_too_long_is_not_run_beside_itself(make: Make, heard: Late) -> None:
    broker, seen = make(retry=AT_ONCE), Overlaps()

    @broker.subscriber("q", handler_timeout=0.05, batch=True)
    def handle(ns: list[int], msg: OutboxBatchMessage) -> None:
        first = msg.items[0].attempt == 1
        with seen.run(ns[0]):
            if first:
                time.sleep(1.3)

    async with started(broker):
        sent = await broker.publish_batch(1, 2, queue="q")
        await heard.until(lambda: all(Done() in heard.of(each) for each in sent))

    assert seen.overlaps == 0
    assert sorted(heard.late) == sorted(sent)


# ── stopping ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("url", ["sqlite", "postgres", "mysql", "redis"], indirect=True)
async def test_a_thread_that_does_not_end_keeps_its_message_after_its_worker_has_stopped(
    make: Make, heard: Late
) -> None:
    broker, runs = make(graceful_timeout=0.05, lease_ttl_seconds=2), []
    begun, release, over = threading.Event(), threading.Event(), threading.Event()

    @broker.subscriber("q")
    def handle(n: int) -> None:
        runs.append("began")
        begun.set()
        while not release.is_set():
            try:
                release.wait(0.1)
            except HandlerTimeout:
                runs.append("ignored it")
        over.set()

    await broker.start()
    sent = await broker.publish(1, "q")
    await asyncio.to_thread(begun.wait, PATIENCE)
    await broker.stop()
    assert heard.late == [sent]
    assert not over.is_set()

    async with make() as other:
        try:
            # Renewed again and again, by a broker that is closed.
            await _lease_renewed(other.store, timedelta(seconds=3))
        finally:
            release.set()
        await asyncio.to_thread(over.wait, PATIENCE)
        async with asyncio.timeout(PATIENCE):
            taken = None
            while taken is None:
                taken = await other.subscriber("q").get_one(timeout=PATIENCE)
            await taken.ack()

    assert taken.id == sent
    assert runs == ["began", "ignored it"]


async def _lease_renewed(store: Store, by: timedelta) -> None:
    """Until the lease on the only message ends so much later than it did."""
    ends_at: list[float] = []
    while not ends_at or ends_at[-1] - ends_at[0] < by.total_seconds():
        asked = time.monotonic()
        claimed = await _claimed(store)
        assert not claimed.deliveries
        assert claimed.next_in is not None
        ends_at.append(asked + claimed.next_in.total_seconds())
        await asyncio.sleep(0.1)


async def _claimed(store: Store) -> Claimed:
    return await store.claim(["q"], limit=1, lease=timedelta(minutes=1), token=uuid4())


@in_memory
async def test_what_was_left_behind_stays_leased_when_its_broker_starts_again(
    make: Make, heard: Late
) -> None:
    broker, seen = make(graceful_timeout=0.05, lease_ttl_seconds=1), Overlaps()
    begun, release = threading.Event(), threading.Event()

    @broker.subscriber("q")
    def handle(n: int) -> None:
        with seen.run(n):
            begun.set()
            while not release.is_set():
                with suppress(HandlerTimeout):
                    release.wait(0.1)

    await broker.start()
    sent = await broker.publish(1, "q")
    await asyncio.to_thread(begun.wait, PATIENCE)
    await broker.stop()
    async with started(broker):
        await _lease_renewed(broker.store, timedelta(seconds=1.5))
        release.set()
        await heard.until(lambda: heard.of(sent) == [Done()])

    assert (seen.runs, seen.overlaps) == (2, 0)


@in_memory
async def test_a_thread_that_ends_during_the_last_writes_counts_for_nothing(
    make: Make, heard: Late, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, begun, release = make(graceful_timeout=0.05), threading.Event(), threading.Event()
    leave_behind = Draining._leave_behind

    async def leave_behind_and_end(draining: Draining) -> None:
        await leave_behind(draining)
        release.set()
        async with asyncio.timeout(PATIENCE):
            while len(draining._leases):  # noqa: ASYNC110 - a thread ends
                await asyncio.sleep(0.01)

    @broker.subscriber("q")
    def handle(n: int) -> None:
        begun.set()
        while not release.is_set():
            with suppress(HandlerTimeout):
                release.wait(0.1)

    monkeypatch.setattr(Draining, "_leave_behind", leave_behind_and_end)
    async with started(broker):
        await broker.publish(1, "q")
        await asyncio.to_thread(begun.wait, PATIENCE)

    assert heard.left == [0]


@in_memory
@pytest.mark.parametrize("batch", [False, True])
async def test_stopping_past_the_grace_period_hands_back_what_has_ended(
    make: Make, heard: Late, batch: bool
) -> None:
    broker, seen, begun = make(graceful_timeout=0.05), Overlaps(), threading.Event()

    @broker.subscriber("q", batch=batch)
    def handle(n: Any) -> None:
        with seen.run(1):
            begun.set()
            while seen.runs == 1:
                sum(range(100))

    await broker.start()
    sent = await broker.publish(1, "q")
    await asyncio.to_thread(begun.wait, PATIENCE)
    await broker.stop()
    assert heard.of(sent) == [Release()]

    async with started(broker):
        await heard.until(lambda: heard.of(sent) == [Release(), Done()])
    assert (seen.runs, seen.overlaps) == (2, 0)
    assert heard.late == []


def test_a_thread_that_never_ends_does_not_keep_its_process_alive(tmp_path: Path) -> None:
    """Nor `asyncio.run` from returning."""
    program = tmp_path / "program.py"
    program.write_text(STUCK)

    ended = subprocess.run(
        [sys.executable, program], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )

    assert (ended.returncode, ended.stdout) == (0, "began\nstopped\n"), ended.stderr
    assert "overdue" in ended.stderr


@pytest.mark.parametrize("url", ["sqlite", "postgres", "mysql", "redis"], indirect=True)
async def test_what_a_stuck_thread_held_is_anothers_within_one_lease_of_its_process(
    url: str, make: Make, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(STUCK)

    def end() -> None:
        subprocess.run(
            [sys.executable, program, url], cwd=tmp_path, capture_output=True, timeout=60, check=True
        )

    await asyncio.to_thread(end)

    async with make() as other:
        claimed = await _claimed(other.store)
        while not claimed.deliveries:
            assert claimed.next_in is not None
            assert claimed.next_in <= timedelta(seconds=2)
            await asyncio.sleep(claimed.next_in.total_seconds())
            claimed = await _claimed(other.store)
    assert [(each.body, each.deliveries, each.attempts) for each in claimed.deliveries] == [(b"1", 2, 0)]


STUCK = """
import asyncio, sys, threading
from nightmail import OutboxBroker

url = sys.argv[1] if len(sys.argv) > 1 else "sqlite:///stuck.db"
broker = OutboxBroker(url, create_tables=True, graceful_timeout=0.05, lease_ttl_seconds=2, logger=None)
begun = threading.Event()

@broker.subscriber("q")
def handle(n: int) -> None:
    print("began", flush=True)
    begun.set()
    while True:
        try:
            threading.Event().wait(0.1)
        except BaseException:
            pass

async def main() -> None:
    await broker.start()
    await broker.publish(1, "q")
    await asyncio.to_thread(begun.wait)
    await broker.stop()
    print("stopped", flush=True)

asyncio.run(main())
"""


@in_memory
@pytest.mark.parametrize("fails", [False, True])
async def test_djangos_old_connections_are_closed_around_each_message_in_its_thread(
    make: Make, heard: Late, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    steps: list[tuple[str, str]] = []

    def note(step: str) -> None:
        steps.append((step, threading.current_thread().name))

    # Stand-ins: a process has one set of settings, which other tests may need to be otherwise.
    monkeypatch.setattr("django.db.close_old_connections", lambda: note("close"))
    monkeypatch.setattr("django.conf.settings", SimpleNamespace(configured=True))
    broker = make(retry=NoRetry())

    @broker.subscriber("q", max_workers=1)
    def handle(n: int) -> None:
        note(f"handle {n}")
        if fails:
            raise LookupError

    async with started(broker):
        await broker.publish_batch(1, 2, queue="q")
        await heard.until(lambda: len(heard.outcomes) == 2)

    assert [step for step, _ in steps] == ["close", "handle 1", "close", "close", "handle 2", "close"]
    (thread,) = {thread for _, thread in steps}
    assert thread.startswith("nightmail q ")


def test_django_that_is_only_imported_is_left_alone(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(DJANGO)

    ended = subprocess.run(
        [sys.executable, program], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )

    assert (ended.returncode, ended.stdout) == (0, "ran\n"), ended.stderr


DJANGO = """
import asyncio, threading
import django.db
from nightmail import OutboxBroker

broker = OutboxBroker("memory://", logger=None)
ran = threading.Event()

@broker.subscriber("q")
def handle(n: int) -> None:
    ran.set()

async def main() -> None:
    await broker.start()
    await broker.publish(1, "q")
    assert await asyncio.to_thread(ran.wait, 20)
    await broker.stop()
    print("ran", flush=True)

asyncio.run(main())
"""
