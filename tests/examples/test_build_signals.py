"""A build is followed to its end by one message that postpones itself."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import create_async_engine

from examples.build_signals.local import LocalRunner
from examples.build_signals.noop import NoopRunner
from examples.build_signals.runner import BuildId, BuildRunner, BuildStatus, UnknownBuild
from examples.build_signals.scripted import Script
from examples.build_signals.stages import SIGNALS, Builds, Patience
from examples.build_signals.tables import Base, Batch, Build, Wake
from nightmail.outcome import Postpone, Release
from tests.broker.callers import engine_url
from tests.broker.support import Heard
from tests.examples.build_process import (
    ACCEPTED,
    KILLED,
    MOMENTS,
    QUICK,
    RUNNING,
    Attempts,
    Fate,
    FatedRunner,
    stages,
    until_nothing_is_left,
)

ROOT = Path(__file__).parents[2]
BUILD = BuildId("scripted-batch-1")


@pytest.fixture(params=["sqlite", "postgres", "mysql"])
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database with the application's tables."""
    found = (
        f"sqlite:///{tmp_path / 'builds.db'}"
        if request.param == "sqlite"
        else request.getfixturevalue(f"{request.param}_url")
    )
    engine = create_async_engine(engine_url(found))
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    await engine.dispose()
    return str(found)


def runner_at(directory: Path, script: Script | None = None) -> FatedRunner:
    """A runner that is not going to die."""
    return FatedRunner(directory, script or Script(), Fate())


async def request(builds: Builds, **fields: object) -> None:
    """Have a batch built."""
    async with builds._sessions() as session, session.begin():
        await builds.request(session, Batch(**{"base": ["a"], "head": ["b", "c"]} | fields))


async def wakes(builds: Builds) -> list[tuple[str, str]]:
    """For what the next stage was woken, in order."""
    async with builds._sessions() as session:
        return [
            (wake.build_id, wake.status) for wake in await session.scalars(select(Wake).order_by(Wake.id))
        ]


async def build_of(builds: Builds, build_id: str = BUILD) -> Build:
    """The build as it is stored."""
    async with builds._sessions() as session:
        return (await session.scalars(select(Build).where(Build.id == build_id))).one()


async def test_accepted_twice_running_thrice_then_succeeded_takes_six_polls_and_no_failure(
    url: str, tmp_path: Path
) -> None:
    runner, heard = runner_at(tmp_path), Heard()
    async with stages(url, runner, observer=heard) as builds:
        await request(builds)
        await until_nothing_is_left(builds)
        await heard.until(lambda: len(heard.acked) == 4)

        assert runner.triggered == [(["a"], ["b", "c"])]
        assert runner.polls(BUILD) == 6
        # On a busy machine a message may be handed back before it starts: that is no attempt, and no failure.
        polled = [outcome for _, outcome in heard.outcomes if outcome != Release()]
        assert polled == [Postpone(ACCEPTED)] * 2 + [Postpone(RUNNING)] * 3
        assert await wakes(builds) == [(BUILD, "running"), (BUILD, "succeeded")]
        assert (await build_of(builds)).status == BuildStatus.SUCCEEDED
        assert await builds.broker.dead_letters() == []
    assert heard.errors == []
    assert heard.lost == []


@pytest.mark.parametrize(
    ("url", "poll"),
    # Every step on one store; on the others, one at which the status changes and one at which all ends.
    [("sqlite", 1), ("sqlite", 3), ("sqlite", 6), ("postgres", 3), ("mysql", 6)],
    indirect=["url"],
)
@pytest.mark.parametrize("moment", MOMENTS)
async def test_the_same_when_the_worker_is_killed_at_any_step(
    url: str, tmp_path: Path, moment: str, poll: int
) -> None:
    async with stages(url, runner_at(tmp_path)) as builds:
        await builds.broker.stop()  # No worker runs here yet.
        await builds.broker.connect()
        await request(builds)
    killed = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.examples.build_process", url, tmp_path, moment, str(poll), cwd=ROOT
    )
    async with asyncio.timeout(60):
        assert await killed.wait() == KILLED

    runner, attempts = runner_at(tmp_path), Attempts()
    async with stages(url, runner, observer=attempts) as builds:
        await until_nothing_is_left(builds)

        # The last answer, when it died with its process before it was written down, must be asked for again.
        unheard = poll == 6 and moment in ("after the poll", "before the commit")
        assert runner.polls(BUILD) == (7 if unheard else 6)
        assert attempts.seen <= {1}
        assert [wake for wake in await wakes(builds) if wake[1] == "succeeded"] == [(BUILD, "succeeded")]
        assert (await build_of(builds)).status == BuildStatus.SUCCEEDED
        assert await builds.broker.dead_letters() == []


