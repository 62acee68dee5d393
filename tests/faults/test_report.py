"""RELIABILITY.md says what the results say, and hides nothing."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from faults.commits import last_change
from faults.figures import Figures, figures
from faults.ledger import Ledger
from faults.plan import rows
from faults.report.__main__ import PAGE, PLOTS, whole
from faults.report.pages import MEASURED, page
from faults.report.plots import last_failovers, plots_of, title
from faults.report.results import (
    RESULTS,
    Broken,
    Overlap,
    Results,
    Simulation,
    Unplayed,
    append,
    keep_current,
    read_results,
)
from faults.scenarios import SCENARIOS
from tests.faults.test_checker import BOOTED, end, fault, looked, published, settled, step
from tests.faults.test_checker import a_run as a_handled


def a_run(**facts: Any) -> Figures:
    usual: dict[str, Any] = {
        "scenario": "kills", "store": "postgres", "seed": 7, "messages": 1234, "uncertain": 2, "runs": 1300,
        "faults": {"worker killed": 20}, "stalls": 0, "lost": 0, "early": 0, "stale_writes": 0, "overlaps": 0,
        "duplicates": 5,
        "duplicates_bound": 40, "takeover_seconds": 4.2, "lease_seconds": 3.0, "return_seconds": 0.0, "seconds": 20.0,
        "checked_seconds": 0.1, "violations": [], "forgiven": {},
        "server": "PostgreSQL 15.18", "timeline": [(0, 10, 0.1)], "outages": [], "asked": 20,
    }  # fmt: skip
    return Figures(**usual | facts)


def row(text: str, start: str) -> list[str]:
    """The cells of the row that begins like this."""
    [line] = [line for line in text.splitlines() if line.startswith(f"| {start} |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_figures_of_all_runs_are_added_up() -> None:
    text = page(Results([a_run(), a_run(seed=8)], []), [])

    assert row(text, "messages acknowledged")[1] == "2,468"
    assert row(text, "**acknowledged and lost**")[1] == "**0**"
    assert row(text, "kills | postgres")[2:5] == ["7 (20), 8 (20)", "2,468", "40"]
    assert row(text, "postgres | PostgreSQL 15.18")[1] == "PostgreSQL 15.18"


def test_faults_are_added_up_by_what_they_hit() -> None:
    runs = [a_run(), a_run(faults={"cancelled handler": 3, "cancelled publish": 4, "killed by a message": 1})]
    text = page(Results(runs, []), [])

    assert row(text, "workers killed")[1] == "21"
    assert row(text, "cancellations")[1] == "7"


def test_each_kind_of_recovery_has_its_own_bound() -> None:
    killed = a_run(scenario="crashes", return_seconds=1.5, takeover_seconds=0.0, outages=[(1.0, 2.0)])
    text = page(Results([a_run(), killed], []), [])

    assert row(text, "kills | postgres")[-4:-1] == ["4.2 s (13 s)", "", ""]
    assert row(text, "crashes | postgres")[-4:-1] == ["", "", "1.5 s"]


def test_a_time_that_nothing_was_measured_of_is_not_shown() -> None:
    stepped = a_run(scenario="clock-steps", takeover_seconds=0.0)

    assert row(page(Results([stepped], []), []), "clock-steps | postgres")[-4:-1] == ["", "", ""]
    assert "within" not in str(stepped)
    assert "taken over within 4.2 s (at most 13 s), violations" in str(a_run())


def test_a_store_whose_clock_is_moved_was_not_away() -> None:
    lines = [
        *BOOTED, *published(), *a_handled(1.0), *settled(1.2), step(2.0, 8.0), fault(3.0, None, 3.5, "disk full"),
        *looked(4.0), *end(),
    ]  # fmt: skip
    found, _ = figures(Ledger(lines), scenario="clock-steps", store="postgres", seed=1, seconds=1.0)

    assert found.outages == [(3.0, 3.5)]


def test_stalls_of_the_machine_are_beside_the_faults() -> None:
    text = page(Results([a_run(stalls=7)], []), [])

    assert row(text, "scenario | store")[4:6] == ["faults", "stalls"]
    assert row(text, "kills | postgres")[4:6] == ["20", "7"]


def test_what_of_the_plan_was_not_run_is_named() -> None:
    text = page(Results([a_run(), a_run(store="pgbouncer")], []), [])

    assert "## Not run yet\n" in text
    assert "- kills: sqlite, mariadb, redis\n" in text
    everything = [a_run(scenario=each.scenario.name, store=each.store) for each in rows()]
    assert "Not run yet" not in page(Results(everything, []), [])


def test_a_run_that_crashed_is_told(tmp_path: Path) -> None:
    crashed = Unplayed(
        scenario="disk-full", store="postgres", seed=9, asked=4, error="OperationalError", commit="abc"
    )
    append(tmp_path / "runs.jsonl", a_run(timeline=[], outages=[]))
    append(tmp_path / "runs.jsonl", crashed)
    results = read_results(tmp_path)
    text = page(results, [])

    assert results == Results([a_run(timeline=[], outages=[])], [], unplayed=[crashed])
    assert "## Could not be played to its end\n" in text
    assert row(text, "disk-full | postgres")[2:] == ["9 (4)", "`OperationalError`"]
    assert "- disk-full: sqlite, mariadb, redis\n" in text
    assert row(text, "runs that could not be played to their end")[1] == "1"
    assert "played to" not in page(Results([a_run()], []), [])


def test_a_loss_is_shown() -> None:
    text = page(Results([a_run(lost=3, violations=["nothing_lost: a", "nothing_lost: b"])], []), [])

    assert row(text, "**acknowledged and lost**")[1] == "**3**"
    assert row(text, "promises broken")[1] == "2"
    assert row(text, "kills | postgres")[-1] == "2"


def test_what_is_not_promised_is_measured_and_kept_apart() -> None:
    lost = a_run(
        scenario="power-loss", store="redis-everysec", lost=44, forgiven={"nothing_lost": 46, "counters": 2}, astray=2,
        durability="Redis, `appendfsync everysec`",
    )  # fmt: skip
    text = page(Results([a_run(), lost], []), [])

    assert row(text, "**acknowledged and lost**")[1] == "**0**"
    assert row(text, "Redis, `appendfsync everysec`")[-4:] == ["44", "2 counters, 2 astray", "", "0"]


def test_what_is_promised_is_counted_where_a_loss_is_forgiven_too() -> None:
    guarded = a_run(
        scenario="cut-off", store="redis-cluster-guarded", seed=43, asked=3, return_seconds=20.3,
        takeover_seconds=14.5, early=2, lost=5, violations=["used_again: a", "never_early: b"],
        forgiven={"nothing_lost": 5}, outages=[(1.0, 2.0)], durability="Redis Cluster, guarded",
    )  # fmt: skip
    text = page(Results([a_run(), guarded], []), [])

    assert row(text, "promises broken")[1] == "2"
    assert row(text, "delivered early")[1] == "2"
    assert row(text, "**acknowledged and lost**")[1] == "**0**"
    assert row(text, "messages acknowledged")[1] == "1,234"
    [returned] = [line for line in text.splitlines() if line.startswith("| longest time from the return")]
    assert "20.3 s" in returned
    [taken_over] = [line for line in text.splitlines() if line.startswith("| longest time from a fault")]
    assert "14.5 s" in taken_over
    assert "1 more run" in text
    measured = row(text, f"Redis Cluster, guarded | {SCENARIOS['cut-off'].about}")
    assert measured[2] == "43 (3)"
    assert measured[-4:] == ["5", "none", "20.3 s", "2"]


def test_every_run_in_which_something_is_forgiven_has_a_row() -> None:
    assert {name for name, scenario in SCENARIOS.items() if scenario.forgives} <= set(MEASURED)


def test_what_a_store_waits_for_is_what_the_run_says() -> None:
    before = a_run(scenario="crashes", store="mariadb-unsynced", lost=0, durability="MariaDB, 2")
    after = replace(before, seed=8, lost=9, durability="MariaDB, 0")
    text = page(Results([before, after, a_run(scenario="crashes", store="redis-unsynced")], []), [])

    assert row(text, "MariaDB, 2")[2:6] == ["7 (20)", "20", "1,234", "0"]
    assert row(text, "MariaDB, 0")[2:6] == ["8 (20)", "20", "1,234", "9"]
    assert row(text, "`redis-unsynced`, of which the run did not write it down")[2] == "7 (20)"


def test_what_is_there_although_it_is_done_is_not_lost() -> None:
    other = published("publisher-1/1", 2)
    lines = [
        *BOOTED,
        *published(),
        *a_handled(1.0),
        *settled(1.2),
        *other,
        *end(waiting=(1,), how="row 1 is missing"),
    ]
    found, violations = figures(Ledger(lines), scenario="kills", store="sqlite", seed=1, seconds=1.0)

    # The second message is gone; the first is there, and the file is damaged.
    assert (found.lost, found.astray) == (1, 2)
    assert sum(violation.rule == "nothing_lost" for violation in violations) == 3
    assert "lost 1 and 2 astray" in str(found)
    assert row(page(Results([found], []), []), "kills | sqlite")[6:8] == ["1", "2"]


def test_the_latest_pick_up_is_shown_where_a_scenario_is_about_it() -> None:
    text = page(Results([a_run(pickup_seconds=4.0), a_run(scenario="wakeups", pickup_seconds=1.3)], []), [])

    assert row(text, "kills | postgres")[-3] == ""
    assert row(text, "wakeups | postgres")[-3] == "1.3 s"
    [longest] = [line for line in text.splitlines() if line.startswith("| longest time to the first claim")]
    assert "1.3 s" in longest


def test_the_page_is_of_the_results() -> None:
    results = read_results(RESULTS)

    assert PAGE.read_text() == whole(results), "make reliability"
    assert [plot for plot in plots_of(results.runs, PLOTS) if not plot.exists()] == []


def test_a_failover_that_broke_a_promise_is_drawn_and_told() -> None:
    kept = a_run(scenario="failover", store="patroni")
    broken = a_run(scenario="failover", store="patroni", seed=43, violations=["used_again: a"])
    plots = [Path("failover-patroni.svg")]

    assert last_failovers([kept, broken]) == [broken]
    assert title(broken).endswith("patroni, seed 43: the store is hit in the grey times\n1 promise broken")
    assert "- patroni, seed 43: 1 promise broken\n\n![" in page(Results([kept, broken], []), plots)
    assert "promise broken" not in title(kept) + page(Results([kept], []), plots)


def test_the_command_that_repeats_a_run_says_how_many_faults() -> None:
    text = page(Results([a_run(seed=11, asked=200), a_run(seed=12, asked=0)], []), [])

    assert '`make faults SCENARIO=… STORE=… SEED=… ARGS="--faults N"` repeats one run' in " ".join(
        text.split()
    )
    # Of an older run the number is not known.
    assert row(text, "kills | postgres")[2] == "11 (200), 12"


def test_it_is_told_how_many_runs_of_each_there_are_at_most() -> None:
    assert "are of one run of each." in page(Results([a_run(), a_run(store="redis")], []), [])
    assert "are of up to 2 runs of each." in page(Results([a_run(), a_run(seed=8)], []), [])


def test_seeds_that_broke_a_promise_are_named() -> None:
    failed = Simulation(
        seeds=5000, first=0, hours=20.0, events=1, faults={}, violations=2, version="0", failing=(4711, 4800)
    )
    text = page(Results([a_run()], [failed]), [])

    assert "2 broken promises (Nightmail 0" in text
    assert "`make simulate REPLAY=4711`, `make simulate REPLAY=4800`" in text


def test_simulated_seeds_are_a_line() -> None:
    simulation = Simulation(
        seeds=5000, first=0, hours=20.0, events=1, faults={"kill": 9}, violations=0, version="0"
    )
    assert "5,000 seeds" in page(Results([a_run()], [simulation]), [])


def a_simulation(first: int, **facts: Any) -> Simulation:
    usual: dict[str, Any] = {
        "seeds": 1000, "hours": 2.0, "events": 1, "faults": {"kill": 9}, "violations": 0, "version": "0", "failing": [],
    }  # fmt: skip
    return Simulation(first=first, **usual | facts)


def test_a_range_of_seeds_counts_once(tmp_path: Path) -> None:
    file, later = tmp_path / "simulation-abc.jsonl", tmp_path / "simulation.jsonl"
    file.write_text("".join(f"{json.dumps(asdict(a_simulation(first)))}\n" for first in (0, 1000)))
    later.write_text(f"{json.dumps(asdict(a_simulation(1000, commit='def')))}\n")

    assert read_results(tmp_path).simulations == [a_simulation(0), a_simulation(1000, commit="def")]

    later.write_text(f"{json.dumps(asdict(a_simulation(1500)))}\n")

    with pytest.raises(Overlap, match=r"1,000 to 1,999 and 1,500 to 2,499"):
        read_results(tmp_path)


def test_results_are_read_back_as_they_were_written(tmp_path: Path) -> None:
    run = a_run(timeline=[], outages=[])
    (tmp_path / "runs.jsonl").write_text(json.dumps(run.as_json()) + "\n")

    assert read_results(tmp_path) == Results([run], [])


def test_results_of_another_version_are_dropped_before_more_are_added(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    now = a_run(timeline=[], outages=[], commit=last_change())
    append(path, a_run(commit="0000000"))
    append(path, now)

    keep_current(path)

    assert read_results(tmp_path).runs == [now]


def test_a_run_that_was_left_out_is_told_with_its_reason() -> None:
    results = Results([a_run()], [])

    assert "## Left out\n\n- kills, seed 7: why\n\n## What this does not show" in page(
        results, [], left_out="- kills, seed 7: why\n"
    )
    assert "Left out" not in page(results, [])


def test_what_is_broken_on_purpose_is_told_with_the_rule_that_found_it_and_what_no_rule_found(
    tmp_path: Path,
) -> None:
    file = tmp_path / "broken.jsonl"
    found = Broken(name="not-fenced", scenario="pauses", store="sqlite", said="no_stale_write", commit="abc")
    append(file, found)
    append(file, Broken(name="acks-nothing", scenario="kills", store="sqlite", said="", commit="abc"))
    results = read_results(tmp_path)
    text = page(results, [])

    assert results.broken[0] == found
    assert results.runs == []
    assert row(text, "not-fenced")[-1] == "`no_stale_write`"
    assert row(text, "acks-nothing")[-1] == "**not found**"
