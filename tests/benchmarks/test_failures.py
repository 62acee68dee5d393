"""One system, server or environment that fails costs its own figures, and no others."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import venv
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from benchmarks import environments
from benchmarks.child import Child, ChildFailed
from benchmarks.environments import NoEnvironment, python_for
from benchmarks.lab import Bench, Lab
from benchmarks.registry import NO_STORE, SCENARIOS, Scenario
from benchmarks.results import Results, Table
from benchmarks.scenarios import latency, recovery
from benchmarks.scenarios.draining import Meter, work_off
from benchmarks.systems import OURS, STORES, System
from testkit.servers.errors import ServerError
from tests.benchmarks.fakes import FakeChild, bench

ECHO = """
import sys, time
for line in sys.stdin:
    if "slow" in line:
        time.sleep(60)
    print('{"ok": {}}', flush=True)
"""


@pytest.fixture
def here() -> Iterator[Lab]:
    lab = Lab(Results(quick=True), STORES)
    yield lab
    lab.close()


@asynccontextmanager
async def answering(log: Path) -> AsyncIterator[Child]:
    """A process that answers everything at once but `slow`."""
    log.touch()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", ECHO), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    child = Child(OURS, process, log)
    try:
        yield child
    finally:
        await child.end()


async def test_a_process_that_does_not_answer_in_time_is_killed(tmp_path: Path) -> None:
    async with answering(tmp_path / "log") as child:
        assert await child.ask("at once") == {}

        with pytest.raises(ChildFailed, match="no answer to slow"):
            await child.ask("slow", within=0.01)

        # Or the late answer would be taken for that to the next question.
        with pytest.raises(ChildFailed, match="ended during"):
            await child.ask("at once")


async def test_a_process_whose_answer_is_not_awaited_is_killed(tmp_path: Path) -> None:
    async with answering(tmp_path / "log") as child:
        asking = asyncio.create_task(child.ask("slow"))
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait([asking])

        with pytest.raises(ChildFailed, match="ended during"):
            await child.ask("at once")


async def test_what_fails_while_it_is_measured_is_told_to_stop() -> None:
    child = FakeChild("wait")

    with pytest.raises(ChildFailed, match="wait went wrong"):
        await work_off(bench("broken", child), "typed", 10)

    assert child.asked == ["start", "wait", "stop"]


async def test_what_cannot_be_started_is_told_to_stop() -> None:
    child, second = FakeChild("start", "stop"), FakeChild()

    with pytest.raises(ChildFailed, match="start went wrong"):
        await work_off(bench("broken", child, second), "typed", 10)

    assert [child.asked, second.asked] == [["start", "stop"], ["start", "stop"]]


async def test_processor_time_is_counted_between_the_first_message_and_the_last() -> None:
    # Half a second to start, one at work on all but the first ten, and two to stop.
    child, meter = Working(10, [0.5, 1.5, 3.5]), Meter()

    await work_off(bench("sound", child), "typed", 100, meter)

    assert meter.own == pytest.approx(1e6 / 90)
    assert meter.server is None


async def test_processor_time_of_a_drain_that_is_over_at_the_first_look_is_not_measured() -> None:
    meter = Meter()

    await work_off(bench("sound", Working(100, [0.5, 1.5])), "typed", 100, meter)

    assert meter.own is None


class Working(FakeChild):
    """Has handled so many when the first are looked for, and has then used so much processor time."""

    def __init__(self, first: int, used: list[float]) -> None:
        super().__init__()
        self._first, self._seconds = first, used

    async def wait(self, queue: str, count: int | None, *, patience: float) -> dict[str, Any]:
        return {**await super().wait(queue, count, patience=patience), "count": max(self._first, count or 0)}

    def processor_seconds(self) -> float:
        return self._seconds.pop(0)


async def test_all_at_once_are_measured_though_one_fails_in_an_unforeseen_way(here: Lab) -> None:
    table = Table("idle", "share", "sqlite", "%")

    async def measure(each: Bench) -> float:
        if each.label == "broken":
            raise OSError("the server has gone")
        await asyncio.sleep(0)
        return 1.0

    await here.at_once(table, [bench("broken", FakeChild()), bench("sound", FakeChild())], measure)

    assert here.results.values("idle", "share", "sqlite", "sound") == [1.0]
    assert [failure["error"] for failure in here.results.failures] == ["OSError: the server has gone"]


async def test_every_other_round_begins_with_the_last_system(here: Lab) -> None:
    turns: list[str] = []

    async def measure(each: Bench) -> float:
        turns.append(each.label)
        if each.label == "broken":
            raise OSError("the server has gone")
        return float(len(turns))

    table = Table("drain", "typed", "sqlite", "messages/s")
    those = [bench(label, FakeChild()) for label in ("ours", "broken", "by hand")]
    await here.interleave(table, those, measure, rounds=3)

    assert turns == ["ours", "broken", "by hand", "by hand", "ours", "ours", "by hand"]
    assert [(row.system, row.values) for row in table.rows] == [
        ("ours", [1, 5, 6]),
        ("broken", []),
        ("by hand", [3, 4, 7]),
    ]


async def test_recovery_is_measured_on_the_other_stores_though_a_server_does_not_start(
    here: Lab,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @asynccontextmanager
    async def benches(
        systems: Iterable[System], store: str, processes: int = 1
    ) -> AsyncIterator[list[Bench]]:
        if store == "redis":
            raise ServerError("no port is free")
        yield [bench(f"ours on {store}", Victim(), FakeChild())]

    monkeypatch.setattr(here, "benches", benches)
    await recovery.recovery(here, "all")

    assert [table.store for table in here.results.tables if any(row.values for row in table.rows)] == [
        "postgres",
        "mariadb",
        "sqlite",
    ]
    assert [failure["what"] for failure in here.results.failures] == ["recovery on redis"]


class Victim(FakeChild):
    """Can be killed."""

    def kill(self) -> None: ...


@pytest.mark.parametrize(
    "error", [subprocess.CalledProcessError(1, "ensurepip"), OSError("the disk is full")], ids=type
)
def test_an_environment_that_cannot_be_made_is_left_out(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(environments, "PLACE", tmp_path)
    monkeypatch.setattr(venv, "create", fails)

    with pytest.raises(NoEnvironment, match="pgqueuer could not be installed"):
        python_for("pgqueuer")


def test_what_could_not_be_installed_before_a_run_is_not_tried_again_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[Any] = []

    def fails(home: Path, **_: Any) -> None:
        tries.append(home)
        raise OSError("the disk is full")

    monkeypatch.setattr(environments, "PLACE", tmp_path)
    monkeypatch.setattr(environments, "_given_up", {})
    monkeypatch.setattr(venv, "create", fails)
    said: list[str] = []

    environments.prepare(["pgqueuer", "pgqueuer"], said.append)

    assert said == ["installing pgqueuer, once", "  that failed, and pgqueuer is left out"]
    with pytest.raises(NoEnvironment, match="the disk is full"):
        python_for("pgqueuer")
    assert len(tries) == 1


def test_what_is_installed_is_not_installed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def creates(home: Path, **_: Any) -> None:
        home.mkdir(parents=True)

    monkeypatch.setattr(environments, "PLACE", tmp_path)
    monkeypatch.setattr(environments, "_given_up", {})
    monkeypatch.setattr(venv, "create", creates)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: None)
    said: list[str] = []

    environments.prepare(["pgqueuer"], said.append)
    environments.prepare(["pgqueuer"], said.append)

    assert [line for line in said if "installing" in line] == ["installing pgqueuer, once"]


class Asked(Exception):
    """A scenario has named its systems."""


@pytest.mark.parametrize("one", SCENARIOS, ids=lambda one: one.name)
async def test_every_peer_of_a_scenario_is_installed_before_it_runs(
    one: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    @asynccontextmanager
    async def benches(
        systems: Iterable[System], store: str, processes: int = 1
    ) -> AsyncIterator[list[Bench]]:
        those = list(systems)
        wanted.update(system.environment for system in those if system.environment is not None)
        if len(those) > 1:
            raise Asked
        yield []  # It may ask for them one by one.

    async def server(store: str) -> None:
        raise Asked

    for store in one.seconds:
        if store == NO_STORE:
            continue
        wanted = set[str]()
        lab = Lab(Results(quick=False), STORES)
        monkeypatch.setattr(lab, "benches", benches)
        monkeypatch.setattr(lab, "server", server)
        with suppress(Asked):
            await one.run(lab, store)
        lab.close()

        assert wanted == set(one.environments(store))


def test_an_environment_whose_index_does_not_answer_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hangs(command: list[str], **_: Any) -> None:
        raise subprocess.TimeoutExpired(command, 900)

    monkeypatch.setattr(environments, "PLACE", tmp_path)
    monkeypatch.setattr(venv, "create", lambda *_, **__: None)
    monkeypatch.setattr(subprocess, "run", hangs)

    with pytest.raises(NoEnvironment, match="pgqueuer could not be installed"):
        python_for("pgqueuer")


class Draining(FakeChild):
    """Its timers are due at ten, and its backlog is over at this time, or never."""

    def __init__(self, over_at: float | None) -> None:
        super().__init__()
        self._over_at = over_at

    async def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        await super().ask(do)
        if do == "timers":
            return {"first": 9.0, "last": 10.0}
        late = {"count": 40, "p50": 0.001, "p99": 0.001, "min": 0.0, "max": 0.002}
        return {"late": late} if do == "report" else {}

    async def wait(self, queue: str, count: int | None, *, patience: float) -> dict[str, Any]:
        handled = 1 if self._over_at is None else 10_000
        return {
            "count": handled if count is None else count,
            "first": 1.0,
            "with_first": 1,
            "last": self._over_at or 12.0,
        }


@pytest.mark.parametrize(
    ("over_at", "rounds"),
    [
        pytest.param(None, 1, id="goes on"),
        pytest.param(11.0, 1, id="ended before late timers were handled"),
        pytest.param(9.0, 0, id="ended before the last was due"),
    ],
)
async def test_timers_count_as_beside_a_drain_only_if_it_went_on_until_the_last_was_due(
    over_at: float | None, rounds: int, here: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    @asynccontextmanager
    async def benches(
        systems: Iterable[System], store: str, processes: int = 1
    ) -> AsyncIterator[list[Bench]]:
        yield [bench("ours", Draining(over_at), Draining(over_at))]

    monkeypatch.setattr(here, "benches", benches)
    await latency.lateness_under_load(here, "sqlite")

    assert len(here.results.values("lateness-beside", latency.P99, "sqlite", "ours")) == rounds
    assert len(here.results.failures) == 1 - rounds
