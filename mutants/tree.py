"""A copy of the tree, in which one file at a time is broken and mended again."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import cache_from_source
from pathlib import Path
from typing import Final

from mutants.mutant import Mutant

ROOT: Final = Path(__file__).parents[1]


@contextmanager
def copied() -> Iterator[Path]:
    """A copy of what is under version control, as it is now, changed or not."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    with tempfile.TemporaryDirectory(prefix="nightmail-mutants-") as directory:
        copy = Path(directory)
        for name in filter(None, listed.stdout.split("\0")):
            if (ROOT / name).is_file():
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, copy / name)
        yield copy


@contextmanager
def broken(copy: Path, mutant: Mutant) -> Iterator[None]:
    """The copy with this mistake in it, for as long as the block lasts."""
    file = copy / mutant.path
    before = file.read_text("utf-8")
    _write(file, mutant.applied(before))
    try:
        yield
    finally:
        _write(file, before)


def _write(file: Path, text: str) -> None:
    file.write_text(text, "utf-8")
    if file.suffix == ".py":
        # Bytecode is recognised by the second and the size of its source: two mutants may have both in common.
        Path(cache_from_source(str(file))).unlink(missing_ok=True)
