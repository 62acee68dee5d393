"""What a run found: tables of one number per system and round, courses over time, and what failed."""

from __future__ import annotations

import json
import os
import platform
import re
import statistics
import subprocess
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks.environments import ROOT
from benchmarks.statistics import Spread, spread

HOME: Final = Path(__file__).parent / "results"
FULL: Final = HOME / "full.json"
"""A run of everything: what the documentation shows."""
OPERATING: Final = HOME / "operating.json"
"""The commands on a full store, which a run of everything leaves out: the documentation shows it too."""
TEN_MILLION: Final = HOME / "ten-million.json"
"""A drain beside ten million future messages where that takes minutes: likewise."""
LAST: Final = HOME / "last.json"
"""A quick run, or one of a part. Not committed."""
FLUSHES: Final = 200
PAGE: Final = 8192


@dataclass
class Row:
    """One system in a table."""

    system: str
    values: list[float] = field(default_factory=list)
    """One for each round."""
    note: str = ""

    @property
    def spread(self) -> Spread | None:
        """`None` when there is not a single value."""
        return spread(self.values) if self.values else None


@dataclass
class Table:
    """One number for each system, measured in turn on one server."""

    scenario: str
    case: str
    store: str
    unit: str
    rows: list[Row] = field(default_factory=list)
    note: str = ""
    less_is_better: bool = False

    def row(self, system: str) -> Row:
        """The row of a system, made if it is not there."""
        for row in self.rows:
            if row.system == system:
                return row
        self.rows.append(Row(system))
        return self.rows[-1]

    def order(self, systems: Iterable[str]) -> None:
        """Make their rows in this order."""
        for system in systems:
            self.row(system)


@dataclass
class Course:
    """Some numbers over time."""

    scenario: str
    case: str
    store: str
    unit: str
    seconds: list[float]
    lines: dict[str, list[float]]
    spans: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Named parts of it, from second to second."""


@dataclass
class Results:
    """Everything that one run found."""

    quick: bool
    parts: list[str] = field(default_factory=list)
    """Which scenarios were asked for, on which stores. A quick run does not have all of them."""
    everything: bool = False
    """Whether neither a scenario nor a store was picked out: then each figure is judged, measured or not."""
    started: str = ""
    seconds: float = 0.0
    took: dict[str, float] = field(default_factory=dict)
    """The seconds of each part that was run: the plan in `registry.py` is made from them."""
    machine: dict[str, str] = field(default_factory=dict)
    servers: dict[str, dict[str, str]] = field(default_factory=dict)
    peers: dict[str, str] = field(default_factory=dict)
    tables: list[Table] = field(default_factory=list)
    courses: list[Course] = field(default_factory=list)
    failures: list[dict[str, str]] = field(default_factory=list)
    interrupted: bool = False

    def table(self, scenario: str, case: str, store: str) -> Table | None:
        """The table of this name, if it was measured."""
        for table in self.tables:
            if (table.scenario, table.case, table.store) == (scenario, case, store):
                return table
        return None

    def values(self, scenario: str, case: str, store: str, system: str) -> list[float]:
        """The rounds of a system; empty if it was not measured."""
        table = self.table(scenario, case, store)
        rows = [] if table is None else [row for row in table.rows if row.system == system]
        return list(rows[0].values) if rows else []

    def write(self, path: Path) -> None:
        """Write it whole or not at all: a run that is cut off leaves what it has found so far."""
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(_rounded(asdict(self)), indent=1)
        # A list of numbers on one line.
        text = re.sub(r"\[[\d\s.,e+-]+\]", lambda found: " ".join(found[0].split()), text)
        beside = path.with_suffix(".new")
        beside.write_text(text + "\n")
        beside.replace(path)

    @classmethod
    def read(cls, path: Path) -> Results:
        """What was written."""
        found = json.loads(path.read_text())
        tables = [
            Table(**{**table, "rows": [Row(**row) for row in table["rows"]]}) for table in found.pop("tables")
        ]
        courses = [
            Course(**{**course, "spans": {name: tuple(span) for name, span in course["spans"].items()}})
            for course in found.pop("courses")
        ]
        return cls(tables=tables, courses=courses, **found)


def machine() -> dict[str, str]:
    """Where it runs, and how busy that is."""
    model = ""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return {
        "system": platform.platform(),
        "processor": f"{os.cpu_count()} cores, {model or platform.processor() or platform.machine()}",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GB",
        "python": platform.python_version(),
        "commit": commit(),
        "load average at the start": " ".join(f"{load:.1f}" for load in os.getloadavg()),
    }


def commit(root: Path = ROOT) -> str:
    """The commit of the product, with a `+` if its source has changed since."""
    try:
        name = _git(root, "rev-parse", "--short", "HEAD")
        changed = _git(root, "status", "--porcelain", "--", "src/nightmail")
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return f"{name}+" if changed else name


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=root, capture_output=True, text=True, timeout=30, check=True
    )
    return done.stdout.strip()


def flush_ms(directory: Path) -> float:
    """How long it takes to write a page and flush it to this disk: the median of many times, in ms.

    The pages are there before, as in the logs of the databases: a file that grows takes longer.
    """
    page, path = b"n" * PAGE, directory / "flushed"
    took = []
    with path.open("wb", buffering=0) as file:
        file.write(page * FLUSHES)
        os.fsync(file.fileno())
        file.seek(0)
        for _ in range(FLUSHES):
            begun = time.perf_counter()
            file.write(page)
            os.fdatasync(file.fileno())
            took.append(time.perf_counter() - begun)
    path.unlink()
    return 1000 * statistics.median(took)


def _rounded(value: Any) -> Any:
    """Five significant digits are more than any of this is worth."""
    match value:
        case float():
            return float(f"{value:.5g}")
        case dict():
            return {key: _rounded(part) for key, part in value.items()}
        case list() | tuple():
            return [_rounded(part) for part in value]
        case _:
            return value
