"""Whether what a result is about has changed since its commit."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from compat.targets import Target

ROOT: Final = Path(__file__).parents[1]
STORES: Final = "src/nightmail/stores"


def changed(
    targets: Iterable[Target], results: Mapping[str, Mapping[str, Any]], root: Path = ROOT
) -> set[str]:
    """The names of the targets whose store is another today than at the commit of their result."""
    return {
        target.name
        for target in targets
        if target.name in results and not _is_as_at(results[target.name].get("commit"), target.stores, root)
    }


def is_known(commit: str | None, root: Path = ROOT) -> bool:
    """Whether git has this commit: it has none in an archive, and few in a shallow clone."""
    return bool(commit) and _git(root, "cat-file", "-e", f"{commit}^{{commit}}")


def _is_as_at(commit: str | None, stores: Iterable[str], root: Path) -> bool:
    paths = [f"{STORES}/{store}" for store in stores]
    # With what is not committed yet: a page that is written before a commit must be right after it.
    return is_known(commit, root) and _git(root, "diff", "--quiet", str(commit), "--", *paths)


def _git(root: Path, *arguments: str) -> bool:
    """Whether git says yes."""
    git = shutil.which("git")
    return (
        git is not None
        and not subprocess.run([git, *arguments], cwd=root, capture_output=True, check=False).returncode
    )
