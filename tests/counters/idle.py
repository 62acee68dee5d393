"""What twenty subscribers ask of a server while there is nothing to do, on a clock that is moved ten times as fast.

Only that is counted on this clock: on it a server that does not answer for a second has not answered for ten, which a
worker or the listener takes for an outage, and after that each subscriber claims. So they start, and stop, on the
machine's own clock, and what was disturbed is counted once more, with more time. So is what is too much: a connection
that is opened again, or an answer that comes late, adds a few on a busy machine, but not on the machine's own clock.
"""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Any, Final, cast

from nightmail import Observer, OutboxBroker
from nightmail.stores.shared.meta import LOOK_INTERVAL
from tests.counters.baseline import at_most, most
from tests.counters.clocks import hurried
from tests.golden.record import Record
from tests.stores.support import until

STATEMENTS: Final = "statements"
SUBSCRIBERS: Final = 20
SECONDS: Final = 28.0
"""Not a multiple of any interval here (5, 10, 25 and 30 seconds): or one that begins with it also ends with it."""
PATIENCE: Final = 60.0
SPEEDS: Final = (10.0, 5.0, 2.0, 1.0)
"""How fast the clock is when it is counted first, and whenever that was disturbed. The last is the machine's own."""


class Disturbances(Observer):
    """Whether there was an outage, or a wake-up although nothing is published, since it was last asked."""

    def __init__(self) -> None:
        self._noticed = False

    def store_unavailable(self, error: Exception, retry_in: timedelta) -> None:
        self._noticed = True

    def store_recovered(self) -> None:
        self._noticed = True

    def woken(self) -> None:
        self._noticed = True

    def noticed(self) -> bool:
        noticed, self._noticed = self._noticed, False
        return noticed


async def assert_frugal_while_idle(store: str, url: str, record: Record) -> None:
    """They send no more statements or commands than is written down, but for those that open a connection or close
    it.
    """
    done = f"idle on {store}, {SUBSCRIBERS} subscribers for {SECONDS:g} s"
    sent = await _idle_statements(url, record, enough=most(done, STATEMENTS))
    at_most(done, STATEMENTS, sent)


async def _idle_statements(url: str, record: Record, *, enough: float) -> int:
    """How many they send: the first count that is not disturbed and not too high, or the one with the most time."""
    disturbances = Disturbances()
    broker = OutboxBroker(url, logger=None, observer=disturbances)

    async def handle(body: str) -> None:
        raise AssertionError

    for number in range(SUBSCRIBERS):
        broker.subscriber(f"queue-{number}")(handle)
    async with broker:
        await broker.start()
        with hurried() as hurry:
            counted: int | None = None
            for speed in SPEEDS:
                await until(lambda: _is_idle(broker), within=PATIENCE)
                disturbances.noticed()
                hurry.speed = speed
                # Their first looks come one by one; what is shared is shared from then on.
                await asyncio.sleep(2 * LOOK_INTERVAL.total_seconds())
                record.clear()
                await asyncio.sleep(SECONDS)
                hurry.speed = 1.0
                sent = _sent(record)
                if _is_undisturbed(broker) and not disturbances.noticed():
                    counted = sent
                    if sent <= enough:
                        break
            await broker.stop()
    assert counted is not None, "an outage in each count: this machine is too busy to count"
    assert counted  # Or nothing was recorded.
    return counted


def _is_idle(broker: OutboxBroker) -> bool:
    """Whether wake-ups arrive, and every worker has found nothing since they do and waits."""
    now = time.monotonic()
    return _is_undisturbed(broker) and all(worker._run.alarm.seconds_from(now) for worker in _workers(broker))


def _is_undisturbed(broker: OutboxBroker) -> bool:
    """Whether wake-ups arrive, and every worker waits, or looks only because the interval has passed."""
    return broker.store.look_interval == LOOK_INTERVAL and all(
        # In this order: one that has not started has no bell.
        worker._run.alarm.is_routine and not worker._claiming.bell._rung.is_set()
        for worker in _workers(broker)
    )


def _workers(broker: OutboxBroker) -> list[Any]:
    return [cast("Any", subscriber)._worker for subscriber in broker.subscribers]


def _sent(record: Record) -> int:
    """But for what SQLite is asked all the time, which reads nothing from the file but a number."""
    with record.lock:
        return sum(sent.text != "PRAGMA data_version" for trip in record.trips for sent in trip.sent)
