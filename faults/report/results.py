"""What runs have written, read back."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from faults.commits import last_change
from faults.figures import Figures


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


@dataclass(frozen=True, slots=True)
class Results:
    """Everything there is."""

    runs: list[Figures]
    simulations: list[Simulation]
    broken: list[Broken] = field(default_factory=list)


def read_results(directory: Path) -> Results:
    """Every line of every file: `simulation*.jsonl`, `broken.jsonl`, and all others of the fault suite."""
    runs = [
        Figures(**{each.name: line[each.name] for each in fields(Figures)})
        for path in sorted(directory.glob("*.jsonl"))
        if not path.name.startswith(("simulation", "broken"))
        for line in _lines(path)
        if all(each.name in line for each in fields(Figures))  # Else it is of an older suite.
    ]
    simulations = [
        Simulation(**line) for path in sorted(directory.glob("simulation*.jsonl")) for line in _lines(path)
    ]
    broken = [Broken(**line) for path in directory.glob("broken.jsonl") for line in _lines(path)]
    last = {each.name: each for each in broken}
    return Results(runs, simulations, list(last.values()))


def keep_current(path: Path, commit: str | None = None) -> None:
    """Drop what another version of the product has shown, before more is added: a report has one subject."""
    if path.exists():
        commit = last_change() if commit is None else commit
        lines = [text for text in path.read_text().splitlines() if json.loads(text).get("commit") == commit]
        path.write_text("".join(f"{line}\n" for line in lines))


def append(path: Path, run: Figures | Broken) -> None:
    """Add this one."""
    with path.open("a") as results:
        results.write(json.dumps(run.as_json() if isinstance(run, Figures) else asdict(run)) + "\n")


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    for text in path.read_text().splitlines():
        yield json.loads(text)
