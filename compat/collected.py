"""How many tests there are for a target today: a result with fewer or more is of an older suite."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from compat.targets import Target

ROOT: Final = Path(__file__).parents[1]
EVERY_TEST: Final = "-m=compat or not compat"
"""By default those that only `make compat` runs are left out."""


def collected(targets: Iterable[Target]) -> dict[str, int]:
    """The number of tests of each of these, by name."""
    chosen = tuple(targets)
    paths = sorted({path for target in chosen for path in target.tests})
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "--collect-only",
            "-q",
            "-p",
            "no:cacheprovider",
            EVERY_TEST,
            *paths,
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    tests = [line for line in done.stdout.splitlines() if "::" in line]
    return {target.name: sum(_is_of(test, target.tests) for test in tests) for target in chosen}


def _is_of(test: str, paths: tuple[str, ...]) -> bool:
    return any(test.startswith((f"{path}::", f"{path}/")) for path in paths)
