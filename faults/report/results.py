"""What runs have written, read back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from faults.commits import ROOT, last_change, refusal
from faults.figures import Figures

RESULTS: Final = ROOT / "faults" / "results"
"""What the report is made of."""


ADDED: Final = ("durability", "astray", "pickup_seconds")
"""Fields that lines of an older suite lack: those still tell how long a run takes."""


class Overlap(Exception):
    """The same seeds are in several lines, and each line counts all of its own."""


class Uncommitted(Exception):
    """Results are of a commit: what has changed since has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """One run of `make simulate`."""

    seeds: int
    first: int
    hours: float
    """Virtual time."""
    events: int
    faults: dict[str, int]
    violations: int
    version: str
    commit: str = ""
    failing: Sequence[int] = ()
    """The seeds that broke a promise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """One run with the product broken on purpose."""

    name: str
    scenario: str
    store: str
    said: str
    """The rule that found it; nothing if none did that should have."""
    commit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unplayed:
    """One run that crashed or hung: it could not be played to its end, and has no figures."""

    scenario: str
    store: str
    seed: int
    asked: int
    """How many faults the scenario was to inject."""
    error: str
    """The type of the exception."""
    commit: str


@dataclass(frozen=True, slots=True)
class Results:
    """Everything there is."""

    runs: list[Figures]
    simulations: list[Simulation]
    broken: list[Broken] = field(default_factory=list)
    unplayed: list[Unplayed] = field(default_factory=list)


def read_results(directory: Path) -> Results:
    """Every line of every file: `simulation*.jsonl`, `broken.jsonl`, and all others of the fault suite."""
    lines = [
        line
        for path in sorted(directory.glob("*.jsonl"))
        if not path.name.startswith(("simulation", "broken"))
        for line in _lines(path)
    ]
    runs = [
        Figures(**{each.name: line[each.name] for each in fields(Figures) if each.name in line})
        for line in lines
        if all(each.name in line or each.name in ADDED for each in fields(Figures))  # Else it is too old.
    ]
    unplayed = [Unplayed(**line) for line in lines if "error" in line]
    simulations = [
        Simulation(**line) for path in sorted(directory.glob("simulation*.jsonl")) for line in _lines(path)
    ]
    simulations = _once(simulations)
    broken = [Broken(**line) for path in directory.glob("broken.jsonl") for line in _lines(path)]
    last = {each.name: each for each in broken}
    return Results(runs, simulations, list(last.values()), unplayed)


def _once(simulations: Iterable[Simulation]) -> list[Simulation]:
    """Each range of seeds once: the last line of it stands. What overlaps in part cannot be taken apart."""
    once = list({(each.first, each.seeds): each for each in simulations}.values())
    for earlier, later in pairwise(sorted(once, key=lambda each: each.first)):
        if later.first < earlier.first + earlier.seeds:
            ranges = " and ".join(
                f"{each.first:,} to {each.first + each.seeds - 1:,}" for each in (earlier, later)
            )
            raise Overlap(f"the simulated seeds {ranges} overlap: leave one of these lines out")
    return once


def keep_current(path: Path, commit: str | None = None) -> None:
    """Drop what another version of the product has shown, before more is added: a report has one subject.

    Of what is not committed nothing is added to the results that the report is made of.
    """
    commit = last_change() if commit is None else commit
    if path.resolve().is_relative_to(RESULTS) and (why := refusal(commit)):
        raise Uncommitted(why)
    if path.exists():
        lines = [text for text in path.read_text().splitlines() if json.loads(text).get("commit") == commit]
        path.write_text("".join(f"{line}\n" for line in lines))


def append(path: Path, run: Figures | Broken | Unplayed) -> None:
    """Add this one."""
    with path.open("a") as results:
        results.write(json.dumps(run.as_json() if isinstance(run, Figures) else asdict(run)) + "\n")


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    for text in path.read_text().splitlines():
        yield json.loads(text)
