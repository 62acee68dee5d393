"""The schema of our tables.

Given by the user, or found once through the search path of a new connection. From then on every table is qualified
with its schema: neither another search path nor a function that others put into a schema on it changes what we run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from nightmail.stores.shared.table_names import TABLES, TableNames
from nightmail.stores.sql.statements import Statement

SEARCH_PATH: Final = "pg_catalog, pg_temp"
"""For our own connections, once the schema is known: only the server's own functions and operators."""


class Place:
    """The schema of the tables, and statements qualified with it. Shared by all connections of a store."""

    def __init__(self, names: TableNames, statements: Mapping[str, Statement]) -> None:
        self._names = names
        self.find = statements["place"]
        self._schema: str | None = None
        self._texts: dict[str, str] = {}
        self._statements: dict[Statement, Statement] = {}
        own = "|".join(sorted(TABLES))
        self._table = re.compile(rf'(?<!\.)"{names.prefix}_(?:{own})"')

    @property
    def known(self) -> bool:
        """Whether the schema is known."""
        return self._names.schema is not None or self._schema is not None

    def found(self, schema: str | None) -> None:
        """Record the schema of the tables; `None`: they are in none that a new connection searches."""
        if schema != self._schema:
            self._schema = schema
            self._texts.clear()
            self._statements.clear()

    def quoted(self, table: str) -> str:
        """Our table of this name, with its schema if known."""
        return self.qualified(self._names.quoted(table))

    @property
    def schema(self) -> str | None:
        """The schema, quoted, if known."""
        schema = self._names.schema or self._schema
        return None if schema is None else _quoted(schema)

    def qualified_index(self, index: str) -> str:
        """An index of ours, already quoted, with the schema of its table if known."""
        return index if self.schema is None else f"{self.schema}.{index}"

    def qualified(self, text: str) -> str:
        """This text with the schema before each of our tables. Cached by text."""
        if self._schema is None or self._names.schema is not None:
            return text
        known = self._texts.get(text)
        if known is None:
            schema = _quoted(self._schema)
            known = self._texts[text] = self._table.sub(lambda match: f"{schema}.{match[0]}", text)
        return known

    def statement(self, statement: Statement) -> Statement:
        """Like `qualified`, for a whole statement."""
        known = self._statements.get(statement)
        if known is None:
            known = self._statements[statement] = replace(statement, text=self.qualified(statement.text))
        return known


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
