"""The two tables of `docs/capabilities.md`, and their place in it."""

from __future__ import annotations

import ast
import inspect
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Final

from nightmail.store import Capabilities
from testkit.capability_table.endings import Endings, Lacking, Part, Passed, suite

PAGE: Final = Path(__file__).parents[2] / "docs" / "capabilities.md"
BEGIN: Final = "<!-- Written by `python -m testkit.capability_table`, not by hand, -->"
END: Final = "<!-- as far as this line. -->"


def tables(columns: Sequence[tuple[Capabilities, Endings]]) -> str:
    """What the stores declare, and how the suite ended on them, part by part."""
    names = [store.name for store, _ in columns]
    declares = [
        [f"`{name}`", meaning, *(_word(getattr(store, name)) for store, _ in columns)]
        for name, meaning in _meanings().items()
    ]
    parts = suite()
    ended = [
        [f"`{part.name}`", part.meaning, *(_cell(endings, part) for _, endings in columns)] for part in parts
    ]
    every = [test for part in parts for test in part.tests]
    ended.append(["all", "", *(_count(endings, every) for _, endings in columns)])
    return "\n\n".join(
        (
            "## What the stores declare",
            _table(["capability", "meaning", *names], declares),
            "## How the suite ended",
            _table(["part", "about", *names], ended),
        )
    )


def committed() -> str:
    """The tables as the page has them now."""
    return PAGE.read_text("utf-8").partition(BEGIN)[2].partition(END)[0].strip()


def write(text: str) -> None:
    """Put the tables into the page; the text around them stays."""
    before, begin, rest = PAGE.read_text("utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{PAGE.name} has lost the two comments between which the tables stand")
    PAGE.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}", "utf-8")


def _meanings() -> dict[str, str]:
    """The fields of `Capabilities` with their docstrings, which are only in the source."""
    (source,) = ast.parse(inspect.getsource(Capabilities)).body
    assert isinstance(source, ast.ClassDef)
    below = {
        ast.unparse(line.target): " ".join(ast.literal_eval(text.value).split())
        for line, text in zip(source.body, source.body[1:], strict=False)
        if isinstance(line, ast.AnnAssign) and isinstance(text, ast.Expr)
    }
    return {each.name: below.get(each.name, "") for each in fields(Capabilities) if each.name != "name"}


def _word(value: bool | int) -> str:
    return ("no", "yes")[value] if isinstance(value, bool) else str(value)


def _cell(endings: Endings, part: Part) -> str:
    ended = [endings.get(test) for test in part.tests]
    lacking = Counter(each.capability for each in ended if isinstance(each, Lacking))
    missing = ", ".join(
        f"{count} {'needs' if count == 1 else 'need'} `{capability}`"
        for capability, count in sorted(lacking.items())
    )
    return _count(endings, list(part.tests)) + (f" ({missing})" if missing else "")


def _count(endings: Endings, tests: Sequence[str]) -> str:
    passed = sum(isinstance(endings.get(test), Passed) for test in tests)
    return str(passed) if passed == len(tests) else f"{passed} of {len(tests)}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))
