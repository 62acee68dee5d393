"""What a run says about itself repeats it."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from faults import __main__
from faults.place import Place
from faults.plan import Row
from faults.report.results import Unplayed, read_results
from faults.run import again, run
from faults.scenarios import SCENARIOS

pytestmark = pytest.mark.sqlite


async def test_the_command_asks_for_as_many_faults_as_there_were_to_be(tmp_path: Path) -> None:
    place = Place("sqlite", f"sqlite:///{tmp_path / 'messages.db'}")
    found, _ = await run(SCENARIOS["kills"], place, tmp_path, seed=4, faults=2)

    assert found.asked == 2
    assert shlex.split(again(replace(found, asked=12))) == [
        "make", "faults", "SCENARIO=kills", "STORE=sqlite", "SEED=4", "ARGS=--faults 12",
    ]  # fmt: skip


@pytest.mark.parametrize("chosen", [("--scenario", "kills"), ()])
def test_a_run_that_crashes_is_a_result_and_a_failure(
    chosen: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: object, **__: object) -> None:
        raise TimeoutError("it hangs")

    monkeypatch.setattr(__main__, "run", crash)
    monkeypatch.setattr(__main__, "rows", lambda _: [Row(SCENARIOS["kills"], "sqlite", 3)])
    monkeypatch.setattr(__main__, "last_change", lambda: "abc")
    results = tmp_path / "runs.jsonl"
    options = ["--seed", "7", "--faults", "3", "--results", str(results)]
    monkeypatch.setattr(sys, "argv", ["faults", *chosen, *options])

    assert __main__.main() == 1

    assert read_results(tmp_path).unplayed == [
        Unplayed(scenario="kills", store="sqlite", seed=7, asked=3, error="TimeoutError", commit="abc")
    ]
