"""Statements live in `.sql` files, named, described, and pasteable into the database's own client.

A file uses the default table names (`nightmail_messages`) and named parameters (`:queue`). Loading it substitutes the
configured names and, for drivers with numbered parameters, the numbers. Callers' drivers that need `%(queue)s` get it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Final

from nightmail.stores.shared.table_names import DEFAULT_PREFIX, TableNames

_NAMED: Final = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)
_OURS: Final = re.compile(rf"\b{DEFAULT_PREFIX}_(\w+)\b")
# `:name` but neither `::type` nor a colon inside a word.
_NUMBER: Final = re.compile(r"\$(\d+)")
_PARAMETER: Final = re.compile(r"(?<![:\w]):([a-z_]+)\b")


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement: its text, and its parameters in the order of their numbers."""

    name: str
    text: str
    parameters: tuple[str, ...]

    @property
    def formatted(self) -> str:
        """The text of a numbered statement for drivers that take `%(queue)s` and values by name."""
        return _formatted(self.text, self.parameters)

    def arguments(self, values: Mapping[str, Any]) -> tuple[Any, ...]:
        """The values in the order of the numbers."""
        return tuple([values[name] for name in self.parameters])


def load(
    package: str, file: str, names: TableNames, *, numbered: bool, parts: Mapping[str, str] | None = None
) -> dict[str, Statement]:
    """The statements of a file by name, with our table names, and `$1` for the first parameter if `numbered`.

    `parts` are pieces of SQL that replace the parameters of those names.
    """
    return dict(_loaded(package, file, names, numbered, tuple((parts or {}).items())))


@cache
def load_script(package: str, file: str, names: TableNames) -> str:
    """A whole file, such as a schema, with our table names."""
    return with_names(resources.files(package).joinpath(file).read_text("utf-8"), names)


@cache
def _loaded(
    package: str, file: str, names: TableNames, numbered: bool, parts: tuple[tuple[str, str], ...]
) -> Mapping[str, Statement]:
    text = resources.files(package).joinpath(file).read_text("utf-8")
    if parts:
        pieces = dict(parts)
        text = _PARAMETER.sub(lambda match: pieces.get(match[1], match[0]), text)
    return {name: _prepared(name, body, names, numbered=numbered) for name, body in _sections(text)}


def _sections(text: str) -> Iterator[tuple[str, str]]:
    parts = _NAMED.split(text)
    yield from zip(parts[1::2], parts[2::2], strict=True)


def _prepared(name: str, body: str, names: TableNames, *, numbered: bool) -> Statement:
    # Without indentation: drivers cache prepared statements only up to a certain length (asyncpg: 15 KB).
    lines = [line.strip() for line in body.splitlines() if not line.lstrip().startswith("--")]
    text = with_names("\n".join(lines).strip().removesuffix(";"), names)
    order = tuple(dict.fromkeys(_PARAMETER.findall(text)))
    if numbered:
        text = _PARAMETER.sub(lambda match: f"${order.index(match[1]) + 1}", text)
    return Statement(name, text, order)


@cache
def _formatted(text: str, parameters: tuple[str, ...]) -> str:
    # For such a driver every other % must be doubled.
    return _NUMBER.sub(lambda match: f"%({parameters[int(match[1]) - 1]})s", text.replace("%", "%%"))


def with_names(text: str, names: TableNames) -> str:
    """This SQL with our table names in place of the default ones."""
    return _OURS.sub(lambda match: names.quoted(match[1]), text)
