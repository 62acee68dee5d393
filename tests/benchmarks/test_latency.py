"""How soon is measured while nothing else happens, and what a short run does otherwise stands beside each figure."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from benchmarks.bounds import verdicts
from benchmarks.lab import Bench, Lab
from benchmarks.results import Results
from benchmarks.scenarios import latency
from benchmarks.systems import OURS, STORES, System
from nightmail.stores.mysql import wakeups as mysql
from nightmail.stores.sqlite import wakeups as sqlite
from tests.benchmarks.fakes import FakeChild, bench


class Idle(FakeChild):
    """Sees each message two milliseconds late, and notes what was asked of it."""

    def __init__(self) -> None:
        super().__init__()
        self.gaps: list[tuple[float, float]] = []

    async def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        await super().ask(do)
        if do == "now_and_then":
            self.gaps.append((arguments["least"], arguments["most"]))
        late = {"count": 10_000, **dict.fromkeys(("min", "p50", "p95", "p99", "max"), 0.002)}
        return {"late": late, "last": 0.0}


@pytest.fixture(params=[False, True], ids=["full", "quick"])
def lab(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    lab = Lab(Results(quick=request.param), STORES)

    @asynccontextmanager
    async def benches(
        systems: Iterable[System], store: str, processes: int = 1
    ) -> AsyncIterator[list[Bench]]:
        yield [bench(system.label, *(Idle() for _ in range(processes))) for system in systems]

    async def slept(count: int, after: float, over: float) -> dict[str, float]:
        return dict.fromkeys(("min", "p50", "p99", "max"), 0.001)

    monkeypatch.setattr(lab, "benches", benches)
    monkeypatch.setattr(latency, "_slept", slept)
    yield lab
    lab.close()


async def test_a_verdict_about_timers_says_whether_all_systems_had_theirs_at_once(lab: Lab) -> None:
    await latency.lateness(lab, "redis")

    wanted = latency.TOGETHER if lab.quick else ""
    assert lab.results.failures == []
    assert {table.note for table in lab.results.tables} == {wanted}
    judged = [verdict for verdict in verdicts(lab.results) if verdict.value is not None]
    assert {verdict.bound.ours.case for verdict in judged} == {latency.P99, latency.LEAST}
    assert {verdict.note for verdict in judged} == {wanted}


async def test_each_message_is_picked_up_by_a_consumer_that_polls_as_seldom_as_it_does_when_idle(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher = Idle()

    @asynccontextmanager
    async def benches(
        systems: Iterable[System], store: str, processes: int = 1
    ) -> AsyncIterator[list[Bench]]:
        yield [bench(OURS.label, Idle(), publisher)]

    monkeypatch.setattr(lab, "benches", benches)
    await latency.pick_up(lab, "sqlite")

    assert lab.results.values("pick-up", latency.P95, "sqlite", OURS.label) == [2.0]
    ((least, most),) = publisher.gaps
    assert least > max(sqlite.BUSY_SECONDS, mysql.ASK_SECONDS)
    assert most > 2 * least
