"""Opens our own connections to the database file."""

from __future__ import annotations

import os
import sqlite3
import time
from functools import partial
from pathlib import Path
from typing import Final

from nightmail.errors import SchemaMissing, StoreUnavailable
from nightmail.stores.sqlite.errors import is_busy
from nightmail.stores.sqlite.ownership import warn_about_others

PATIENCE_SECONDS: Final = 10.0
"""How long to wait for another transaction to end: longer than a busy disk makes it last."""
_OLDEST: Final = (3, 35, 0)
_WRITE_AHEAD_LOG_LIMIT: Final = 64 * 1024 * 1024


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
    """Whether the database file exists. Raises if it cannot, and warns if other users can write to it."""
    if sqlite3.sqlite_version_info < _OLDEST:
        raise StoreUnavailable(f"SQLite {sqlite3.sqlite_version} is too old: the store needs 3.35 or later")
    if os.path.exists(path):
        warn_about_others(path)
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
