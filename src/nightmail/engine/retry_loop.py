"""Repeating a step, through outages."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from datetime import timedelta
from typing import Any, Final, TypeAlias

from nightmail.engine.next_look import backoff
from nightmail.observe import Observer

Step: TypeAlias = Callable[[], Coroutine[Any, Any, None]]
LAST_PAUSE: Final = 0.25
"""How long to wait between two tries while the worker stops: what is not written in time stays leased."""


async def at_once() -> None:
    """Without waiting."""


class RetryLoop:
    """Repeats a step whenever it is time; a store that is down slows it, but does not stop it."""

    def __init__(
        self, observer: Observer, *, stopping: asyncio.Event, after_failure: Callable[[], None]
    ) -> None:
        self.is_failing = False
        """Whether the last call to the store failed."""
        self._observer = observer
        self._stopping = stopping
        self._after_failure = after_failure

    async def repeat(
        self, step: Step, *, when: Step = at_once, until: asyncio.Event, once: bool = False
    ) -> None:
        """Take the step each time `when()` completes, until `until` is set; `once`: until it has succeeded."""
        failures = 0
        while not until.is_set() and await happens_before(when(), until):  # Waiting may be interrupted,
            try:
                await step()  # a step never is.
            except Exception as error:  # noqa: BLE001 - whatever it is, stopping would strand every message in flight
                failures += 1
                self.is_failing = True
                self._after_failure()
                self._observer.store_unavailable(error, timedelta(seconds=backoff(failures, lambda: 1.0)))
                await self._pause(failures, until)
                continue
            if failures:
                failures = 0
                self.is_failing = False
                self._observer.store_recovered()
            if once:
                return

    async def _pause(self, failures: int, until: asyncio.Event) -> None:
        """Wait a while before the next try, longer after each failure. A stop ends the wait."""
        if self._stopping.is_set():
            await happens_before(asyncio.sleep(min(backoff(failures), LAST_PAUSE)), until)
        else:
            await happens_before(asyncio.sleep(backoff(failures)), self._stopping)


async def happens_before(waiting: Awaitable[None], until: asyncio.Event) -> bool:
    """Wait for one of the two; whether the first came before the second."""
    first = asyncio.ensure_future(waiting)
    second = asyncio.ensure_future(until.wait())
    try:
        await asyncio.wait({first, second}, return_when=asyncio.FIRST_COMPLETED)
        if first.done():
            first.result()
        return not until.is_set()
    finally:
        # The cancelled wait for the event is not awaited: that would cost two turns of the event loop each time.
        second.cancel()
        if not first.done():
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
