"""A store's `schema.sql`, read as values.

The file is the one description of the tables: `migrate` executes it, `check` compares the database with it, `repair`
takes the indexes from it, and `nightmail.tables` makes SQLAlchemy's tables from it. It always describes the newest
version, whatever steps lead to it from an older one.

It is written for this simple reader: no comment behind code, and every constraint has a name, except the check of a
single column and a primary key.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Final

from nightmail.stores.shared.table_names import DEFAULT_PREFIX

_COMMENT: Final = re.compile(r"^\s*--.*$", re.MULTILINE)
_PREFIX: Final = re.compile(rf"\b{DEFAULT_PREFIX}_(?=\w)")
_TABLE: Final = re.compile(r"create table (?:if not exists )?(\w+) \((.+)", re.IGNORECASE)
_INDEX: Final = re.compile(
    r"create (unique )?index (?:if not exists )?(\w+) on (\w+) \((.+?)\)(?: where (.+))?", re.IGNORECASE
)
_KEY: Final = re.compile(r"(unique )?key (\w+) \((.+)\)", re.IGNORECASE)
_CHECK: Final = re.compile(r"constraint (\w+) check \((.+)\)", re.IGNORECASE)
_PRIMARY_KEY: Final = re.compile(r"primary key \((.+)\)", re.IGNORECASE)
_KEYWORDS: Final = (
    "(not null|default|collate|character set|generated always as|auto_increment|primary key|check)"
)
_CLAUSE: Final = re.compile(rf" (?={_KEYWORDS}\b)", re.IGNORECASE)
_SAID: Final = re.compile(rf"{_KEYWORDS} ?(.*)", re.IGNORECASE)
_COMMA: Final = re.compile(r" ?, ?")
_CLOSING: Final = re.compile(r"\)")


@dataclass(frozen=True, slots=True)
class Column:
    """A column."""

    name: str
    type: str
    required: bool = False
    collation: str | None = None
    default: str | None = None
    computed: str | None = None
    """From what the database computes it."""
    numbered: str | None = None
    """Filled with the next number by the database: what it calls that."""
    check: str | None = None

    @property
    def definition(self) -> str:
        """What of it is compared. The expressions are not: each server prints them differently."""
        parts = (
            self.type,
            f"collate {self.collation}" if self.collation else "",
            "not null" if self.required else "",
            self.numbered,
            "stored generated" if self.computed else "",
            "default" if self.default else "",
        )
        return " ".join(part for part in parts if part)


@dataclass(frozen=True, slots=True)
class Index:
    """An index."""

    name: str
    columns: tuple[str, ...]
    unique: bool
    where: str | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """A table. Names come without our prefix."""

    name: str
    columns: tuple[Column, ...]
    primary_key: tuple[str, ...]
    indexes: tuple[Index, ...]
    checks: Mapping[str, str]
    """Conditions by the name of their constraint. A column's own is on the column."""
    options: str
    """How it is stored, in the words of the database."""


@cache
def read_schema(store: str) -> tuple[Table, ...]:
    """The tables of the store in this directory. Only the file is read: no driver is imported."""
    text = resources.files("nightmail.stores").joinpath(store, "schema.sql").read_text("utf-8")
    text = _PREFIX.sub("", _COMMENT.sub("", text))
    statements = [" ".join(statement.split()) for statement in text.split(";")]
    indexes: dict[str, list[Index]] = {}
    for found in filter(None, map(_INDEX.fullmatch, statements)):
        unique, name, table, columns, where = found.groups()
        indexes.setdefault(table, []).append(_index(name, columns, unique, where))
    tables = filter(None, map(_TABLE.fullmatch, statements))
    return tuple(
        _table(name, text, indexes.get(name, [])) for name, text in (found.groups() for found in tables)
    )


def split(text: str, at: re.Pattern[str]) -> Iterator[str]:
    """The parts of a text between the matches outside parentheses."""
    start = 0
    for found in at.finditer(text):
        part = text[start : found.start()]
        if part.count("(") == part.count(")"):
            yield part
            start = found.end()
    yield text[start:]


def _table(name: str, text: str, indexes: list[Index]) -> Table:
    """`text` follows the opening parenthesis."""
    body = next(split(text, _CLOSING))
    columns: list[Column] = []
    keys: list[Index] = []
    checks: dict[str, str] = {}
    primary_key: tuple[str, ...] = ()
    for part in split(body.strip(), _COMMA):
        if found := _PRIMARY_KEY.fullmatch(part):
            primary_key = tuple(_COMMA.split(found[1]))
        elif found := _KEY.fullmatch(part):
            keys.append(_index(found[2], found[3], found[1]))
        elif found := _CHECK.fullmatch(part):
            checks[found[1]] = found[2].strip()
        else:
            columns.append(_column(part))
    # SQLite fills a column only if it is declared as the primary key in place.
    primary_key = primary_key or tuple(column.name for column in columns if column.numbered)
    options = text[len(body) + 1 :].strip()
    return Table(name, tuple(columns), primary_key, (*keys, *indexes), checks, options)


def _index(name: str, columns: str, unique: str | None, where: str | None = None) -> Index:
    return Index(name, tuple(split(columns, _COMMA)), unique is not None, where)


def _column(text: str) -> Column:
    name, _, rest = text.partition(" ")
    type_, *clauses = split(rest, _CLAUSE)
    said = {found[1].lower(): found[2] for found in filter(None, map(_SAID.fullmatch, clauses))}
    computed = said.get("generated always as")
    numbered = "auto_increment" if "auto_increment" in said else said.get("primary key")
    if computed == "identity":
        computed, numbered = None, computed
    return Column(
        name,
        type_,
        required="not null" in said,
        collation=said.get("collate"),
        default=said.get("default"),
        computed=_inside(computed.removesuffix(" stored")) if computed else None,
        numbered=numbered,
        check=_inside(said["check"]) if "check" in said else None,
    )


def _inside(text: str) -> str:
    return text.removeprefix("(").removesuffix(")").strip()
