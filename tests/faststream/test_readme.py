"""The tables of FastStream's scenarios and of its features tell the truth."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
NAMED = re.compile(r"`(test_\w+\.py)::(test_\w+)`")


@cache
def functions(file: Path) -> set[str]:
    tree = ast.parse(file.read_text("utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.AsyncFunctionDef | ast.FunctionDef)}


def rows() -> list[str]:
    table = (HERE / "README.md").read_text("utf-8")
    return [
        line for line in table.splitlines() if line.startswith("| ") and not line.startswith("| scenario")
    ]


def test_every_test_that_it_names_exists() -> None:
    named = [found for row in rows() for found in NAMED.findall(row)]

    missing = [(file, test) for file, test in named if test not in functions(HERE / file)]

    assert len(named) > 90
    assert missing == []


def test_every_scenario_has_a_test_or_a_reason() -> None:
    unclear = [
        row for row in rows() if not NAMED.search(row) and "| no: " not in row and "| the same" not in row
    ]

    assert unclear == []


def test_every_feature_of_faststream_is_here_or_there_is_a_reason() -> None:
    page = (HERE.parents[1] / "docs" / "faststream.md").read_text("utf-8")
    answers = [line.split(" | ", 1)[1] for line in page.splitlines() if line.startswith("| ")]

    features = [answer for answer in answers if answer != "here |"]

    assert len(features) > 45
    assert [answer for answer in features if not answer.startswith(("yes", "no: "))] == []
