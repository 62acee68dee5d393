"""From one version of the tables, or keys, to the next: numbered files, forward only.

`migrations/0002_<what>` in the directory of a store is what version 1 gets to become version 2: an SQL file (see
`sql.migrations`), or for Redis a script (see `redis.schema`). It says at its top which code is still served afterwards:

    -- serves: 1      code of version 1 goes on working: it may be stopped and started while others are upgraded

A step may be cut short, and run again, and by several processes at once. What cannot be rolled back must be written so
that it can be repeated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from typing import Final

_FILE: Final = re.compile(r"(\d{4})_\w+\.(?:sql|lua)")
_SERVES: Final = re.compile(r"^-- serves: (\d+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Step:
    """What brings the version before to this version."""

    version: int
    serves: int
    """The oldest version of the code that works with it afterwards."""
    text: str


def steps(package: str, *, found: int, needed: int) -> list[Step]:
    """The steps of this store from the version that was found to the one that is needed, in order."""
    if found >= needed:
        return []
    by_version = {step.version: step for step in _all_steps(package)}
    return [by_version[version] for version in range(found + 1, needed + 1)]


def read_step(version: int, text: str) -> Step:
    """The step in the file of this number."""
    serves = _SERVES.search(text)
    if serves is None:
        raise ValueError(f"migration {version} does not say which code it still serves: `-- serves: 1`")
    return Step(version, int(serves[1]), text)


def _all_steps(package: str) -> Iterator[Step]:
    folder = resources.files(package).joinpath("migrations")
    if not folder.is_dir():
        return
    for file in folder.iterdir():
        if numbered := _FILE.fullmatch(file.name):
            yield read_step(int(numbered[1]), file.read_text("utf-8"))
