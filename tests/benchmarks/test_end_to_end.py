"""The quickest scenario with tiny numbers, from the command's inside to its files: no servers, no peers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks import report
from benchmarks.bounds import BOUNDS, verdicts
from benchmarks.environments import ROOT
from benchmarks.registry import SCENARIOS, chosen, full_run
from benchmarks.results import FULL, Results
from benchmarks.run import run
from benchmarks.systems import STORES

PICTURES = "https://raw.githubusercontent.com/nightmail-py/nightmail/main/benchmarks/results/full/"
TINY = [scenario for scenario in SCENARIOS if scenario.name in ("publish", "drain")]


@pytest.mark.sqlite
@pytest.mark.slow
def test_a_run_prints_tables_and_verdicts_and_writes_what_it_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "results" / "tiny.json"

    results = run(TINY, ["sqlite"], path, tiny=True)

    printed = capsys.readouterr().out
    assert results.failures == []
    batches = results.table("drain", "batch handler of 100", "sqlite")
    assert batches is not None
    assert [row.system for row in batches.rows] == ["nightmail, no log", "by hand"]
    assert all(value > 0 for row in batches.rows for value in row.values)
    assert "sqlite: drain, batch handler of 100, of by hand" in printed
    assert "version" in results.servers["sqlite"]
    read = Results.read(path)
    assert [table.case for table in read.tables] == [table.case for table in results.tables]
    assert [verdict.holds for verdict in verdicts(read)] == [verdict.holds for verdict in verdicts(results)]


def test_a_scenario_that_fails_is_noted_and_the_next_one_runs(tmp_path: Path) -> None:
    scenario = TINY[0]

    async def breaks(lab: object, store: str) -> None:
        raise RuntimeError("broken on purpose")

    async def works(lab: object, store: str) -> None:
        ran.append(store)

    ran: list[str] = []
    both = [
        type(scenario)("breaks", "", breaks, {"sqlite": 1.0}, {}),
        type(scenario)("works", "", works, {"sqlite": 1.0}, {}),
    ]

    results = run(both, ["sqlite"], tmp_path / "results.json")

    assert ran == ["sqlite"]
    assert results.failures == [{"what": "breaks on sqlite", "error": "RuntimeError: broken on purpose"}]


def test_every_bound_is_judged_even_when_nothing_was_measured() -> None:
    assert [verdict.word for verdict in verdicts(Results(quick=False))] == ["not measured"] * len(BOUNDS)


def test_every_bound_belongs_to_a_scenario_that_can_measure_it() -> None:
    known = {scenario.name for scenario in SCENARIOS}
    assert {bound.ours.scenario for bound in BOUNDS} <= known
    for bound in BOUNDS:
        (scenario,) = [one for one in SCENARIOS if one.name == bound.ours.scenario]
        assert bound.ours.store in {*scenario.seconds, *(STORES if "all" in scenario.seconds else ())}


def test_the_page_in_the_documentation_is_written_from_the_committed_results() -> None:
    assert report.PAGE.read_text() == report.text(report.committed()), "run `python -m benchmarks report`"


def test_the_committed_results_are_of_a_full_run_of_all_that_there_is_now() -> None:
    results = Results.read(FULL)

    missing = [name for name in full_run() if name not in results.parts]
    assert missing == [], "added since: run `make bench`"
    assert results.everything
    assert re.search(r"^A full run: ", report.PAGE.read_text(), re.MULTILINE)


def test_the_readme_shows_pictures_of_the_committed_run() -> None:
    shown = re.findall(rf"!\[[^]]+\]\({re.escape(PICTURES)}([^)]+)\)", (ROOT / "README.md").read_text())

    assert bool(shown) == FULL.exists(), (
        f"![Publishing and draining on Postgres]({PICTURES}overview.png) is for README.md"
    )
    assert [name for name in shown if not (FULL.with_suffix("") / name).exists()] == []


def test_a_run_of_everything_is_planned_to_end_within_45_minutes() -> None:
    everything = chosen(None)

    asked_for = {one.name for one in SCENARIOS} - {one.name for one in everything}
    assert asked_for == {"operating", "takeover", "ten-million"}
    assert sum(sum(one.seconds.values()) for one in everything) < 45 * 60


def test_the_committed_run_of_everything_took_less_than_45_minutes() -> None:
    results = Results.read(FULL)

    assert results.seconds < 45 * 60


def test_a_quick_run_is_planned_to_end_within_three_minutes() -> None:
    assert sum(sum(one.quick.values()) for one in chosen(None)) < 180


def test_a_quick_run_measures_only_what_a_full_one_does() -> None:
    assert [one.name for one in SCENARIOS if not set(one.quick) <= set(one.seconds)] == []


def test_a_scenario_that_a_run_of_everything_leaves_out_can_be_asked_for() -> None:
    assert [one.name for one in chosen(["operating"])] == ["operating"]
