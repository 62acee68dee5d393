"""Deletes what is past its retention."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

from nightmail.durations import Duration, as_positive
from nightmail.engine.next_look import Alarm
from nightmail.engine.retry_loop import RetryLoop
from nightmail.observe import LoggingObserver, Observer, Observers
from nightmail.records import Swept
from nightmail.store import Inspection

LAST_SWEEP_SECONDS: Final = 5.0
"""How long `stop` waits for the batch under way: a dead database must not hang a shutdown."""


class Cleaner:
    """Deletes what was delivered or died longer than `retention` ago, and the dedup windows that have ended.

    It does so at start and then every `interval`, in batches, until a batch is not full. A message that waits or runs
    is never touched, nor a dead letter that is held.

    Unless both `retention` and `interval` are given it deletes nothing, ever: `run` just waits until it is stopped.
    """

    def __init__(
        self,
        store: Inspection,
        retention: Duration | None = None,
        interval: Duration | None = None,
        *,
        batch: int = 1000,
        observer: Observer | None = None,
    ) -> None:
        if batch < 1:
            raise ValueError(f"batch must be at least 1, not {batch}")
        self._store = store
        self._retention = None if retention is None else as_positive("retention", retention)
        self._interval = None if interval is None else as_positive("interval", interval)
        self._batch = batch
        self._observer = Observers(observer or LoggingObserver())
        self._reset()
        self._ended.set()

    def _reset(self) -> None:
        self._alarm = Alarm()
        self._stopping = asyncio.Event()
        self._ended = asyncio.Event()
        self._patience = asyncio.Timeout(None)

    @property
    def is_running(self) -> bool:
        """Whether `run` is under way."""
        return not self._ended.is_set()

    def run(self) -> Coroutine[Any, Any, None]:
        """Sweep every `interval` until `stop`, through outages. It may run again afterwards."""
        # Before its first step: a `stop` that comes right after `create_task(cleaner.run())` must be heard.
        self._refuse_twice()
        self._reset()
        self._ended.set()  # Nothing is under way yet.
        return self._run()

    def _refuse_twice(self) -> None:
        if self.is_running:
            raise RuntimeError("this cleaner is already running")

    async def _run(self) -> None:
        self._refuse_twice()
        self._ended.clear()
        try:
            with suppress(TimeoutError):
                async with self._patience:
                    await self._sweep_until_stopped()
        finally:
            self._ended.set()

    async def sweep_once(self) -> Swept:
        """Delete everything past its retention; how many of each. Nothing unless both durations were given."""
        if self._retention is None or self._interval is None:
            return Swept()
        return await self._sweep(self._retention, until=asyncio.Event())

    async def stop(self) -> None:
        """Let the batch under way end, and begin no other; returns when that is done."""
        self._stopping.set()
        if self.is_running:
            self._patience.reschedule(asyncio.get_running_loop().time() + LAST_SWEEP_SECONDS)
            await self._ended.wait()

    async def _sweep_until_stopped(self) -> None:
        if self._retention is None or self._interval is None:
            await self._stopping.wait()
            return
        retention, interval = self._retention, self._interval

        async def sweep() -> None:
            await self._sweep(retention, until=self._stopping)
            self._alarm.set(time.monotonic() + interval.total_seconds())

        # After a failure the interval is not waited for: the alarm is already due, and the retry loop backs off.
        repeater = RetryLoop(self._observer, stopping=self._stopping, after_failure=self._alarm.at_once)
        await repeater.repeat(sweep, when=self._interval_over, until=self._stopping)

    async def _interval_over(self) -> None:
        await asyncio.sleep(self._alarm.seconds_from(time.monotonic()))

    async def _sweep(self, retention: timedelta, until: asyncio.Event) -> Swept:
        total = Swept()
        while True:
            swept = await self._store.sweep(older_than=retention, limit=self._batch)
            total += swept
            if max(swept.delivered, swept.dead, swept.dedup) < self._batch or until.is_set():
                return total
            # Or a store that answers at once would block the event loop.
            await asyncio.sleep(0)
