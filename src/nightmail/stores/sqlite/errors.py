"""From SQLite's errors to ours. No message carries a value that was to be stored."""

from __future__ import annotations

import sqlite3

from nightmail.errors import NightmailError, SchemaMissing, StaleTransaction, StoreUnavailable

# The lower byte is the kind of error, the rest the case.
_KIND = 0xFF
_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
# The row is at fault, not the database: asking again would be refused again.
_REFUSED = frozenset({sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_TOOBIG})
# A lock that was not to be had, a table that is not there: the connection is none the worse.
_HARMLESS = _BUSY | {sqlite3.SQLITE_ERROR, None}


class Refused(NightmailError):
    """SQLite refused the row: a constraint, a trigger or its size stands against it."""


class CommitInDoubt(StoreUnavailable):
    """The commit failed: what it was to write may or may not be stored."""


def is_busy(error: sqlite3.Error) -> bool:
    """Whether somebody else holds the lock."""
    return _kind(error) in _BUSY


def is_refusal(error: BaseException) -> bool:
    """Whether a row was refused, by a constraint, a trigger or its size."""
    return isinstance(error, sqlite3.DataError) or (
        isinstance(error, sqlite3.Error) and _kind(error) in _REFUSED
    )


def in_doubt(error: sqlite3.Error) -> bool:
    """Whether the connection may be at fault, so that it must not be used again."""
    return not is_refusal(error) and _kind(error) not in _HARMLESS


def commit_failed(error: sqlite3.Error) -> NightmailError:
    """What a failed commit means: after a failure of the disk nobody knows how much of it was written."""
    failed = translated(error)
    return CommitInDoubt(str(failed)) if _kind(error) == sqlite3.SQLITE_IOERR else failed


def translated(error: sqlite3.Error) -> NightmailError:
    """What this error means to a caller of the store."""
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY_SNAPSHOT:
        return StaleTransaction()
    if is_busy(error):
        return StoreUnavailable("another connection kept the database locked for too long. Try again.")
    if str(error).startswith("no such table"):
        return SchemaMissing()
    if is_refusal(error):
        return Refused(f"SQLite refused the row ({name}): {error}")
    return StoreUnavailable(f"SQLite failed ({name}): {error}")


def _kind(error: sqlite3.Error) -> int | None:
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & _KIND
