"""A process with `def` handlers of every kind, to be told to stop again and again while it has much to do.

    python -m tests.broker.terminated URL JOURNAL [SIGNALS]

It stops and starts its broker each time it gets SIGTERM, and ends after so many of them (1) or when nothing is left.
Each line of the journal says which message began or ended: an overlap is one that begins while it runs.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Final

from nightmail import ConstantRetry, OutboxBroker
from nightmail.annotations import OutboxMessage

LEASE_SECONDS: Final = 1.0


class Journal:
    """What happened, in order, in a file that outlives the process."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)
        self._lock = threading.Lock()

    def note(self, event: str, which: int) -> None:
        with self._lock:
            self._file.write(f"{event} {os.getpid()} {which}\n".encode())


def broker_at(url: str, journal: Journal) -> OutboxBroker:
    """Its handlers take a while: some heed that they shall stop, some are interrupted, some do not care."""
    broker = OutboxBroker(
        url,
        logger=None,
        max_workers=8,
        graceful_timeout=0.02,
        lease_ttl_seconds=LEASE_SECONDS,
        retry=ConstantRetry(delay=0, jitter=0),
    )

    @broker.subscriber("q", handler_timeout=0.3)
    def handle(n: int, msg: OutboxMessage) -> None:
        journal.note("began", n)
        try:
            _work(n, msg, time.monotonic() + random.choice((0.001, 0.01, 0.05, 2.0)))
        finally:
            journal.note("ended", n)

    return broker


def _work(n: int, msg: OutboxMessage, until: float) -> None:
    kind = (n + msg.attempt) % 4
    while time.monotonic() < until:
        if kind == 0:
            msg.check()
            time.sleep(0.005)
        elif kind == 1:
            sum(range(1000))
        else:
            try:
                time.sleep(0.05)
            except BaseException:  # noqa: BLE001 - it does not care
                if kind == 2:
                    return


async def main(url: str, journal: Journal, signals: int) -> None:
    """Work until nothing is left, stopping and starting when told to."""
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    broker = broker_at(url, journal)
    for _ in range(signals):
        await broker.start()
        print("ready", flush=True)
        while not told.is_set() and await broker.stats():
            try:
                async with asyncio.timeout(0.2):
                    await told.wait()
            except TimeoutError:
                continue
        left = told.is_set()
        told.clear()
        await broker.stop()
        if not left:
            return


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Journal(Path(sys.argv[2])), int((*sys.argv, "1")[3])))
