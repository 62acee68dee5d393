"""Finds the database file from a URL, a path or an SQLAlchemy engine, and opens our own connections to it."""

from __future__ import annotations

import os
import sqlite3
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from nightmail.errors import SchemaMissing, StoreUnavailable
from nightmail.stores.sqlite.errors import is_busy
from nightmail.stores.sqlite.ownership import warn_about_others

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

PATIENCE_SECONDS: Final = 10.0
"""How long to wait for another transaction to end: longer than a busy disk makes it last."""
_OLDEST: Final = (3, 35, 0)
_WRITE_AHEAD_LOG_LIMIT: Final = 64 * 1024 * 1024
_SCHEMES: Final = ("sqlite", "sqlite+aiosqlite")
_IN_MEMORY: Final = (
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


def create_file(path: str) -> None:
    """Create the database file, for its owner only. SQLite gives its -wal and -shm files the same permissions.

    Never opens an existing file: closing it would drop every lock that this process has on it, those of SQLite's
    connections included.
    """
    try:
        # The target of a link: SQLite would create that file, readable by every user.
        target = os.path.realpath(path)
        created = os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o600)
    except FileExistsError:
        return
    except OSError as error:
        raise StoreUnavailable(
            f"the database file {path} cannot be created: {error.strerror or error}"
        ) from error
    os.close(created)


def look_at_file(path: str) -> bool:
    """Whether the database file exists. Raises if it cannot, and warns if other users can write to it or replace it."""
    if sqlite3.sqlite_version_info < _OLDEST:
        raise StoreUnavailable(f"SQLite {sqlite3.sqlite_version} is too old: the store needs 3.35 or later")
    warn_about_others(path)
    if os.path.exists(path):
        return True
    if not os.path.isdir(os.path.dirname(os.path.realpath(path))):
        raise StoreUnavailable(f"the database file {path} cannot be created: there is no such directory")
    return False


def connect(
    path: str, *, busy_seconds: float = PATIENCE_SECONDS, checkpoints: bool = True
) -> sqlite3.Connection:
    """Open a connection; it waits for locks for `busy_seconds`.

    We execute BEGIN ourselves: Python would begin only before some statements, and without taking the write lock.
    One connection per process checkpoints the write-ahead log: SQLite before 3.51.3 can corrupt the file when several
    do so at once. For the same reason the file is never memory-mapped.
    """
    if not os.path.exists(path):
        raise SchemaMissing(
            f"there is no database file {path}. Run `nightmail migrate`, or pass `create_tables=True`."
        )
    try:
        return _connect(path, busy_seconds, checkpoints=checkpoints)
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", type(error).__name__)
        raise StoreUnavailable(f"the database file {path} cannot be opened ({name}): {error}") from error


def _connect(path: str, busy_seconds: float, *, checkpoints: bool) -> sqlite3.Connection:
    connection = sqlite3.connect(
        # A file that is removed just now must not be created empty.
        f"{Path(path).as_uri()}?mode=rw",
        uri=True,
        timeout=busy_seconds,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=256,
    )
    # Invalid text, written by other software, must not fail the claim of other rows, nor appear in an error.
    connection.text_factory = partial(str, encoding="utf-8", errors="replace")
    try:
        _switch_to_write_ahead_log(connection)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA mmap_size = 0")
        connection.execute(f"PRAGMA journal_size_limit = {_WRITE_AHEAD_LOG_LIMIT}")
        if not checkpoints:
            connection.execute("PRAGMA wal_autocheckpoint = 0")
    except BaseException:
        connection.close()
        raise
    return connection


def _switch_to_write_ahead_log(connection: sqlite3.Connection) -> None:
    """Readers and the writer must not block one another.

    Switching needs exclusive access, and SQLite does not wait for it: processes that start together collide here.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            ((mode,),) = connection.execute("PRAGMA journal_mode = WAL").fetchall()
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            break
    if mode != "wal":
        raise StoreUnavailable(
            "SQLite cannot keep a write-ahead log here: the file must lie on a disk of this machine, not in the network"
        )


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
