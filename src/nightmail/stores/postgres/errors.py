"""What the driver's errors mean to us. Nowhere else is a driver's error made into one of ours."""

from __future__ import annotations

import asyncpg

from nightmail.errors import NightmailError, SchemaMissing, StoreUnavailable

# By class of SQLSTATE. The server has answered, its transaction is rolled back, the connection can be used:
# bad data, broken constraint, serialization or deadlock, unknown table, too much, not now.
_ANSWERED = ("22", "23", "40", "42", "54", "55")
_CANCELED = "57014"
# The server has answered that it cannot: nothing was written, and it may well be able to later.
# 25: a read-only server, as after a failover. 53: out of memory, disk or connections.
_CANNOT = ("25", "40", "53")
# The connection is gone, or the server is going down or broken, and may have committed before it said so.
_LOST = ("08", "57", "58", "XX")
_UNDEFINED = frozenset({"42P01", "3F000"})


class Locked(StoreUnavailable):
    """A message or its timer id is locked by somebody's open transaction, for longer than we wait. Try again."""


LOOK_AGAIN = (asyncpg.UniqueViolationError, asyncpg.DeadlockDetectedError, asyncpg.LockNotAvailableError)
"""Two claims wanted the same ordering key: whoever comes second looks again."""


def leaves_connection_usable(error: BaseException) -> bool:
    """Whether the connection on which this happened is in no doubt."""
    if isinstance(error, asyncpg.PostgresError):
        state = error.sqlstate or ""
        return state.startswith(_ANSWERED) or state == _CANCELED
    return isinstance(error, NightmailError) or _refused_argument(error)


def is_refusal(error: BaseException) -> bool:
    """Whether the server refused what it was given, for good: a value or a constraint."""
    return isinstance(error, asyncpg.PostgresError) and (error.sqlstate or "").startswith(("22", "23"))


def is_undefined(error: BaseException) -> bool:
    """Whether our tables are not there, by whichever driver this was raised."""
    return (getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)) in _UNDEFINED


def translated(error: Exception, lost: type[StoreUnavailable]) -> Exception:
    """What to raise instead; `lost` when it cannot be known whether the statement was carried out."""
    if isinstance(error, NightmailError) or _refused_argument(error):
        return error
    if is_undefined(error):
        return SchemaMissing()
    if isinstance(error, asyncpg.PostgresError):
        state = error.sqlstate or ""
        if isinstance(error, asyncpg.LockNotAvailableError):
            return Locked()
        if state.startswith(_CANNOT) or state == _CANCELED:
            return StoreUnavailable(f"Postgres refused for now: {type(error).__name__} ({state})")
        return lost(_lost(error)) if state.startswith(_LOST) else error
    if isinstance(error, OSError | TimeoutError | asyncpg.InterfaceError | EOFError):
        return lost(_lost(error))
    return error


def unreachable(error: Exception) -> StoreUnavailable:
    """For a connection that could not be made."""
    # Only the kind of error: the driver's text about a URL may quote the password in it.
    return StoreUnavailable(f"cannot connect to Postgres: {type(error).__name__}")


def _refused_argument(error: BaseException) -> bool:
    """Whether the driver itself refused an argument: nothing was sent."""
    return isinstance(error, asyncpg.InterfaceError) and isinstance(error, ValueError)


def _lost(error: Exception) -> str:
    return f"the connection to Postgres was lost: {type(error).__name__}"
