"""What the questions to a system measure, with a system that only pretends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest

from benchmarks.adapters.harness import Adapter, Harness, Send, Unsupported
from benchmarks.adapters.tally import Tally


class Pretends(Adapter):
    """Notes what is published. The first publish of many may take a while."""

    def __init__(self, *, slow: float = 0.0, lacks: str = "") -> None:
        self.stamps: list[float] = []
        self.opened: list[str] = []
        self._slow, self._lacks = slow, lacks

    @asynccontextmanager
    async def publisher(self, how: str) -> AsyncIterator[Send]:
        if how == self._lacks:
            raise Unsupported(how)
        self.opened.append(how)

        async def send(body: dict[str, Any], queue: str, due: float | None, timer: str | None) -> object:
            await self.publish_many([body], queue, due)
            return timer

        yield send

    async def publish_many(self, bodies: list[dict[str, Any]], queue: str, due: float | None) -> None:
        first, self._slow = self._slow, 0.0
        await asyncio.sleep(first)
        self.stamps += [body["total"] for body in bodies]

    async def open(self, url: str, profile: str) -> None: ...

    async def start(self, handlers: Mapping[str, str], tallies: Mapping[str, Tally]) -> None: ...

    async def stop(self) -> None: ...

    async def close(self) -> None: ...


async def test_a_stream_stamps_when_each_was_planned_however_slow_publishing_is() -> None:
    system = Pretends(slow=0.1)

    answer = await Harness(system).pace("orders", rate=100, seconds=0.2, step=0.02)

    between = [later - sooner for sooner, later in pairwise(system.stamps[::2])]
    assert between == pytest.approx([0.02] * 9, abs=1e-5)
    assert answer["count"] == 20
    assert answer["behind"] > 0.05


async def test_one_by_one_stamps_when_each_is_sent() -> None:
    system = Pretends(slow=0.1)

    await Harness(system).pace("orders", rate=100, seconds=0.02, step=0)

    # The second was planned 0.01 s after the first.
    assert system.stamps[1] - system.stamps[0] > 0.09


@pytest.mark.parametrize(("lacks", "used"), [("", "own"), ("own", "session"), ("session", "own")])
async def test_timers_are_published_by_an_own_commit_or_else_in_a_session(lacks: str, used: str) -> None:
    system = Pretends(lacks=lacks)

    answer = await Harness(system).timers("timers", count=3, after=0.5, spread=0.1)

    assert system.opened == [used]
    assert time.time() < answer["first"] <= answer["last"]


async def test_what_a_system_lacks_is_not_measured_in_another_way() -> None:
    system = Pretends(lacks="own")

    with pytest.raises(Unsupported):
        await Harness(system).publish("orders", how="own", publishers=1, seconds=0.01, timers=True)
