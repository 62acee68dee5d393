"""Looking at the queues every so often, and never because of a scrape."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, cast

import pytest

from nightmail.controls import MessageFacts, Pause, QueueStatus, WorkerRecord
from nightmail.errors import StoreUnavailable
from nightmail.observe import Observer
from nightmail.outcome import Dead
from nightmail.records import QueueStats
from nightmail.store import FullStore, Settlement
from nightmail.telemetry import QueueWatch
from nightmail.telemetry.counts import MOST_QUEUES
from nightmail.telemetry.metrics_observer import MetricsObserver
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance.workers import a_report
from tests.telemetry.support import Read, opened
from tests.unit.support import NOON, publish, soon, take

HOUR = timedelta(hours=1)


async def test_it_tells_how_each_queue_stands(
    store: FullStore, clock: ManualClock, metrics: MetricsObserver, read: Read
) -> None:
    async with opened(store):
        await publish(store, 4)
        await publish(store, 2, due=HOUR)
        running, dying = await take(store, 2)
        await store.settle([Settlement(dying, Dead("rejected"))])
        clock.advance(timedelta(seconds=12))

        await QueueWatch(store, metrics).look()

    assert running.queue == "mail"
    assert read("nightmail_queue_messages") == {
        ("mail", "ready"): 2,
        ("mail", "scheduled"): 2,
        ("mail", "running"): 1,
        ("mail", "superseded"): 0,
        ("mail", "dead"): 1,
    }
    assert read("nightmail_oldest_due_age_seconds") == {("mail",): 12}


async def test_it_tells_of_pauses_that_others_made_and_of_live_workers(
    store: FullStore, clock: ManualClock, metrics: MetricsObserver, read: Read
) -> None:
    async with opened(store):
        watch = QueueWatch(store, metrics)
        await store.report(a_report("11" * 8, queues=("mail", "sms")))
        await store.pause("mail", by="ann")
        await store.pause("mail", by="host-1/77", until=HOUR, automatic=True)
        await store.pause("mail", ordering_key="acct-7", by="ann")
        clock.advance(timedelta(minutes=2))
        await store.report(a_report("22" * 8, queues=("mail",)))

        await watch.look()

        assert read("nightmail_pause_age_seconds") == {("operator", "mail"): 120, ("automatic", "mail"): 120}
        assert read("nightmail_paused_keys") == {("mail",): 1}
        # The first has not been seen for two minutes.
        assert read("nightmail_live_workers") == {("mail",): 1}

        await store.resume("mail")
        await store.resume("mail", ordering_key="acct-7")
        await store.report(a_report("11" * 8, queues=("mail", "sms")))
        await watch.look()

        assert read("nightmail_pause_age_seconds")["operator", "mail"] == 0
        assert read("nightmail_pause_age_seconds")["automatic", "mail"] == 120
        assert read("nightmail_paused_keys") == {("mail",): 0, ("sms",): 0}
        # Also of a queue that is empty whenever one looks.
        assert read("nightmail_live_workers") == {("mail",): 2, ("sms",): 1}


async def test_a_queue_that_has_emptied_stands_at_nothing(
    store: FullStore, metrics: MetricsObserver, read: Read
) -> None:
    async with opened(store):
        watch = QueueWatch(store, metrics)
        await publish(store, 3)
        await watch.look()
        await store.cancel_all("mail")

        await watch.look()

    assert read("nightmail_queue_messages")["mail", "ready"] == 0
    assert read("nightmail_oldest_due_age_seconds") == {("mail",): 0}


class Script(Observer):
    """A store that gives these answers, and an observer that remembers them."""

    def __init__(self, *answers: dict[str, QueueStats] | Exception) -> None:
        self.answers = list(answers)
        self.told: list[object] = []
        self._news = asyncio.Event()

    async def stats(self) -> dict[str, QueueStats]:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def pauses(self) -> list[Pause]:
        return []

    async def facts(self, _id: int) -> MessageFacts:
        return MessageFacts(now=NOON, message=None)

    async def workers(self) -> list[WorkerRecord]:
        return []

    def counted(self, queues: Sequence[QueueStatus] | None) -> None:
        told = {each.queue: QueueStats(ready=each.ready) for each in queues or ()}
        self.told.append(None if queues is None else told)
        self._news.set()

    def store_unavailable(self, error: Exception, retry_in: timedelta) -> None:
        self.told.append((type(error).__name__, retry_in))

    def store_recovered(self) -> None:
        self.told.append("recovered")

    async def until_told(self, count: int) -> None:
        while len(self.told) < count:
            self._news.clear()
            await self._news.wait()

    def watch(self, **options: Any) -> QueueWatch:
        return QueueWatch(cast("FullStore", self), self, **options)


ONE = {"mail": QueueStats(ready=1)}
TWO = {"mail": QueueStats(ready=2)}


async def test_it_looks_when_started_and_every_so_often_until_stopped() -> None:
    script = Script(ONE, TWO, ONE)
    watch = script.watch(every=0.001)

    await watch.start()
    assert script.told == [ONE]
    await soon(script.until_told(2))
    await watch.stop()

    told = len(script.told)
    assert script.told[:2] == [ONE, TWO]
    assert script.told[-1] is None
    await asyncio.sleep(0)
    assert len(script.told) == told


async def test_starting_twice_is_starting_once_and_it_may_start_again() -> None:
    script = Script(ONE, TWO)
    watch = script.watch(every=3600)

    await watch.start()
    await watch.start()
    await watch.stop()
    await watch.stop()
    await watch.start()
    await watch.stop()

    assert script.told == [ONE, None, TWO, None]


async def test_a_store_that_does_not_answer_is_told_of_and_old_numbers_are_taken_back() -> None:
    script = Script(ONE, StoreUnavailable(), StoreUnavailable(), TWO)
    watch = script.watch(every=15)

    for _ in range(4):
        await watch.look()

    failed = ("StoreUnavailable", timedelta(seconds=15))
    assert script.told == [ONE, None, failed, None, failed, "recovered", TWO]


def test_what_is_not_known_is_not_shown(metrics: MetricsObserver, read: Read) -> None:
    metrics.counted([QueueStatus(queue="mail", ready=1)])
    metrics.counted(None)

    assert read("nightmail_queue_messages") == {}
    assert read("nightmail_oldest_due_age_seconds") == {}


def test_of_queues_without_end_those_that_have_something_are_shown(
    metrics: MetricsObserver, read: Read
) -> None:
    metrics.counted([QueueStatus(queue=f"old-{number}", ready=1) for number in range(MOST_QUEUES)])
    idle = [QueueStatus(queue=f"idle-{number}", workers=1) for number in range(MOST_QUEUES)]
    metrics.counted([*idle, QueueStatus(queue="mail", ready=1)])

    shown = read("nightmail_oldest_due_age_seconds")
    assert len(shown) == MOST_QUEUES
    assert ("mail",) in shown


def test_the_interval_must_be_longer_than_nothing() -> None:
    with pytest.raises(ValueError, match="every must be positive"):
        Script().watch(every=0)
