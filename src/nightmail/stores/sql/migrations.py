"""Steps from one version of the tables to the next, in SQL. `shared.migrations` says where they are.

`schema.sql` is what an empty database gets, and always the newest version. Beside `-- serves: 1`, a step may say at its
top:

    -- alone          its statements run one by one, each outside a transaction (`create index concurrently`)
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from nightmail.stores.shared import migrations
from nightmail.stores.shared.table_names import TableNames
from nightmail.stores.sql.statements import with_names

TABLES_LOCKED: Final = (
    "another open transaction keeps the tables locked for longer than a migration waits: run `nightmail migrate` "
    "again once it has ended"
)
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
    return [named(step, names) for step in migrations.steps(package, found=found, needed=needed)]


def upgrade_script(package: str, names: TableNames, *, found: int, needed: int) -> str:
    """The statements of these steps. After each, the version of the tables is noted."""
    return "\n\n".join(
        f"{step.script.strip()}\n\n"
        f"update {names.quoted('meta')} set version = {step.version}, serves = {step.serves} "
        f"where version = {step.version - 1};"
        for step in steps(package, names, found=found, needed=needed)
    )


def statements(script: str) -> list[str]:
    """The statements of a script, each ending with a semicolon at the end of its line."""
    return _STATEMENT.findall(script)


def named(step: migrations.Step, names: TableNames) -> Step:
    """This step for the tables of these names."""
    alone = _ALONE.search(step.text) is not None
    return Step(step.version, step.serves, alone, with_names(step.text, names))
