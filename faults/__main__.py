"""`python -m faults`: run scenarios, print their figures, fail if a promise was broken."""

from __future__ import annotations

import argparse
import asyncio
import secrets
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from faults.commits import last_change, refusal
from faults.figures import Figures
from faults.place import kept_servers
from faults.plan import WANTED, Estimate, Row, rows, table
from faults.report.results import Broken, Unplayed, append, keep_current, read_results
from faults.report.totals import Totals
from faults.run import run
from faults.scenarios import SCENARIOS, Scenario
from faults.workload.breakages import BREAKAGES, Breakage
from testkit.servers.errors import ServerUnavailable


def main() -> int:
    """1 if a run found a broken promise, or was not played to its end; with `--breakages`, 1 if one found nothing."""
    parser = argparse.ArgumentParser(prog="python -m faults", description=__doc__)
    parser.add_argument("--scenario", choices=SCENARIOS, help="one scenario; otherwise all of them")
    parser.add_argument("--store", choices=_stores(), help="one store; otherwise each that can have it")
    parser.add_argument("--seed", type=int, help="what the faults are drawn from; otherwise a new one")
    parser.add_argument("--faults", type=int, help="how many faults; otherwise as many as the scenario says")
    parser.add_argument(
        "--breakages",
        choices=["all", *BREAKAGES],
        help="break the product on purpose, in one way or in all: each must be found by its rule",
    )
    parser.add_argument(
        "--results", type=Path, help="append the figures to this file, one JSON line for each run"
    )
    parser.add_argument("--minutes", type=float, help="begin no run that would not end in this time")
    parser.add_argument("--short", action="store_true", help="only a few faults each: a look at everything")
    parser.add_argument("--times", type=int, default=1, help="how often the whole plan")
    parser.add_argument("--plan", action="store_true", help="show the plan of the long run")
    parser.add_argument("--list", action="store_true", help="say what there is")
    options = parser.parse_args()
    if options.list:
        for scenario in SCENARIOS.values():
            print(f"{scenario.name:<14} {scenario.about} ({', '.join(scenario.stores)})")
        return 0
    if options.results and not options.plan and (why := refusal(last_change())):
        parser.error(why)
    if options.breakages:
        if options.results:
            options.results = options.results.with_name("broken.jsonl")
            keep_current(options.results)
        broken = BREAKAGES.values() if options.breakages == "all" else [BREAKAGES[options.breakages]]
        return min(sum(not _finds(breakage, options) for breakage in broken), 1)
    chosen = [
        row
        for row in rows(options.times)
        if options.scenario in (None, row.scenario.name) and options.store in (None, row.store)
    ]
    if not chosen:
        parser.error(f"{options.scenario} does not run on {options.store}")
    if options.short or options.scenario is not None or options.faults is not None:
        # One that is picked out is as short as it says itself, unless it is told otherwise.
        chosen = [replace(row, faults=options.faults or row.scenario.faults) for row in chosen]
    before = read_results(options.results.parent).runs if options.results else []
    if options.plan:
        print("\n".join(table(chosen, before)))
        return 0
    if options.results:
        keep_current(options.results)
    with kept_servers():
        return min(_play_all(chosen, before, options), 1)


def _play_all(plan: Sequence[Row], before: Sequence[Figures], options: argparse.Namespace) -> int:
    """Carry out the plan, as far as there is time; how many runs found something, or were not played to their end."""
    begun = time.monotonic()
    estimate, totals, failed = Estimate(before), Totals(), 0
    durable = Totals()
    skipped: list[Row] = []
    for number, row in enumerate(plan):
        if options.minutes:
            left = options.minutes * 60 - (time.monotonic() - begun)
            row = row.within(left, plan[number + 1 :], estimate)
            if estimate.of(row) > left:
                skipped.append(row)
                continue
        started = time.monotonic()
        try:
            found = _play(row, options)
        except ServerUnavailable as why:
            print(f"{row.scenario.name} on {row.store} cannot be played here: {why}\n", flush=True)
            skipped.append(row)
            continue
        failed += found is None or bool(found.violations)
        estimate.took(row, time.monotonic() - started)
        if found is not None:
            totals.add(found)
            if row.is_durable:
                durable.add(found)
        if len(plan) > 1:
            passed = (time.monotonic() - begun) / 60
            left = estimate.left(plan[number + 1 :]) / 60
            print(
                f"── {number + 1} of {len(plan)}, {passed:.0f} min; about {left:.0f} min left; {totals}\n",
                flush=True,
            )
    if skipped:
        names = ", ".join(f"{row.scenario.name} on {row.store}" for row in skipped)
        print(f"not run, for want of time or of a server: {names}")
    is_whole = [row.pair for row in plan] == [row.pair for row in rows(options.times)] and not options.short
    if is_whole and (missed := durable.missed(WANTED)):
        print(f"wanted where nothing may be lost, and missed: {', '.join(missed)}")
    print(f"{totals}; {failed} runs found something, or could not be played to their end")
    return failed


