"""Statements with their values in them, as the server gets them.

Both drivers put values into the text on this side of the wire, by rules that depend on the session's settings. We do it
ourselves, in a way that holds in every session, a caller's included: bytes and text as hexadecimal, numbers as digits,
moments as literals. Nothing of a value can end up outside of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Final, TypeAlias
from uuid import UUID

from nightmail.stores._names import TABLES, TableNames
from nightmail.stores._sql import Statement

_PARAMETER: Final = re.compile(r"(?<![:\w]):([a-z_]+)\b")
_HEXADECIMAL: Final = re.compile(r"(?P<text>_utf8mb4 )?\bx'(?P<digits>[0-9a-f]*)'")


class Sql(str):
    """A piece of a statement, of our own making: put in as it is."""

    __slots__ = ()


ALWAYS: Final = Sql("true")
"""A condition that holds."""

Value: TypeAlias = bool | int | str | bytes | datetime | UUID | Sql | Iterable["Value"] | None


class BacktickNames(TableNames):
    """Names quoted as every session understands them: double quotes are text in most."""

    __slots__ = ()

    def quoted(self, name: str) -> str:
        """See `TableNames.quoted`."""
        own = f"`{self.prefix}_{name}`"
        return f"`{self.schema}`.{own}" if self.schema and name in TABLES else own


def literal(value: Value) -> str:
    """A value as it stands in a statement. Lists are in parentheses; an empty one holds NULL, which equals nothing."""
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


def several(ids: Iterable[int]) -> list[int]:
    """Ids to be locked on a condition, with one more that no message has.

    A single id would be read before the condition is looked at, and InnoDB would then keep the row locked until the end
    of the transaction even if the condition does not hold.
    """
    return [0, *ids]


def filled(statement: Statement, values: Mapping[str, Value]) -> Sql:
    """The statement with these values in it."""
    return Sql(_PARAMETER.sub(lambda match: literal(values[match[1]]), statement.text))


def lifted(statement: str) -> tuple[str, tuple[str, ...]]:
    """The statement without the bytes and texts in it, and these apart, for a driver that puts them in itself.

    For sessions of SQLAlchemy, which quotes statements in its errors and its log. Only hexadecimal digits are handed to
    the driver: whatever rules of quoting it believes in, they come through as they are.
    """
    values: list[str] = []

    def lift(match: re.Match[str]) -> str:
        values.append(match["digits"])
        return "convert(unhex(%s) using utf8mb4)" if match["text"] else "unhex(%s)"

    # To such a driver every other % has to be written twice.
    return _HEXADECIMAL.sub(lift, statement.replace("%", "%%")), tuple(values)


def union(branches: Iterable[str]) -> Sql:
    """All rows of these selects."""
    return Sql(" union all ".join(branches))
