"""SECURITY.md promises nothing that no test holds."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import pytest

from testkit.test_names import ROOT, is_test

ROW: Final = re.compile(r"^\| (S\d+) \| (.+?) \| (.+?) \| (.+) \|$", re.MULTILINE)
ROWS: Final = ROW.findall((ROOT / "SECURITY.md").read_text("utf-8"))
SUITES: Final = {
    "sqlite": "TestSQLite",
    "postgres": "TestPostgres",
    "mysql": "TestMySQL",
    "redis": "TestRedis",
}


def meant(name: str) -> Iterator[str]:
    """The tests that a row's name stands for."""
    braces = re.search(r"\{(.+)\}", name)
    for one in braces[1].split(",") if braces else [""]:
        whole = f"tests/{name.replace(braces[0], one) if braces else name}"
        yield whole.replace("*", SUITES[whole.split("/")[2]]) if "*" in whole else whole


def test_every_concern_of_the_checklist_has_a_row() -> None:
    assert [number for number, *_ in ROWS] == [f"S{number}" for number in range(1, 26)]


@pytest.mark.parametrize(("number", "concern", "holds", "tests"), ROWS, ids=[row[0] for row in ROWS])
def test_every_row_names_tests_that_exist(number: str, concern: str, holds: str, tests: str) -> None:
    named = [re.fullmatch(r"`([^`]+)`", each) for each in tests.split("<br>")]

    assert all(named), number
    assert [test for name in named if name for test in meant(name[1]) if not is_test(test)] == []
