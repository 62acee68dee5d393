"""A process whose clock is off says so itself, and a run in which it is not is none."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from faults.clock import Clock, NotOff, ahead
from faults.journal import read
from faults.place import Place
from faults.stage import Stage

HOUR = 3600

pytestmark = [
    pytest.mark.sqlite,
    pytest.mark.skipif(not (shutil.which("cc") or shutil.which("gcc")), reason="needs a C compiler"),
]


@asynccontextmanager
async def a_stage(directory: Path) -> AsyncIterator[Stage]:
    stage = Stage(
        Place("sqlite", f"sqlite:///{directory / 'messages.db'}"),
        directory,
        seed=1,
        faults=1,
        say=lambda _: None,
        worker_options={},
        publisher_options={},
    )
    await stage.open()
    try:
        yield stage
    finally:
        await stage.clear()


async def test_processes_go_by_the_clock_that_they_are_given(tmp_path: Path) -> None:
    async with a_stage(tmp_path) as stage:
        await stage.add_publisher(clock=Clock(tmp_path, "fast", seconds=HOUR))
        await stage.add_worker(clock=Clock(tmp_path, "slow", seconds=-HOUR))

    lines = read(tmp_path / "journal.jsonl")
    off = {line.process: (line.ahead or 0.0) - ahead() for line in lines if line.what == "booted"}
    assert off == {
        "publisher-1": pytest.approx(HOUR, abs=1),
        "worker-1": pytest.approx(-HOUR, abs=1),
    }
    assert [line.target for line in lines if line.kind == "clock off"] == ["publisher-1", "worker-1"]


async def test_a_clock_that_is_right_after_all_ends_the_run(tmp_path: Path) -> None:
    clock = Clock(tmp_path, "fast", seconds=HOUR)
    # The loader says that it is not there, and goes on without it.
    Path(clock.environment["LD_PRELOAD"]).unlink()

    async with a_stage(tmp_path) as stage:
        with pytest.raises(
            NotOff, match=r"the clock of worker-1 is [+-]0\.0 s off, and was to be \+3600 s off"
        ):
            await stage.add_worker(clock=clock)

    assert not [line for line in read(tmp_path / "journal.jsonl") if line.kind == "clock off"]
