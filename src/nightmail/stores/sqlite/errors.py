"""Translates SQLite's errors into ours. No error message contains a value to be stored."""

from __future__ import annotations

import sqlite3
from typing import Final

from nightmail.errors import (
    Forbidden,
    NightmailError,
    Refused,
    SchemaMissing,
    StaleTransaction,
    StoreUnavailable,
)

# The lower byte of a code is the primary code, the rest the extended part.
_KIND: Final = 0xFF
_BUSY: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
# The row is at fault, not the database: a retry would be refused again.
_REFUSED: Final = frozenset({sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_TOOBIG})
# The lock is taken, a table is missing: the connection is still good.
_HARMLESS: Final = _BUSY | _REFUSED | {sqlite3.SQLITE_ERROR}


class CommitInDoubt(StoreUnavailable):
    """The commit failed: what it was to write may or may not be stored."""


def is_busy(error: BaseException) -> bool:
    """Whether another connection holds the lock."""
    return _kind(error) in _BUSY


def in_doubt(error: BaseException) -> bool:
    """Whether the connection may be at fault, so that it must not be used again."""
    kind = _kind(error)
    return kind is not None and kind not in _HARMLESS


def translated(error: Exception, file: str = "the database") -> Exception:
    """The store's error for this one, with SQLite's as its cause. Other errors are returned unchanged."""
    if not isinstance(error, sqlite3.Error):
        return error
    meant = _meaning(error, file)
    meant.__cause__ = error
    return meant


def locked_for_too_long(file: str = "the database") -> StoreUnavailable:
    """The error for a caller that waited too long for the lock."""
    return StoreUnavailable(f"another connection kept {file} locked for too long. Try again.")


def _meaning(error: sqlite3.Error, file: str) -> NightmailError:
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY_SNAPSHOT:
        return StaleTransaction()
    if is_busy(error):
        return locked_for_too_long(file)
    if str(error).startswith("no such table"):
        return SchemaMissing()
    if is_refusal(error):
        return Refused(f"SQLite refused the row ({name}): {error}")
    if _kind(error) == sqlite3.SQLITE_READONLY and name != "SQLITE_READONLY_DBMOVED":
        return Forbidden(f"this account may not write to {file}, or to its directory ({name}): {error}")
    return StoreUnavailable(f"SQLite failed on {file} ({name}): {error}")


def commit_failed(error: sqlite3.Error, file: str = "the database") -> Exception:
    """The error for a failed commit: after an I/O error it is unknown how much was written."""
    failed = translated(error, file)
    if _kind(error) != sqlite3.SQLITE_IOERR:
        return failed
    doubtful = CommitInDoubt(str(failed))
    doubtful.__cause__ = error
    return doubtful


def is_refusal(error: BaseException) -> bool:
    """Whether the row is at fault, not the database."""
    return isinstance(error, sqlite3.DataError) or _kind(error) in _REFUSED


def _kind(error: BaseException) -> int | None:
    """The primary code of an error that SQLite itself raised."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & _KIND
