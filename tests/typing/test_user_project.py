"""A user's project is checked in strict mode without an ignore, and its mistakes are found."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PROJECT = HERE / "project"
# Kept between runs, for reading FastStream and SQLAlchemy takes half a minute; `make clean` removes it.
CACHE = HERE.parents[1] / ".mypy_cache" / "user-project"

FOUND = re.compile(r"^(\w+)\.py:(\d+): error: .*\[([\w-]+)\]$", re.MULTILINE)
MARKED = re.compile(r"# wrong: ([\w-]+)$")


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What mypy says, in a directory where it finds nothing of ours but the installed package."""
    place = tmp_path_factory.mktemp("project")
    shutil.copytree(PROJECT, place, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    ran = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--strict",
            "--no-pretty",
            "--config-file=",
            f"--cache-dir={CACHE}",
            *sorted(file.name for file in place.glob("*.py")),
        ],
        cwd=place,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.stderr == ""
    return ran.stdout


def errors(said: str, module: str) -> list[tuple[int, str]]:
    return sorted({(int(line), code) for name, line, code in FOUND.findall(said) if name == module})


@pytest.mark.parametrize("module", ["shop", "testing", "plain"])
def test_ordinary_code_needs_no_ignore(said: str, module: str) -> None:
    assert errors(said, module) == [], said
    assert "type: ignore" not in (PROJECT / f"{module}.py").read_text("utf-8")


def test_the_package_says_that_it_is_typed(said: str) -> None:
    assert "import-untyped" not in said
    assert "import-not-found" not in said


def test_every_mistake_is_found_and_nothing_else(said: str) -> None:
    lines = (PROJECT / "mistakes.py").read_text("utf-8").splitlines()
    expected = [
        (number, marked[1])
        for number, line in enumerate(lines, start=1)
        if (marked := MARKED.search(line)) is not None
    ]

    assert len(expected) > 30
    assert errors(said, "mistakes") == expected
