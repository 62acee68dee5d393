"""Creates the tables, and checks them against this version's schema."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from functools import lru_cache
from typing import Final

from nightmail.errors import NightmailError, SchemaDrift, SchemaMissing
from nightmail.findings import Finding
from nightmail.stores.shared.meta import LOOK_INTERVAL, NOTICE_HORIZON, OTHER_INTERVALS, TablesVersion
from nightmail.stores.shared.table_names import TableNames
from nightmail.stores.sql.check import Difference, compared
from nightmail.stores.sql.migrations import steps, upgrade_script
from nightmail.stores.sql.statements import load_script
from nightmail.stores.sql.verbs import Ask
from nightmail.stores.sqlite.queries import Queries, Row
from nightmail.stores.sqlite.shape import definitions
from nightmail.stores.sqlite.times import in_microseconds

VERSION: Final = 1
LOCK_SECONDS: Final = 10
_PACKAGE: Final = "nightmail.stores.sqlite"
_TIMES: Final = (in_microseconds(LOOK_INTERVAL), in_microseconds(NOTICE_HORIZON))


class Schema:
    """The tables of one store."""

    def __init__(self, names: TableNames, sql: Queries) -> None:
        self._names = names
        self._sql = sql
        self._script = load_script(_PACKAGE, "schema.sql", names)

    def script(self, *, found: int | None = None) -> str:
        """The statements that create the tables and record their version, or bring up those of version `found`."""
        if found is not None:
            return upgrade_script(_PACKAGE, self._names, found=found, needed=VERSION)
        ask = self._version()
        noted = ask.statement.text
        for name, value in ask.values.items():
            noted = noted.replace(f":{name}", str(value))
        return f"{self._script.rstrip()}\n\n{noted};"

    def current(self, connection: sqlite3.Connection) -> bool | None:
        """`True` when there is nothing to migrate, else `None`."""
        return True if self.problem(connection) is None else None

    def migrate(self, connection: sqlite3.Connection) -> bool:
        """Bring the tables up to this version, or create what is missing. Tables of a later version are left alone."""
        meta = self._meta(connection)
        if meta is not None:
            for step in steps(_PACKAGE, self._names, found=meta[0], needed=VERSION):
                for statement in _statements(step.script):
                    connection.execute(statement)
                self._note(connection, self._sql("note_step", version=step.version, serves=step.serves))
        if meta is None or meta[0] <= VERSION:
            for statement in _statements(self._script):
                connection.execute(statement)
            self._note(connection, self._version())
        return True

    def _note(self, connection: sqlite3.Connection, note: Ask) -> None:
        connection.execute(note.statement.text, note.values)

    def problem(self, connection: sqlite3.Connection) -> NightmailError | None:
        """What is wrong with the tables, if anything is."""
        meta = self._meta(connection)
        if meta is None:
            # `migrate` creates what is missing.
            changed = [each for each in self._differences(connection) if each.found is not None]
            return SchemaDrift([_told(each) for each in changed]) if changed else SchemaMissing()
        version, serves, *times = meta
        if problem := TablesVersion(version, serves).problem(VERSION):
            return problem
        if version > VERSION:
            return None  # Newer tables that serve this code. What they must look like, newer code knows.
        told = [_told(each) for each in self._differences(connection)]
        if tuple(times) != _TIMES:
            told.append(OTHER_INTERVALS)
        return SchemaDrift(told) if told else None

    def findings(self, connection: sqlite3.Connection) -> list[Finding]:
        """What there is to say about tables that this version can use."""
        meta = self._meta(connection)
        return [] if meta is None else list(TablesVersion(*meta[:2]).findings(VERSION))

    def is_adoptable(self, connection: sqlite3.Connection) -> bool:
        """Whether these tables lack only what Alembic cannot create: the triggers, and the row with the version."""
        if not self._has_meta(connection) or self._meta(connection) is not None:
            return False
        made = {
            name: text for name, text in _made_by(self._script).items() if not name.startswith("trigger ")
        }
        return definitions(connection, made) == made

    def _differences(self, connection: sqlite3.Connection) -> Iterator[Difference]:
        made = _made_by(self._script)
        return compared(made, definitions(connection, made))

    def _meta(self, connection: sqlite3.Connection) -> Row | None:
        if not self._has_meta(connection):
            return None
        meta: Row | None = connection.execute(self._sql("meta").statement.text).fetchone()
        return meta

    def _has_meta(self, connection: sqlite3.Connection) -> bool:
        table = f"{self._names.prefix}_meta"
        return bool(connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchall())

    def _version(self) -> Ask:
        look_interval, notice_horizon = _TIMES
        return self._sql(
            "note_version", version=VERSION, look_interval=look_interval, notice_horizon=notice_horizon
        )


def _told(difference: Difference) -> str:
    """A definition is a whole statement here, too long to quote."""
    return str(difference) if difference.found is None else f"the {difference.thing} was changed"


@lru_cache(maxsize=8)
def _made_by(script: str) -> Mapping[str, str]:
    """The definitions that a script leaves in an empty database. Each process that opens a store asks for them."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as empty:
        for statement in _statements(script):
            empty.execute(statement)
        return definitions(empty)


@lru_cache(maxsize=8)
def _statements(script: str) -> tuple[str, ...]:
    """The statements of a script. `executescript` would first commit an open transaction."""
    statements: list[str] = []
    statement = ""
    for line in script.splitlines(keepends=True):
        if line.startswith("--"):
            continue
        statement += line
        if sqlite3.complete_statement(statement):
            statements.append(statement.strip())
            statement = ""
    return tuple(statements)
