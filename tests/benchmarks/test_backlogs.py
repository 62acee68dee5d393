"""How much each system is given to do, by how many processes, and for how long."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from benchmarks.child import Child
from benchmarks.lab import Bench, Lab
from benchmarks.registry import SCENARIOS
from benchmarks.results import Results
from benchmarks.scenarios import drain, million, steady
from benchmarks.scenarios.draining import drained
from benchmarks.servers import SERVERS, Server
from benchmarks.systems import OURS_QUIET, STORES, System
from tests.benchmarks.fakes import FakeChild, FakeServer, bench


class Steady(FakeChild):
    """Handles so many messages a second, and notes what it is asked for."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self._rate, self._published = rate, 0
        self.backlogs: list[int] = []
        self.kinds: list[str] = []
        self.paced: list[float] = []

    async def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        await super().ask(do)
        match do:
            case "fill":
                self.backlogs.append(arguments["count"])
            case "start":
                self.kinds += arguments["handlers"].values()
            case "pace":
                self.paced.append(arguments["seconds"])
                self._published = int(arguments["rate"] * arguments["seconds"])
                return {"count": self._published, "seconds": arguments["seconds"], "behind": 0.0}
            case "report":
                late = {"p50": 0.001, "p99": 0.002, "max": 0.003}
                return {"count": 10**9, "late": late, "seconds": [{"at": 1.0, **late}]}
        return {}

    async def wait(self, queue: str, count: int | None, *, patience: float) -> dict[str, Any]:
        count = self.backlogs[-1] if count is None and self.backlogs else count or 0
        return {"count": count, "first": 1.0, "with_first": 1, "last": 1.0 + (count or 2) / self._rate}


@pytest.fixture
def lab() -> Iterator[Lab]:
    lab = Lab(Results(quick=False), STORES)
    yield lab
    lab.close()


@pytest.mark.parametrize(
    ("kind", "rate", "backlog"),
    [
        pytest.param("typed", 20_000, 30_000, id="a second and a half"),
        pytest.param("typed", 90_000, 50_000, id="not too many to publish"),
        pytest.param("plain", 40_000, 80_000, id="two seconds of a fast handler"),
        pytest.param("batch", 200_000, 150_000, id="more of a fast handler"),
        pytest.param("plain", 1_000, 10_000, id="more than what the first claims take"),
    ],
)
async def test_a_backlog_is_as_large_as_the_system_is_fast(
    kind: str, rate: float, backlog: int, lab: Lab
) -> None:
    child = Steady(rate)
    system = bench("steady", child)
    system.sizes.clear()

    await drained(lab, system, kind)

    assert child.backlogs[-1] == pytest.approx(backlog, rel=0.02)


async def test_two_processes_have_every_kind_of_handler_and_peers_a_typed_one(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    children: dict[str, list[Steady]] = {}

    @asynccontextmanager
    async def benches(
        systems: Iterable[System], store: str, processes: int = 1
    ) -> AsyncIterator[list[Bench]]:
        found = []
        for system in systems:
            those = children[system.label] = [Steady(10_000) for _ in range(processes)]
            found.append(Bench(system, FakeServer(), "fake://", list(those)))  # type: ignore[arg-type]
        yield found

    monkeypatch.setattr(lab, "benches", benches)
    await drain._by_two(lab, "postgres", {"plain": 40_000, "batch": 90_000, "sync": 5_000})

    assert lab.results.failures == []
    ours, second = children.pop(OURS_QUIET.label)
    assert set(ours.kinds) == set(second.kinds) == {"typed", "plain", "batch", "sync"}
    assert {40_000, 90_000, 5_000} <= set(ours.backlogs)
    assert {kind for those in children.values() for child in those for kind in child.kinds} == {"typed"}
    for kind, case in drain.BY_TWO.items():
        rounds = lab.results.values("drain", case, "postgres", OURS_QUIET.label)
        assert len(rounds) == (1 if kind == "sync" else 2)


@pytest.mark.parametrize("store", STORES)
async def test_ours_has_a_steady_stream_for_a_minute_on_every_store(
    store: str, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    paced: dict[str, list[float]] = {}

    @asynccontextmanager
    async def benches(
        systems: Iterable[System], store: str, processes: int = 1
    ) -> AsyncIterator[list[Bench]]:
        found = []
        for system in systems:
            those = [Steady(1_000) for _ in range(processes)]
            paced[system.label] = those[1].paced
            found.append(Bench(system, FakeServer(), "fake://", list(those)))  # type: ignore[arg-type]
        yield found

    monkeypatch.setattr(lab, "benches", benches)
    await steady.steady(lab, store)

    assert lab.results.failures == []
    assert paced.pop(OURS_QUIET.label) == [60.0]
    assert {seconds for those in paced.values() for seconds in those} <= {10.0}
    rows = [row for table in lab.results.tables for row in table.rows if row.system == OURS_QUIET.label]
    assert {row.note for row in rows} == {""}


async def test_what_the_last_of_a_million_took_is_looked_at_too() -> None:
    class Draining(Steady):
        async def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
            return {"marks": []} if do == "report" else await super().ask(do, **arguments)

        async def wait(self, queue: str, count: int | None, *, patience: float) -> dict[str, Any]:
            await asyncio.sleep(0)
            self.handled = time.time()
            return await super().wait(queue, count, patience=patience)

        def memory_mb(self) -> float:
            return 50.0

    child = Draining(1_000)

    _, looks = await million._drained(bench("ours", child), cast("Child", child), 10, 60.0)

    assert len(looks) == 2
    assert looks[0].at <= child.handled <= looks[1].at


def test_a_snapshot_can_be_held_wherever_it_is_planned() -> None:
    (planned,) = [one for one in SCENARIOS if one.name == "snapshot"]

    assert set(planned.seconds) == {"postgres", "mariadb"}
    for store in planned.seconds:
        assert type(SERVERS[store]()).held_snapshot is not Server.held_snapshot
