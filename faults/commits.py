"""Of which code results are."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PRODUCT: Final = ("src/nightmail",)


@cache
def last_change(paths: tuple[str, ...] = PRODUCT) -> str:
    """The commit that changed these last: patterns of git's, seen from the root. Nothing where there is no git."""
    git = shutil.which("git")
    if git is None:
        return ""
    told = subprocess.run(
        [git, "log", "-1", "--format=%h", "--", *(f":(glob){path}" for path in paths)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return told.stdout.strip()
