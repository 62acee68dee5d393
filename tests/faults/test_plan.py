"""The plan of the long run."""

from __future__ import annotations

from faults.plan import COUNTED, FAULTS, WANTED, Estimate, Row, expected, rows, table
from faults.report.totals import KINDS, MESSAGES, Totals
from faults.scenarios import SCENARIOS
from tests.faults.test_report import a_run


def a_row(scenario: str, store: str, faults: int) -> Row:
    return Row(SCENARIOS[scenario], store, faults)


def test_every_scenario_runs_on_every_store_it_has_before_any_comes_again() -> None:
    pairs = {(name, store) for name, scenario in SCENARIOS.items() for store in scenario.stores}
    plan = [row.pair for row in rows(2)]

    assert set(plan[: len(pairs)]) == pairs
    assert len(plan) == 2 * len(pairs)
    assert set(FAULTS) == set(SCENARIOS)


def test_one_run_of_the_plan_comes_to_the_wanted_figures_where_nothing_may_be_lost() -> None:
    counts = expected(rows())

    assert {name: counts[name] for name in KINDS if counts[name] < WANTED[name]} == {}
    assert set(WANTED) == {MESSAGES, *KINDS}


def test_it_is_told_which_of_the_wanted_figures_were_missed() -> None:
    totals = Totals.of([a_run(messages=1000, faults={"worker killed": 3})])

    assert totals.missed({MESSAGES: 1000, "workers killed": 4}) == ["3 of 4 workers killed"]
    assert totals.missed({MESSAGES: 1001}) == ["1,000 of 1,001 messages"]


def test_what_may_be_lost_counts_for_nothing() -> None:
    durable, unsynced = a_row("crashes", "redis", 40), a_row("crashes", "redis-unsynced", 40)

    assert expected([durable, unsynced]) == {"servers killed": 40}


def test_what_is_left_is_estimated_by_what_there_was() -> None:
    estimate = Estimate(
        [a_run(whole_seconds=10.0, seconds=10.0), a_run(store="redis", whole_seconds=30.0, seconds=30.0)]
    )
    assert estimate.of(a_row("kills", "redis", 20)) == 30.0
    assert estimate.of(a_row("stops", "redis", 20)) == 20.0

    estimate.took(a_row("kills", "postgres", 20), 20.0)

    assert estimate.of(a_row("kills", "postgres", 20)) == 20.0
    assert estimate.of(a_row("kills", "redis", 20)) == 60.0


def test_a_run_with_more_faults_takes_longer_but_for_what_starts_and_ends_it() -> None:
    # Ten seconds for the servers, five for the processes, one for each fault.
    estimate = Estimate([a_run(whole_seconds=35.0, seconds=25.0, messages=1000, asked=20)])
    forty = a_row("kills", "postgres", 40)

    assert estimate.of(forty) == 55.0
    assert estimate.messages(forty) == 2000

    estimate.took(a_row("kills", "postgres", 10), 25.0)

    assert estimate.of(forty) == 55.0


def test_an_estimate_goes_by_the_run_with_the_most_faults() -> None:
    runs = [
        a_run(whole_seconds=60.0, seconds=60.0, asked=50),
        a_run(whole_seconds=10.0, seconds=10.0, asked=2),
    ]

    assert Estimate(runs).of(a_row("kills", "postgres", 50)) == 60.0


def test_a_plan_that_does_not_fit_has_fewer_faults_but_not_too_few() -> None:
    stops, kills = a_row("stops", "redis", 48), a_row("kills", "redis", 40)
    estimate = Estimate(
        [
            a_run(scenario="stops", store="redis", whole_seconds=100.0, seconds=95.0, asked=48),
            a_run(scenario="kills", store="redis", whole_seconds=100.0, seconds=95.0, asked=40),
        ]
    )

    assert stops.within(200.0, [kills], estimate) == stops
    # What counts is cut last.
    assert stops.within(150.0, [kills], estimate).faults == 24
    assert stops.within(1.0, [kills], estimate).faults == stops.scenario.faults
    assert kills.within(150.0, [stops], estimate) == kills
    assert kills.within(80.0, [stops], estimate).faults == 20
    assert kills.within(1.0, [stops], estimate).faults == kills.scenario.faults


def test_what_is_planned_with_few_is_cut_to_half_of_them_at_most() -> None:
    assert a_row("stops", "redis", 8).within(1.0, [], Estimate([])).faults == 4
    assert a_row("stops", "redis", 1).within(1.0, [], Estimate([])).faults == 1


def test_on_a_machine_that_is_a_tenth_too_slow_the_wanted_figures_are_reached_nevertheless() -> None:
    # So long that the plan takes a tenth longer than there is time.
    plan = rows()
    before = [
        a_run(scenario=row.scenario.name, store=row.store, whole_seconds=44.0, seconds=40.0, asked=row.faults)
        for row in plan
    ]
    estimate, left, played = Estimate(before), 40.0 * len(plan), []
    for number, row in enumerate(plan):
        fitted = row.within(left, plan[number + 1 :], estimate)
        left -= estimate.of(fitted)
        played.append(fitted)

    assert expected(played) == expected(plan)
    assert left >= 0


def test_the_plan_can_be_read() -> None:
    plan = [row for row in rows() if row.scenario.name == "kills"][:2]
    *lines, last, counts = table(plan, [a_run(store="sqlite", whole_seconds=60.0, asked=plan[0].faults)])

    assert "kills" in lines[1]
    assert "1,234" in lines[1]
    assert last.startswith("2 runs")
    assert "1,234 messages" in counts
    assert f"{int(sum(COUNTED['kills'][1] * row.faults for row in plan))} workers killed" in counts
