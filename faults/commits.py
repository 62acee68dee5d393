"""Of which code results are."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PRODUCT: Final = ("src/nightmail",)
UNCOMMITTED: Final = "+"


@cache
def last_change(paths: tuple[str, ...] = PRODUCT) -> str:
    """The commit that changed these last: patterns of git's, seen from the root. Nothing where there is no git.

    With a `+` if they have changed since.
    """
    git = shutil.which("git")
    if git is None:
        return ""
    globs = [f":(glob){path}" for path in paths]
    last = _told(git, "log", "-1", "--format=%h", "--", *globs)
    return last + UNCOMMITTED if _told(git, "status", "--porcelain", "--", *globs) else last


def _told(*command: str) -> str:
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return told.stdout.strip()


def refusal(commit: str) -> str:
    """Why no results may be written of this; nothing, if they may."""
    if not commit.endswith(UNCOMMITTED):
        return ""
    return (
        f"what is measured has changed since {commit.removesuffix(UNCOMMITTED)} and is not committed: commit it, "
        "or write no results (make faults RESULTS=)"
    )
