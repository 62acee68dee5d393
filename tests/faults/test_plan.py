"""The plan of the long run."""

from __future__ import annotations

from faults.plan import FAULTS, Estimate, rows, table
from faults.scenarios import SCENARIOS
from tests.faults.test_report import a_run


def test_every_scenario_runs_on_every_store_it_has_before_any_comes_again() -> None:
    pairs = {(name, store) for name, scenario in SCENARIOS.items() for store in scenario.stores}
    plan = [row.pair for row in rows(2)]

    assert set(plan[: len(pairs)]) == pairs
    assert len(plan) == 2 * len(pairs)
    assert set(FAULTS) == set(SCENARIOS)


def test_what_is_left_is_estimated_by_what_there_was() -> None:
    estimate = Estimate([a_run(whole_seconds=10.0), a_run(store="redis", whole_seconds=30.0)])
    assert estimate.of(("kills", "redis")) == 30.0
    assert estimate.of(("stops", "redis")) == 20.0

    estimate.took(("kills", "postgres"), 20.0)

    assert estimate.of(("kills", "postgres")) == 20.0
    assert estimate.of(("kills", "redis")) == 60.0


def test_a_plan_that_does_not_fit_has_fewer_faults_but_not_too_few() -> None:
    kills = next(row for row in rows() if row.scenario.name == "kills")

    assert kills.within(100.0, 50.0) == kills
    assert kills.within(50.0, 100.0).faults == kills.faults // 2
    assert kills.within(1.0, 100.0).faults == kills.scenario.faults


def test_the_plan_can_be_read() -> None:
    plan = [row for row in rows() if row.scenario.name == "kills"][:2]
    *lines, last = table(plan, [a_run(store="sqlite", whole_seconds=60.0)])

    assert "kills" in lines[1]
    assert "1,234" in lines[1]
    assert last.startswith("2 runs")
