"""What the questions to a system measure, with a system that only pretends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest

from benchmarks.adapters.by_hand import ByHand
from benchmarks.adapters.harness import Adapter, Harness, Send, Unsupported
from benchmarks.adapters.payload import ENCODED
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


async def test_between_messages_that_are_picked_up_nothing_happens_for_a_while() -> None:
    system, begun = Pretends(), time.time()

    await Harness(system).now_and_then("orders", count=5, least=0.02, most=0.06)

    gaps = [later - sooner for sooner, later in pairwise([begun, *system.stamps])]
    assert len(gaps) == 5
    assert min(gaps) >= 0.019
    assert max(gaps) - min(gaps) > 0.0005  # Not in step with anything that polls.


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


async def test_in_bulk_a_session_is_not_taken_for_an_own_commit() -> None:
    harness = Harness(Pretends())

    own = await harness.publish("orders", how="own", publishers=1, seconds=0.01, bulk=True)

    assert own["count"] % 1000 == 0
    with pytest.raises(Unsupported, match="AsyncSession"):
        await harness.publish("orders", how="session", publishers=1, seconds=0.01, bulk=True)


class CountsBeforeDeleting(ByHand):
    """A loop by hand without a database, that notes what was counted when it deletes."""

    def __init__(self, tally: Tally) -> None:
        super().__init__()
        self.left = [(number, ENCODED) for number in range(3)]
        self.counted: list[int] = []
        self.deleted = asyncio.Event()
        self._tally = tally

    @asynccontextmanager
    async def publisher(self, how: str) -> AsyncIterator[Send]:
        raise Unsupported(how)
        yield

    async def open(self, url: str, profile: str) -> None: ...

    async def insert(self, bodies: Sequence[bytes]) -> None: ...

    async def lease(self) -> Sequence[tuple[Any, bytes]]:
        leased, self.left = self.left, []
        return leased

    async def delete(self, ids: Sequence[Any]) -> None:
        self.counted.append(self._tally.count)
        self.deleted.set()

    async def close(self) -> None: ...


async def test_by_hand_counts_what_is_handled_before_it_is_deleted_as_a_handler_does() -> None:
    tally = Tally()
    loop = CountsBeforeDeleting(tally)

    await loop.start({"orders": "batch"}, {"orders": tally})
    await loop.deleted.wait()
    await loop.stop()

    assert loop.counted == [3]
