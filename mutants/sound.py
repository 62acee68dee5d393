"""Whether the source of a mutant can run at all.

A test also fails when the mistake names what is not there, for example a field that was renamed since. That proves
nothing about the test.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from mutants.mutant import Mutant
from mutants.tree import ROOT

_BROKEN: Final = re.compile(
    r"^(?P<file>[^:]+):\d+: error: (?P<what>.*)"
    r"\[(syntax|name-defined|attr-defined|used-before-def|call-arg|import-not-found)\]$",
    re.MULTILINE,
)
"""Other complaints of mypy are no matter: a mistake may have wrong types, and is still one."""


def unsound(copy: Path, mutants: Sequence[Mutant], cache: Path = ROOT / ".mypy_cache") -> dict[str, str]:
    """Those in Python that name what is not there, and what that is."""
    written = {}
    for number, mutant in enumerate(mutants):
        if mutant.path.suffix == ".py":
            # Beside its file, all at once: mypy reads the product a single time.
            path = mutant.path.with_name(f"mutant_{number}.py")
            source = (copy / mutant.path).read_text("utf-8")
            (copy / path).write_text(mutant.applied(source), "utf-8")
            written[str(path)] = mutant.name
    try:
        found = _BROKEN.finditer(_mypy(copy, list(written), cache) if written else "")
        return {written[each["file"]]: each["what"].strip() for each in found if each["file"] in written}
    finally:
        for name in written:
            (copy / name).unlink()


def _mypy(copy: Path, files: Sequence[str], cache: Path) -> str:
    options = ["--no-color-output", "--hide-error-context", f"--cache-dir={cache}"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, *files],
        cwd=copy,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode not in (0, 1) and not _BROKEN.search(done.stdout):
        raise RuntimeError(f"mypy ended with {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout
