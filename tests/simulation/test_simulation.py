"""Thousands of histories keep every promise; each is the same every time; and broken engines are noticed."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Final

import pytest

from faults.commits import last_change
from faults.report.results import read_results
from tests.simulation.__main__ import (
    SIMULATED,
    Tally,
    add_result,
    main,
    replay_command,
    simulate,
    simulate_many,
)
from tests.simulation.breakages import BREAKAGES, Breakage
from tests.simulation.checker import RULES
from tests.simulation.history import run

SEEDS: Final = 2000
CHUNK: Final = 250
ROOT: Final = Path(__file__).parents[2]
ENOUGH: Final = 300
"""How many histories a broken engine may take to be noticed."""
BY_NAME: Final = {each.name: each for each in BREAKAGES}
DIGEST: Final = """
import hashlib
from tests.simulation.history import run
print(hashlib.sha256("".join(run(seed).text() for seed in range(20)).encode()).hexdigest())
"""


def a_failing_seed(breakage: Breakage) -> int:
    """The first one that notices it, while it is broken."""
    seeds = range(breakage.first, breakage.first + ENOUGH)
    return next(seed for seed in seeds if run(seed).violation is not None)


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_every_history_keeps_every_promise(first: int) -> None:
    tally = simulate(range(first, first + CHUNK))

    assert not tally.violations, "\n".join(
        f"seed {seed}: {violation}\n    {replay_command(seed)}"
        for seed, violation in tally.violations.items()
    )


def test_histories_have_every_kind_of_fault() -> None:
    faults = simulate(range(100)).faults

    assert set(faults) == {
        "cut off", "lost request", "lost reply", "late request", "late reply", "heard late", "twice", "busy", "hangs",
        "wake-up lost", "wake-up twice", "kill", "freeze", "stop", "hurry", "outage",
        "pause", "stop request",
    }  # fmt: skip


def test_a_seed_gives_the_same_history_each_time() -> None:
    once = [run(seed).text() for seed in range(20)]

    assert [run(seed).text() for seed in range(20)] == once
    assert len(set(once)) == 20


def test_a_history_is_not_over_while_a_dead_process_has_a_transaction_open() -> None:
    assert run(5979).violation is None


@pytest.mark.parametrize("hash_seed", ["1", "4711"])
def test_a_seed_gives_the_same_history_in_every_process(hash_seed: str) -> None:
    here = hashlib.sha256("".join(run(seed).text() for seed in range(20)).encode()).hexdigest()
    there = subprocess.run(
        [sys.executable, "-c", DIGEST],
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )

    assert there.stdout.strip() == here


def test_a_seed_can_be_replayed_and_read() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "tests.simulation", "--replay", "3"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )

    assert shown.stdout.startswith("seed 3\nfeatures: ")
    assert shown.stdout.endswith("kept every promise\n")


# One that ends a history early, and one that is noticed when all should have been delivered.
@pytest.mark.parametrize("name", ["leases end early", "only a wake-up makes a worker look"])
def test_a_failing_seed_replays_in_under_a_second_and_prints_its_history(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with BY_NAME[name].broken():
        seed = a_failing_seed(BY_NAME[name])
        monkeypatch.setattr(sys, "argv", ["tests.simulation", "--replay", str(seed)])
        begun = time.process_time()
        failed = main()
        took = time.process_time() - begun
        events = [str(event) for event in run(seed).events]

    shown = capsys.readouterr().out
    assert failed
    assert shown.startswith(f"seed {seed}\nfeatures: ")
    # All that happened, to the last event, and then what was wrong.
    history, _, verdict = shown.partition("\n\nVIOLATION: ")
    assert history.endswith("\n".join(events))
    assert len(events) > 20
    assert verdict.partition(":")[0] in BY_NAME[name].noticed_by
    # Of processor time: another process on the machine must not decide.
    assert took < 1.0


def test_a_failing_seed_is_in_the_results(tmp_path: Path) -> None:
    breakage = BY_NAME["leases end early"]
    with breakage.broken():
        seed = a_failing_seed(breakage)
        tally = simulate([seed])
    path = tmp_path / "simulation.jsonl"

    add_result(path, seed, tally)
    add_result(path, seed + 1, Tally(seeds=1))

    found = read_results(tmp_path).simulations
    assert [(each.violations, each.failing) for each in found] == [(1, [seed]), (0, [])]


def test_what_came_of_it_is_added_to_the_results(tmp_path: Path) -> None:
    path = tmp_path / "simulation.jsonl"
    path.write_text('{"seeds": 9, "commit": "0000000"}\n')

    simulate_many(0, 3, 1, path)
    simulate_many(3, 2, 1, path)

    found = read_results(tmp_path).simulations
    assert [(each.seeds, each.violations) for each in found] == [(3, 0), (2, 0)]
    assert {each.commit for each in found} == {last_change(SIMULATED)}


def test_a_history_runs_no_code_of_ours_but_what_is_listed() -> None:
    ran: set[str] = set()

    def note(frame: FrameType, _event: str, _arg: object) -> None:
        ran.add(frame.f_code.co_filename)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        for seed in range(20):
            run(seed)
    finally:
        sys.setprofile(before)

    listed = {str(path) for pattern in SIMULATED for path in ROOT.glob(pattern.replace("/**", "/**/*"))}
    ours = {each for each in ran if each.startswith(f"{ROOT}/") and "/.venv/" not in each}
    assert ours - {__file__} <= listed


@pytest.mark.parametrize("breakage", BREAKAGES, ids=lambda breakage: breakage.name)
def test_a_broken_engine_is_noticed(breakage: Breakage) -> None:
    with breakage.broken():
        violations = (run(seed).violation for seed in range(breakage.first, breakage.first + ENOUGH))
        first = next((each for each in violations if each is not None), None)

    assert first is not None
    assert first.rule in breakage.noticed_by


def test_every_rule_notices_a_broken_engine() -> None:
    assert {rule.__name__ for rule in RULES} == set().union(*(each.noticed_by for each in BREAKAGES))
