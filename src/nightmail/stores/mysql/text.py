"""Statements with their values inlined, as the server gets them.

Both drivers inline values on the client, by rules that depend on the session's settings. We do it ourselves, in a way
that is safe in every session, a caller's included: bytes and text as hexadecimal, numbers as digits, times as literals.
No value can break out of its literal.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Final, TypeAlias
from uuid import UUID

from nightmail.stores.shared.table_names import TABLES, TableNames
from nightmail.stores.sql.statements import load

_PARAMETER: Final = re.compile(r"(?<![:\w]):([a-z_]+)\b")
_HEXADECIMAL: Final = re.compile(r"(?P<text>_utf8mb4 )?\bx'(?P<digits>[0-9a-f]*)'")


class Sql(str):
    """A trusted piece of a statement: inserted as it is."""

    __slots__ = ()


_OF_LETTERS: Final = {"messages": "dead", "leased": "dead_leased"}
ALWAYS: Final = Sql("true")
"""A condition that always holds."""
NEVER: Final = Sql("false")
"""A condition that never holds."""

Value: TypeAlias = bool | int | str | bytes | datetime | UUID | Sql | Iterable["Value"] | None


class BacktickNames(TableNames):
    """Names quoted with backticks, which every session understands: in most, double quotes mean text."""

    __slots__ = ()

    def quoted(self, name: str) -> str:
        """See `TableNames.quoted`."""
        own = f"`{self.prefix}_{name}`"
        return f"`{self.schema}`.{own}" if self.schema and name in TABLES else own


class LetterNames(BacktickNames):
    """For statements on the message table that serve the dead letters too: the names of theirs instead."""

    __slots__ = ()

    def quoted(self, name: str) -> str:
        """See `TableNames.quoted`."""
        return super().quoted(_OF_LETTERS.get(name, name))


def literal(value: Value) -> str:
    """A value as an SQL literal. Lists are in parentheses; an empty one holds NULL, which equals nothing."""
    match value:
        case Sql():
            return value
        case None:
            return "null"
        case bool() | int():
            return str(int(value))
        case str():
            return f"_utf8mb4 x'{value.encode().hex()}'"
        case bytes():
            return f"x'{value.hex()}'"
        case datetime():
            moment = value.astimezone(UTC).replace(tzinfo=None)
            return f"timestamp'{moment.isoformat(' ', 'microseconds')}'"
        case UUID():
            return f"x'{value.hex}'"
        case _:
            return f"({', '.join(map(literal, value)) or 'null'})"


def listed(ids: Iterable[int]) -> Sql:
    """The literal of a list of ids. There may be many, so none is asked what it is; what is not a number is refused."""
    return Sql(f"({', '.join(map(int.__repr__, ids)) or 'null'})")


def several(ids: Iterable[int]) -> Sql:
    """Ids to be locked on a condition, with one more that no message has.

    A single id would be read before the condition is evaluated, and InnoDB would then keep the row locked until the end
    of the transaction even if the condition does not hold.
    """
    return listed((0, *ids))


class Queries:
    """Statements by name."""

    def __init__(self, package: str, files: tuple[str, ...], names: TableNames) -> None:
        self._statements = _templates(package, files, names)

    def __call__(self, name: str, **values: Value) -> Sql:
        """The statement of this name, with these values in it."""
        template, parameters = self._statements[name]
        return Sql(template % {each: literal(values[each]) for each in parameters})


@cache
def _templates(
    package: str, files: tuple[str, ...], names: TableNames
) -> Mapping[str, tuple[str, tuple[str, ...]]]:
    """Each statement with places for its values, and their names."""
    loaded = [load(package, file, names, numbered=False) for file in files]
    return {
        name: (_PARAMETER.sub(r"%(\1)s", statement.text.replace("%", "%%")), statement.parameters)
        for statements in loaded
        for name, statement in statements.items()
    }


def lifted(statement: str) -> tuple[str, tuple[str, ...]]:
    """The statement with placeholders for its bytes and texts, and these values, for a driver that inlines them.

    For SQLAlchemy sessions: SQLAlchemy quotes statements in its errors and its log. The driver gets only hexadecimal
    digits, which no quoting rule changes.
    """
    values: list[str] = []

    def lift(match: re.Match[str]) -> str:
        values.append(match["digits"])
        return "convert(unhex(%s) using utf8mb4)" if match["text"] else "unhex(%s)"

    # For such a driver every other % is doubled.
    return _HEXADECIMAL.sub(lift, statement.replace("%", "%%")), tuple(values)


def union(branches: Iterable[str]) -> Sql:
    """All rows of these selects."""
    return Sql(" union all ".join(branches))