async def test_a_runner_that_cannot_be_asked_costs_attempts_and_in_the_end_the_build(
    url: str, tmp_path: Path
) -> None:
    runner, heard = runner_at(tmp_path, Script(failing_polls=frozenset({2, 3, 4}))), Heard()
    async with stages(url, runner, observer=heard) as builds:
        await request(builds)
        await until_nothing_is_left(builds)

        assert runner.polls(BUILD) == 4
        assert heard.errors == ["ConnectionError"] * 3
        build = await build_of(builds)
        assert (build.status, build.note) == (BuildStatus.FAILED, "its signal died: retries_exhausted")
        assert await wakes(builds) == [(BUILD, "failed")]


async def test_a_failure_now_and_then_is_forgotten_with_the_next_answer(url: str, tmp_path: Path) -> None:
    runner = runner_at(tmp_path, Script(accepted=6, failing_polls=frozenset({1, 2, 4, 5})))
    async with stages(url, runner) as builds:
        await request(builds)
        await until_nothing_is_left(builds)

        assert (await build_of(builds)).status == BuildStatus.SUCCEEDED


async def test_a_build_that_never_ends_is_given_up(url: str, tmp_path: Path) -> None:
    patience = replace(QUICK, at_all=timedelta(seconds=1))
    runner = runner_at(tmp_path, Script(accepted=1, running=1_000_000))
    async with stages(url, runner, patience=patience) as builds:
        await request(builds)
        await until_nothing_is_left(builds)

        build = await build_of(builds)
        assert (build.status, build.note) == (BuildStatus.FAILED, "its signal died: expired")
        assert (await wakes(builds))[-1] == (BUILD, "failed")


async def test_a_build_that_is_not_wanted_is_asked_to_stop(url: str, tmp_path: Path) -> None:
    runner = runner_at(tmp_path, Script(accepted=1, running=1_000_000))
    async with stages(url, runner) as builds:
        await request(builds)
        async with asyncio.timeout(30):
            while await wakes(builds) == []:  # noqa: ASYNC110 - the database is what is watched
                await asyncio.sleep(0.02)
        async with builds._sessions() as session, session.begin():
            await session.execute(update(Batch).values(wanted=False))
        await until_nothing_is_left(builds)

        assert await wakes(builds) == [(BUILD, "running"), (BUILD, "cancelled")]


async def test_a_cancellation_that_fails_does_not_fail_the_poll(url: str, tmp_path: Path) -> None:
    runner, heard = runner_at(tmp_path), Heard()

    async def refuse(build_id: BuildId) -> None:
        raise ConnectionError("cannot be asked to stop")

    runner.cancel = refuse  # type: ignore[method-assign]
    async with stages(url, runner, observer=heard) as builds:
        await request(builds, wanted=False)
        await until_nothing_is_left(builds)

        assert (await build_of(builds)).status == BuildStatus.SUCCEEDED
    assert heard.errors == []


async def test_a_signal_without_a_build_is_a_dead_letter_that_harms_no_other(
    url: str, tmp_path: Path
) -> None:
    async with stages(url, runner_at(tmp_path)) as builds:
        await builds.broker.publish("no such build", SIGNALS)
        await request(builds)
        await until_nothing_is_left(builds)

        assert (await build_of(builds)).status == BuildStatus.SUCCEEDED


def test_unless_told_otherwise_it_asks_every_five_and_every_two_seconds() -> None:
    assert Patience().between == {
        BuildStatus.ACCEPTED: timedelta(seconds=5),
        BuildStatus.RUNNING: timedelta(seconds=2),
    }


async def test_builds_that_are_not_built_have_ids_of_their_own() -> None:
    runner: BuildRunner = NoopRunner()
    first, second = [await runner.trigger([], [], {}) for _ in range(2)]

    assert first != second
    assert await runner.status(first) == (BuildStatus.SUCCEEDED, {})
    await runner.cancel(first)


@pytest.mark.parametrize(("code", "status"), [(0, BuildStatus.SUCCEEDED), (3, BuildStatus.FAILED)])
async def test_a_command_succeeds_or_fails_by_its_exit_code(code: int, status: BuildStatus) -> None:
    runner = LocalRunner(sys.executable, "-c", "import sys; sys.exit(int(sys.argv[1]))")
    build_id = await runner.trigger([], [str(code)], {})
    await runner._builds[build_id].wait()

    assert await runner.status(build_id) == (status, {"exit": str(code)})
    await runner.cancel(build_id)
    assert (await runner.status(build_id))[0] == status


async def test_a_command_can_be_cancelled_and_the_same_key_is_the_same_build() -> None:
    runner = LocalRunner(sys.executable, "-c", "import time; time.sleep(60)")
    build_id = await runner.trigger([], [], {"idempotency-key": "k"})

    assert await runner.trigger([], [], {"idempotency-key": "k"}) == build_id
    assert (await runner.status(build_id))[0] == BuildStatus.RUNNING
    await runner.close()
    assert (await runner.status(build_id))[0] == BuildStatus.CANCELLED
    with pytest.raises(UnknownBuild):
        await runner.status(BuildId("unknown"))


def test_the_example_runs_as_it_stands() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "examples.build_signals"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "the build of batch 1 succeeded" in ran.stdout
    assert "the build of batch 2 cancelled" in ran.stdout
