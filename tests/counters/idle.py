"""What twenty subscribers ask of a server while there is nothing to do, on a clock that is moved ten times as fast.

A busy machine asks less often than it would, so one bound holds on every machine. But on this clock a server that does
not answer for a second has not answered for ten: that is an outage, after which each subscriber claims again.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Final

from nightmail import Observer, OutboxBroker
from tests.counters.clocks import hurried
from tests.golden.record import Record

SUBSCRIBERS: Final = 20
SECONDS: Final = 30.0
PATIENCE: Final = 600.0
MOST_COUNTS: Final = 5
"""How often it is counted at the most."""


class Outages(Observer):
    """Whether there was an outage since it was last asked."""

    def __init__(self) -> None:
        self._noticed = False

    def store_unavailable(self, error: Exception, retry_in: timedelta) -> None:
        self._noticed = True

    def store_recovered(self) -> None:
        self._noticed = True

    def noticed(self) -> bool:
        noticed, self._noticed = self._noticed, False
        return noticed


async def idle_statements(url: str, record: Record) -> int:
    """How many statements or commands they send, without those that open a connection or close it.

    Counted once, and once more only after an outage: what follows that is no idling.
    """
    outages = Outages()
    broker = OutboxBroker(url, logger=None, observer=outages)

    async def handle(body: str) -> None:
        raise AssertionError

    for number in range(SUBSCRIBERS):
        broker.subscriber(f"queue-{number}")(handle)
    async with broker:
        await broker.start()
        with hurried():
            async with asyncio.timeout(PATIENCE):
                # Connections are open then, and statements prepared.
                while _sent(record) < 3 * SUBSCRIBERS:  # noqa: ASYNC110 - another thread knows it
                    await asyncio.sleep(1.0)
            outages.noticed()
            for _ in range(MOST_COUNTS):
                record.clear()
                await asyncio.sleep(SECONDS)
                sent = _sent(record)
                if not outages.noticed():
                    break
            else:
                raise AssertionError(
                    f"an outage in each of {MOST_COUNTS} counts: this machine is too busy to count"
                )
            await broker.stop()
    assert sent  # Or nothing was recorded.
    return sent


def _sent(record: Record) -> int:
    """But for what SQLite is asked all the time, which reads nothing from the file but a number."""
    with record.lock:
        return sum(sent.text != "PRAGMA data_version" for trip in record.trips for sent in trip.sent)
