"""Run, check, and write the page; for selected stores only, print."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from testkit.capability_table.endings import complaints, declared
from testkit.capability_table.page import PAGE, tables, write
from testkit.capability_table.recorder import Recorder

ROOT = Path(__file__).parents[2]


def main(only: Sequence[str]) -> None:
    """For these stores, or for all."""
    asked = [store for store in declared() if not only or store.name in only]
    if unknown := set(only) - {store.name for store in asked}:
        sys.exit(f"there is no store {', '.join(sorted(unknown))}")

    ran = run(only).by_store()

    found = [why for store in asked for why in complaints(store, *ran.get(store.name, (None, {})))]
    if found:
        sys.exit("\n".join([*found, f"{PAGE.name} is left as it is."]))
    text = tables([(store, ran[store.name][1]) for store in asked])
    if only:
        print(text)
    else:
        write(text)
        print(f"{PAGE.relative_to(ROOT)} is written: {', '.join(store.name for store in asked)}")


def run(only: Sequence[str]) -> Recorder:
    """The suite on these stores: the tests of a store have its name as their marker."""
    # As on CI: an unavailable server is a failure, since a skip would leave a hole in the table.
    os.environ["CI"] = "1"
    recorder = Recorder()
    # We import modules before pytest can rewrite them; they contain no assertions that it would show.
    quietly = ["-q", "--no-header", "-r", "fE", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
    marked = ["-m", " or ".join(only)] if only else []
    pytest.main([*quietly, *marked, f"--rootdir={ROOT}", *map(str, files(only))], plugins=[recorder])
    return recorder


def files(only: Sequence[str]) -> list[Path]:
    """The files with tests of these stores: collecting all the others takes longer than running one store's."""
    wanted = [f"pytest.mark.{store}" for store in only] or ["pytest.mark."]
    found = sorted((ROOT / "tests" / "stores").rglob("test_*.py"))
    return [file for file in found if any(marker in file.read_text() for marker in wanted)]


if __name__ == "__main__":
    main(sys.argv[1:])
