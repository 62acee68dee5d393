"""What became of each mutant when it last ran, and the page that shows it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from mutants.mutant import Mutant
from mutants.tree import ROOT

FILE: Final = Path(__file__).with_name("results.json")
PAGE: Final = ROOT / "docs" / "mutants.md"

_INTRODUCTION: Final = """\
# The mutation gate

Tests are worth what they notice. So the product is broken on purpose, in one place at a time, and a named test has to
fail each time. `make mutants` does that, in a copy of the tree, and writes this page; `make mutants PART=redis` and
`NAME=...` take some of them. `make test` checks that each mistake still fits its file, that its tests exist, and that
the page is about the mistakes as they are now. Each row names the commit that had last changed the product when it ran;
`make mutants ARGS=--old` takes those of older commits.

The mistakes are in `mutants/catalogue`. Those of `faults/workload/breakages.py` and `tests/simulation/breakages.py` are
made while the product runs, and show that the fault suite and the simulation notice them.

A mistake that names what is not there fails every test and proves nothing: mypy finds it before anything runs.

A new promise gets a mutant. One that stays alive is a test that is missing: write it first.

Two mistakes that are common elsewhere have no mutant. A renewal does not look at whether the lease has ended: until
another worker takes the message it is still the holder's, on purpose. And SQLite and Redis look for a timer id before
they take it, because there one writer at a time runs: only on Postgres and MySQL does a unique index decide.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One mutant that was killed."""

    digest: str
    by: str
    hung: bool
    seconds: float
    commit: str = ""
    """The one that had last changed the product."""


def load() -> dict[str, Result]:
    """The last result of each, by name."""
    if not FILE.exists():
        return {}
    return {name: Result(**known) for name, known in json.loads(FILE.read_text()).items()}


def save(results: dict[str, Result], mutants: Sequence[Mutant]) -> None:
    """Write the results of these mutants, without those that are gone; and the page, when none is missing."""
    current = {
        mutant.name: results[mutant.name]
        for mutant in mutants
        if mutant.name in results and results[mutant.name].digest == mutant.digest
    }
    FILE.write_text(json.dumps({name: asdict(result) for name, result in current.items()}, indent=1) + "\n")
    if len(current) == len(mutants):
        PAGE.write_text(page(mutants, current))


def page(mutants: Sequence[Mutant], results: dict[str, Result]) -> str:
    """The page."""
    lines = [
        _INTRODUCTION,
        f"{len(mutants)} mutants, all killed. The seconds are those of each one's last run, with starting its "
        "servers, beside whatever else the machine did.",
    ]
    for part in dict.fromkeys(mutant.part for mutant in mutants):
        lines += [
            "",
            f"## {part}",
            "",
            "| mutant | what a user would see | killed by | s | at commit |",
            "|---|---|---|---:|---|",
        ]
        for mutant in mutants:
            if mutant.part == part:
                result = results[mutant.name]
                where, *names = result.by.split("::")
                test = names[-1].partition("[")[0]
                lines.append(
                    f"| {mutant.name} | {mutant.why} | `{where.removeprefix('tests/')}` `{test}`"
                    f"{', which hangs' if result.hung else ''} | {result.seconds:.0f} "
                    f"| {result.commit or 'not noted'} |"
                )
    return "\n".join(lines) + "\n"