def _stores() -> list[str]:
    """Every store that a scenario can run on."""
    return list(dict.fromkeys(store for scenario in SCENARIOS.values() for store in scenario.stores))


def _seed(options: argparse.Namespace) -> int:
    """What it is told, or a new one."""
    return options.seed if options.seed is not None else secrets.randbelow(10**6)


def _play(row: Row, options: argparse.Namespace) -> Figures | None:
    """Its figures; nothing, if it could not be played to its end: that is a result, too."""
    begun = time.monotonic()
    seed = _seed(options)
    try:
        found, report, directory = _run(row.scenario, row.store, options, seed=seed, faults=row.faults)
    except ServerUnavailable:
        raise
    except Exception as error:  # noqa: BLE001 - whatever it was, the other runs go on
        if options.results:
            unplayed = Unplayed(
                scenario=row.scenario.name,
                store=row.store,
                seed=seed,
                asked=row.faults,
                error=type(error).__name__,
                commit=last_change(),
            )
            append(options.results, unplayed)
        traceback.print_exc()
        return None
    found = replace(found, whole_seconds=time.monotonic() - begun)
    if options.results:
        append(options.results, found)
    if report:
        print(f"{report}\nthe journal is in {directory}", flush=True)
    else:
        shutil.rmtree(directory)
    return found


def _finds(breakage: Breakage, options: argparse.Namespace) -> bool:
    """Whether this mistake is found, by a rule that should find it."""
    print(f"broken: {breakage.name}")
    scenario = SCENARIOS[breakage.scenario]
    if breakage.kinds:
        scenario = replace(scenario, publisher={**scenario.publisher, "kinds": breakage.kinds})
    found, _, directory = _run(
        scenario,
        breakage.store,
        options,
        seed=_seed(options),
        faults=options.faults or breakage.faults,
        breakage=breakage.name,
    )
    said = [each for each in found.violations if each.startswith(breakage.rules)]
    print(f"found: {said[0]}\n" if said else f"not found; the journal is in {directory}\n", flush=True)
    if options.results:
        rule = said[0].partition(":")[0] if said else ""
        outcome = Broken(
            name=breakage.name,
            scenario=scenario.name,
            store=breakage.store,
            said=rule,
            commit=last_change(),
        )
        append(options.results, outcome)
    if said:
        shutil.rmtree(directory)
    return bool(said)


def _run(
    scenario: Scenario,
    store: str,
    options: argparse.Namespace,
    *,
    seed: int,
    faults: int | None = None,
    breakage: str | None = None,
) -> tuple[Figures, str, Path]:
    """Its figures, a report on what it found, and where its journal is."""
    directory = Path(tempfile.mkdtemp(prefix="nightmail-faults-"))
    began = time.monotonic()

    def say(what: str) -> None:
        print(f"  {time.monotonic() - began:6.1f} s  {what}", flush=True)

    print(f"{scenario.name} on {store}, seed {seed}", flush=True)
    try:
        with scenario.where(store, directory) as place:
            found, report = asyncio.run(
                run(
                    scenario,
                    place,
                    directory,
                    seed=seed,
                    faults=faults,
                    bulk=scenario.bulk,
                    breakage=breakage,
                    say=say,
                )
            )
    except BaseException:
        print(f"the journal is in {directory}", file=sys.stderr)
        raise
    print(f"{found}\n", flush=True)
    return found, report, directory


if __name__ == "__main__":
    sys.exit(main())
