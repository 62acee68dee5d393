"""Creates the tables, and checks them against this version's schema."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Final

from nightmail.errors import NightmailError, SchemaDrift, SchemaMissing, SchemaOutdated
from nightmail.stores.shared.table_names import TableNames
from nightmail.stores.sql.statements import load_script
from nightmail.stores.sql.verbs import Ask
from nightmail.stores.sqlite.queries import Queries, Row
from nightmail.stores.sqlite.shape import definitions
from nightmail.stores.sqlite.times import in_microseconds
from nightmail.stores.sqlite.wakeups import LOOK_INTERVAL, NOTICE_HORIZON

VERSION: Final = 1
_MISSING: Final = "is missing"
_TIMES: Final = (in_microseconds(LOOK_INTERVAL), in_microseconds(NOTICE_HORIZON))


class Schema:
    """The tables of one store."""

    def __init__(self, names: TableNames, sql: Queries) -> None:
        self._names = names
        self._sql = sql
        self._script = load_script(__package__, "schema.sql", names)

    @property
    def script(self) -> str:
        """The statements that create the tables and record their version."""
        ask = self._version()
        noted = ask.statement.text
        for name, value in ask.values.items():
            noted = noted.replace(f":{name}", str(value))
        return f"{self._script.rstrip()}\n\n{noted};"

    def current(self, connection: sqlite3.Connection) -> bool | None:
        """`True` when there is nothing to migrate, else `None`."""
        return True if self.problem(connection) is None else None

    def migrate(self, connection: sqlite3.Connection) -> bool:
        """Create what is missing. Tables of a later version are left alone."""
        meta = self._meta(connection)
        if meta is None or meta[0] <= VERSION:
            for statement in _statements(self._script):
                connection.execute(statement)
            note = self._version()
            connection.execute(note.statement.text, note.values)
        return True

    def problem(self, connection: sqlite3.Connection) -> NightmailError | None:
        """What is wrong with the tables, if anything is."""
        meta = self._meta(connection)
        if meta is None:
            # `migrate` creates what is missing.
            changed = [each for each in self._differences(connection) if not each.endswith(_MISSING)]
            return SchemaDrift(changed) if changed else SchemaMissing()
        version, *times = meta
        if version < VERSION:
            return SchemaOutdated(version, VERSION)
        if version > VERSION:
            return SchemaDrift(
                [f"the tables are at version {version}, this code knows {VERSION}: update nightmail"]
            )
        differences = list(self._differences(connection))
        if tuple(times) != _TIMES:
            differences.append("look interval and notice horizon are not those of this version")
        return SchemaDrift(differences) if differences else None

    def is_adoptable(self, connection: sqlite3.Connection) -> bool:
        """Whether these tables lack only what Alembic cannot create: the triggers, and the row with the version."""
        if not self._has_meta(connection) or self._meta(connection) is not None:
            return False
        made = {name: text for name, text in self._expected().items() if not name.startswith("trigger ")}
        return definitions(connection, made) == made

    def _differences(self, connection: sqlite3.Connection) -> Iterator[str]:
        """What the database lacks or has changed. Additions by others are ignored."""
        made = self._expected()
        found = definitions(connection, made)
        for name, expected in made.items():
            if name not in found:
                yield f"{name} {_MISSING}"
            elif found[name] != expected:
                yield f"{name} was changed"

    def _expected(self) -> dict[str, str]:
        with closing(sqlite3.connect(":memory:", isolation_level=None)) as empty:
            for statement in _statements(self._script):
                empty.execute(statement)
            return definitions(empty)

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


def _statements(script: str) -> Iterator[str]:
    """The statements of a script. `executescript` would first commit an open transaction."""
    statement = ""
    for line in script.splitlines(keepends=True):
        if line.startswith("--"):
            continue
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement.strip()
            statement = ""
