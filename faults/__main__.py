"""`python -m faults`: run scenarios, print their figures, fail if a promise was broken."""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path

from faults.figures import Figures
from faults.run import run
from faults.scenarios import SCENARIOS, Scenario
from faults.workload.breakages import BREAKAGES, Breakage


def main() -> int:
    """1 if a run found a broken promise; with `--breakages`, 1 if one did not."""
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
    parser.add_argument(
        "--minutes", type=float, help="how long: all once, and then again and again while there is time"
    )
    parser.add_argument("--list", action="store_true", help="say what there is")
    options = parser.parse_args()
    if options.list:
        for scenario in SCENARIOS.values():
            print(f"{scenario.name:<14} {scenario.about} ({', '.join(scenario.stores)})")
        return 0
    if options.breakages:
        broken = BREAKAGES.values() if options.breakages == "all" else [BREAKAGES[options.breakages]]
        return min(sum(not _finds(breakage, options) for breakage in broken), 1)
    chosen = [SCENARIOS[options.scenario]] if options.scenario else list(SCENARIOS.values())
    pairs = [
        (scenario, store)
        for scenario in chosen
        for store in scenario.stores
        if options.store in (None, store)
    ]
    if not pairs:
        parser.error(f"{options.scenario} does not run on {options.store}")
    return min(_play_all(pairs, options), 1)


def _play_all(pairs: Sequence[tuple[Scenario, str]], options: argparse.Namespace) -> int:
    """Each once, and again while there is time; how many found something."""
    begun = time.monotonic()
    took: dict[tuple[str, str], float] = {}
    failed = 0
    for number, (scenario, store) in enumerate(cycle(pairs) if options.minutes else pairs):
        passed = time.monotonic() - begun
        usual = sum(took.values()) / max(len(took), 1)
        if options.minutes and passed + took.get((scenario.name, store), usual) > options.minutes * 60:
            unseen = len(pairs) - len(took)
            print(f"{options.minutes:g} minutes are over" + (f"; {unseen} were not run" if unseen else ""))
            break
        if number and len(pairs) > 1:
            left = max(len(pairs) - number, 0) * usual / 60
            print(
                f"{number + 1} of {len(pairs)}, {passed / 60:.0f} min; about {left:.0f} min left", flush=True
            )
        started = time.monotonic()
        failed += not _play(scenario, store, options)
        took[scenario.name, store] = time.monotonic() - started
    return failed


def _stores() -> list[str]:
    """Every store that a scenario can run on."""
    return list(dict.fromkeys(store for scenario in SCENARIOS.values() for store in scenario.stores))


def _play(scenario: Scenario, store: str, options: argparse.Namespace) -> bool:
    """Whether it went well."""
    found, report, directory = _run(scenario, store, options)
    if options.results:
        with options.results.open("a") as results:
            results.write(json.dumps(found.as_json()) + "\n")
    if report:
        print(f"{report}\nthe journal is in {directory}", flush=True)
        return False
    shutil.rmtree(directory)
    return True


def _finds(breakage: Breakage, options: argparse.Namespace) -> bool:
    """Whether this mistake is found, by a rule that should find it."""
    print(f"broken: {breakage.name}")
    scenario = SCENARIOS[breakage.scenario]
    found, _, directory = _run(scenario, breakage.store, options, breakage=breakage.name)
    said = [each for each in found.violations if each.startswith(breakage.rules)]
    print(f"found: {said[0]}\n" if said else f"not found; the journal is in {directory}\n", flush=True)
    if said:
        shutil.rmtree(directory)
    return bool(said)


def _run(
    scenario: Scenario, store: str, options: argparse.Namespace, *, breakage: str | None = None
) -> tuple[Figures, str, Path]:
    """Its figures, a report on what it found, and where its journal is."""
    seed = options.seed if options.seed is not None else secrets.randbelow(10**6)
    directory = Path(tempfile.mkdtemp(prefix="nightmail-faults-"))
    began = time.monotonic()

    def say(what: str) -> None:
        print(f"  {time.monotonic() - began:6.1f} s  {what}", flush=True)

    print(f"{scenario.name} on {store}, seed {seed}", flush=True)
    try:
        with scenario.where(store, directory) as place:
            found, report = asyncio.run(
                run(scenario, place, directory, seed=seed, faults=options.faults, breakage=breakage, say=say)
            )
    except BaseException:
        print(f"the journal is in {directory}", file=sys.stderr)
        raise
    print(f"{found}\n", flush=True)
    return found, report, directory


if __name__ == "__main__":
    sys.exit(main())
