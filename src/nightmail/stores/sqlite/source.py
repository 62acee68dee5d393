"""Finds the database file from a URL, a path, or an SQLAlchemy engine."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

_SCHEMES = ("sqlite", "sqlite+aiosqlite")
_IN_MEMORY = (
    "a database in SQLite's memory belongs to one connection, and the store has several:"
    ' use "memory://" for messages that may die with the process, or a file'
)


def database_file(source: str | os.PathLike[str] | AsyncEngine) -> str:
    """The absolute path of the database file."""
    if not isinstance(source, str | os.PathLike):
        return _absolute(_of_engine(source))
    text = os.fspath(source)
    scheme, separator, rest = text.partition("://")
    return _absolute(_of_url(scheme.lower(), rest) if separator else text)


def _of_url(scheme: str, rest: str) -> str:
    if scheme not in _SCHEMES:
        raise ValueError(f"an SQLite URL starts with sqlite:// or sqlite+aiosqlite://, not {scheme}://")
    path, question, _ = rest.partition("?")
    if question:
        raise ValueError("an SQLite URL of a store takes no options: the store sets what it needs itself")
    if path and not path.startswith("/"):
        raise ValueError(
            "an SQLite URL has three slashes before a relative path and four before an absolute one:"
            " sqlite:///nightmail.db, sqlite:////var/lib/nightmail.db"
        )
    return path[1:]


def _of_engine(engine: object) -> str:
    asyncio_side: Any = sys.modules.get("sqlalchemy.ext.asyncio")
    if asyncio_side is None or not isinstance(engine, asyncio_side.AsyncEngine):
        raise TypeError(f"an SQLite store is a URL, a path or an AsyncEngine, not a {type(engine).__name__}")
    if engine.dialect.name != "sqlite":
        raise ValueError(f"an engine for {engine.dialect.name} has no SQLite file")
    name = engine.url.database or ""
    if not name.startswith("file:"):
        return name
    if engine.url.query.get("mode") == "memory":
        raise ValueError(_IN_MEMORY)
    # SQLAlchemy passes such a name on as a URI, which may contain escapes.
    return unquote(urlsplit(name).path)


def _absolute(path: str) -> str:
    if path in ("", ":memory:"):
        raise ValueError(_IN_MEMORY)
    # Now and not at `open`: a process may change its directory in between.
    return os.path.abspath(path)
