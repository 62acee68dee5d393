"""Simulates many histories, or shows one.

python -m tests.simulation --seeds 500000 --from 0     as many as you like, on every core
python -m tests.simulation --replay 4711               one, to read
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

from faults.commits import last_change, refusal
from faults.report.results import keep_current
from nightmail import __version__
from tests.simulation.history import run

CHUNK = 50
_VALUES = "bell breaker clock controls describing durations errors limits message observe outcome records retry store"
_PARTS = """checker client engine_rules events handling history journal ledger line loop nature operating plan process
publishing server session store_rules"""
SIMULATED = (
    *(f"src/nightmail/{name}.py" for name in _VALUES.split()),
    "src/nightmail/engine/**",
    "src/nightmail/stores/memory/**",
    "src/nightmail/stores/shared/conflicts.py",
    "src/nightmail/stores/shared/fairness.py",
    *(f"tests/simulation/{name}.py" for name in _PARTS.split()),
)
"""What a history depends on: seeds of several runs add up for as long as none of it changes."""


@dataclass(slots=True)
class Tally:
    """What some histories came to."""

    seeds: int = 0
    events: int = 0
    steps: int = 0
    seconds: float = 0.0
    """Virtual time."""
    cost: float = 0.0
    """Processor time."""
    faults: Counter[str] = field(default_factory=Counter)
    violations: dict[int, str] = field(default_factory=dict)

    def add(self, other: Tally) -> None:
        """Count these too."""
        self.seeds += other.seeds
        self.events += other.events
        self.steps += other.steps
        self.seconds += other.seconds
        self.cost += other.cost
        self.faults += other.faults
        self.violations |= other.violations

    def __str__(self) -> str:
        each = max(self.seeds, 1)
        faults = ", ".join(f"{count:,} {kind}" for kind, count in self.faults.most_common())
        return (
            f"{self.seeds:,} histories, {self.seconds / 3600:,.1f} virtual hours, {self.events:,} events, "
            f"{self.steps:,} steps; {1000 * self.cost / each:.1f} ms of processor time each\n"
            f"faults: {faults or 'none'}"
        )


def simulate(seeds: Sequence[int]) -> Tally:
    """Run these histories."""
    tally = Tally()
    begun = time.process_time()
    for seed in seeds:
        history = run(seed)
        tally.seeds += 1
        tally.events += len(history.events)
        tally.steps += history.steps
        tally.seconds += history.seconds
        tally.faults += history.faults
        if history.violation is not None:
            tally.violations[seed] = str(history.violation)
    tally.cost = time.process_time() - begun
    return tally


def replay_command(seed: int) -> str:
    """What to type to see this history."""
    return f"make simulate REPLAY={seed}"


def _chunks(first: int, count: int) -> Iterator[range]:
    end = first + count
    return (range(start, min(start + CHUNK, end)) for start in range(first, end, CHUNK))


def simulate_many(first: int, count: int, jobs: int, results: Path | None) -> int:
    """Run so many histories from this seed on, in so many processes; 1 if one of them broke a promise."""
    total, begun, shown = Tally(), time.monotonic(), 0.0
    with ProcessPoolExecutor(jobs) as pool:
        for done in as_completed([pool.submit(simulate, chunk) for chunk in _chunks(first, count)]):
            found = done.result()
            total.add(found)
            for seed, violation in found.violations.items():
                print(f"seed {seed}: {violation}\n    {replay_command(seed)}", flush=True)
            took = time.monotonic() - begun
            if took - shown > 30:
                shown = took
                left = (count - total.seeds) * took / total.seeds / 60
                print(
                    f"{total.seeds:,} of {count:,}, {total.seeds / took:.0f} a second, about {left:.0f} min left",
                    file=sys.stderr,
                    flush=True,
                )
    print(total)
    print(f"violations: {len(total.violations)}")
    if results is not None:
        add_result(results, first, total)
    return bool(total.violations)


def add_result(results: Path, first: int, total: Tally) -> None:
    """Append what came of these histories, with the seeds to replay, and drop what another version has shown."""
    commit = last_change(SIMULATED)
    keep_current(results, commit)
    line = {
        "seeds": total.seeds,
        "first": first,
        "hours": round(total.seconds / 3600, 1),
        "events": total.events,
        "faults": dict(total.faults),
        "violations": len(total.violations),
        "failing": sorted(total.violations),
        "version": __version__,
        "commit": commit,
    }
    with results.open("a") as file:
        file.write(json.dumps(line) + "\n")


def main() -> int:
    """0 if every history kept every promise."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--seeds", type=int, default=2000, help="how many histories")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many processes")
    parser.add_argument("--replay", type=int, help="show the history of this seed")
    parser.add_argument(
        "--results",
        type=Path,
        help="append what came of it to this file, as a JSON line, in place of what other versions have shown",
    )
    asked = parser.parse_args()
    if asked.results is not None and (why := refusal(last_change(SIMULATED))):
        parser.error(why)
    if asked.replay is None:
        return simulate_many(asked.first, asked.seeds, asked.jobs, asked.results)
    history = run(asked.replay)
    print(history.text())
    return history.violation is not None


if __name__ == "__main__":
    sys.exit(main())
