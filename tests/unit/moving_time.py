"""Time that passes when it is waited for: on the event loop, and on the clock of a store."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from datetime import datetime, timedelta

import pytest_asyncio

from nightmail.testing.clock import START
from tests.counters.clocks import same_on_every_machine


class LoopClock:
    """A store's clock that shows the event loop's time."""

    def __init__(self) -> None:
        self._begun = time.monotonic()

    def now(self) -> datetime:
        """The time shown."""
        return START + timedelta(seconds=time.monotonic() - self._begun)


@pytest_asyncio.fixture
async def loop_clock() -> AsyncIterator[LoopClock]:
    """Hours pass in no time, as soon as everything waits."""
    with same_on_every_machine():
        yield LoopClock()
