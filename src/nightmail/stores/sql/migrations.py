"""From one version of the tables to the next: numbered files, forward only.

`schema.sql` is what an empty database gets, and always the newest version. `migrations/0002_<what>.sql` is what tables
of version 1 get to become version 2. Such a file says at its top which code the tables still serve afterwards:

    -- serves: 1      code of version 1 goes on working: it may be stopped and started while others are upgraded
    -- alone          its statements run one by one, each outside a transaction (`create index concurrently`)

A step may be cut short, and run again, and by several processes at once. What cannot be rolled back must be written so
that it can be repeated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from typing import Final

from nightmail.stores.shared.table_names import TableNames
from nightmail.stores.sql.statements import with_names

_FILE: Final = re.compile(r"(\d{4})_\w+\.sql")
_SERVES: Final = re.compile(r"^-- serves: (\d+)$", re.MULTILINE)
_ALONE: Final = re.compile(r"^-- alone$", re.MULTILINE)
_STATEMENT: Final = re.compile(r"(.+?);\s*$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Step:
    """What brings tables of the version before to this version."""

    version: int
    serves: int
    """The oldest version of the code that works with the tables afterwards."""
    alone: bool
    script: str

    @property
    def statements(self) -> list[str]:
        """The statements one by one. Each ends with a semicolon at the end of its line."""
        return statements(self.script)


def steps(package: str, names: TableNames, *, found: int, needed: int) -> list[Step]:
    """The steps from the version that was found to the one that is needed, in order."""
    by_version = {step.version: step for step in _all_steps(package, names)}
    return [by_version[version] for version in range(found + 1, needed + 1)]


def statements(script: str) -> list[str]:
    """The statements of a script, each ending with a semicolon at the end of its line."""
    return _STATEMENT.findall(script)


def _all_steps(package: str, names: TableNames) -> Iterator[Step]:
    folder = resources.files(package).joinpath("migrations")
    if not folder.is_dir():
        return
    for file in folder.iterdir():
        if numbered := _FILE.fullmatch(file.name):
            yield read_step(int(numbered[1]), file.read_text("utf-8"), names)


def read_step(version: int, text: str, names: TableNames) -> Step:
    """The step in the file of this number."""
    serves = _SERVES.search(text)
    if serves is None:
        raise ValueError(f"migration {version} does not say which code its tables serve: `-- serves: 1`")
    return Step(version, int(serves[1]), _ALONE.search(text) is not None, with_names(text, names))
