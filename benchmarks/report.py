"""docs/performance.md and the pictures, written from the results of a run and from nothing else."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from benchmarks import plots
from benchmarks.bounds import verdicts
from benchmarks.environments import ROOT
from benchmarks.registry import SCENARIOS, full_run
from benchmarks.results import FULL, OPERATING, TEN_MILLION, Results, Table
from benchmarks.show import compared, conditions, extent, failure_line, number, value

PAGE: Final = ROOT / "docs" / "performance.md"
HEAD: Final = """\
# Performance

Nightmail, its nearest peers and a loop written by hand, measured in one run on the same private servers. Each system is
in a process of its own. Where a table has rounds, those of all systems are interleaved, and a ratio is the median of
the ratios of each round, with the least and the most of them beside it; where it has none, there was one. How that is
done, and what each scenario means: [benchmarks/README.md](../benchmarks/README.md).

```sh
make bench                        # everything, three quarters of an hour
make bench SCENARIO=operating     # the commands on a full store, half an hour
make bench SCENARIO=ten-million   # a drain beside ten million future messages on the other stores, six minutes
QUICK=1 make bench                # three minutes: does it work, and roughly how fast?
```

This page is written by `python -m benchmarks report`, from the results of the last run of each of the first three.
"""


def committed() -> dict[Path, Results]:
    """The results that the page shows."""
    return {path: Results.read(path) for path in (FULL, OPERATING, TEN_MILLION) if path.exists()}


def write(recorded: Mapping[Path, Results]) -> None:
    """Draw the pictures of these results, and write the page."""
    for path, results in recorded.items():
        plot(results, path)
    PAGE.write_text(text(recorded))


def plot(results: Results, path: Path) -> None:
    """Draw the pictures beside the results."""
    try:
        names = plots.draw(results, _pictures(path))
    except ImportError:
        print("no pictures: matplotlib is missing; pip install -e '.[bench]'", file=sys.stderr)
    else:
        print(f"{len(names)} pictures in {_pictures(path)}")


def text(recorded: Mapping[Path, Results]) -> str:
    """The whole page."""
    if not recorded:
        return HEAD + "\nNo run has been recorded yet.\n"
    return "\n".join([HEAD, *(_run(results, path) for path, results in recorded.items())])


def _run(results: Results, path: Path) -> str:
    parts = [_about(results), "## Figures and their bounds\n", _summary(results)]
    for scenario in SCENARIOS:
        tables = [table for table in results.tables if table.scenario == scenario.name]
        if tables:
            parts.append(f"## {scenario.what[0].upper()}{scenario.what[1:]}\n")
            parts += _scenario(results, tables, path)
    if results.failures:
        parts.append("## What failed\n")
        parts.append("".join(f"- {failure_line(failure)}\n" for failure in results.failures))
    return "\n".join(parts)


def _about(results: Results) -> str:
    lines = [f"{_kind(results)}: {results.started}, {results.seconds / 60:.0f} minutes.\n"]
    lines += [f"- {line}" for line in conditions(results)]
    return "\n".join(lines) + "\n"


def _kind(results: Results) -> str:
    if results.interrupted:
        return "A run that was cut off"
    if results.quick:
        return "A quick run, which says little"
    missing = [name for name in full_run() if name not in results.parts]
    if not missing:
        return "A full run"
    if results.everything:
        return f"A full run, before there was {', '.join(missing)}"
    return "A run of " + ", ".join(dict.fromkeys(name.partition(" on ")[0] for name in results.parts))


def _summary(results: Results) -> str:
    lines = ["| figure | measured | rounds | wanted | |", "|---|---|---|---|---|"]
    for verdict in verdicts(results):
        found = verdict.value
        measured = "–" if found is None else f"{number(found.median)} {verdict.bound.unit}".rstrip()
        rounds = (
            "" if found is None or found.low == found.high else f"{number(found.low)} to {number(found.high)}"
        )
        word = verdict.word if verdict.holds is True else f"**{verdict.word}**"
        note = f" ({verdict.note})" if verdict.note else ""
        why = f" ([why]({verdict.why.removeprefix('docs/')}))" if verdict.why else ""
        lines.append(
            f"| {verdict.bound.what}{note} | {measured} | {rounds} | {verdict.bound} | {word}{why} |"
        )
    return "\n".join(lines) + "\n"


def _scenario(results: Results, tables: Sequence[Table], path: Path) -> list[str]:
    """The tables of each store, and its pictures."""
    parts = []
    for store in dict.fromkeys(table.store for table in tables):
        here = [table for table in tables if table.store == store]
        parts += [_table(table) for table in here]
        names = [plots.picture_of(here[0].scenario, store)]
        names += [
            plots.picture_of(course.scenario, store, course.case)
            for course in results.courses
            if (course.scenario, course.store) == (here[0].scenario, store)
        ]
        pictures = _pictures(path)
        for name in names:
            if (pictures / f"{name}.svg").exists():
                link = (pictures / f"{name}.svg").relative_to(ROOT).as_posix()
                parts.append(f"![{name.replace('-', ' ')}](../{link})\n")
    return parts


def _table(table: Table) -> str:
    first = table.rows[0] if table.rows else None
    note = f" ({table.note})" if table.note else ""
    lines = [
        f"| {table.store}: {table.case}{note} | {table.unit or 'count'} | the first, of this | rounds |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {row.system} | {value(row.spread)} | {compared(first, row)} | {extent(row)} |"
        for row in table.rows
    ]
    return "\n".join(lines) + "\n"


def _pictures(path: Path) -> Path:
    return path.with_suffix("")
