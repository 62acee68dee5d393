"""Translates the driver's errors into ours. Nothing else does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import asyncpg

from nightmail.errors import (
    NightmailError,
    NotAllowed,
    Refused,
    SchemaMissing,
    StoreError,
    StoreUnavailable,
)
from nightmail.stores.shared.driver_errors import Broken, below
from nightmail.stores.sql.lane import Locked

# By SQLSTATE class, or by the whole SQLSTATE.
# The server cannot do it now, and nothing was written. 25: a read-only server, as after a failover; 26: a prepared
# statement is gone, as behind a pooler; 40: a conflict or a deadlock; 53: no memory, disk or connection left; 55: not
# in this state; 57014: it took too long; 57P03: the server is starting.
_NOT_NOW: Final = ("25", "26", "40", "53", "55", "57014", "57P03")
# The connection is gone, or the server is going down or broken, and may have committed before it said so.
_LOST: Final = ("08", "57", "58", "F0", "XX")
# The statement or our privileges are at fault, not a row. 0A: not supported; 28, 3D: login; 42: unknown or forbidden.
_STATEMENT: Final = ("0A", "28", "3D", "3F", "42")
# After these the connection is usable: the server has answered, and its transaction is rolled back.
_FORBIDDEN: Final = "42501"
_CANCELED: Final = "57014"
_UNDEFINED: Final = frozenset({"42P01", "3F000"})
_DETAIL: Final = "\nDETAIL:"


LOOK_AGAIN = (asyncpg.UniqueViolationError, asyncpg.DeadlockDetectedError, asyncpg.LockNotAvailableError)
"""Two claims wanted the same ordering key: the second one looks again."""
OF_THE_DRIVER = (
    asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, EOFError
)  # fmt: skip
"""What the driver raises on purpose. It can fail in other ways when a connection ends at a bad moment."""
TOOK_TOO_LONG = asyncpg.QueryCanceledError
"""The server canceled the statement, and has answered."""


def leaves_connection_usable(error: BaseException) -> bool:
    """Whether the connection on which this happened can still be used."""
    if isinstance(error, asyncpg.PostgresError):
        state = error.sqlstate or ""
        if is_undefined(error) or state.startswith(("25", "26", "53", "0A")):
            return False
        return _is_answer(error) and (state == _CANCELED or not state.startswith(_LOST))
    return isinstance(error, NightmailError | asyncpg.DataError)


def is_refusal(error: BaseException) -> bool:
    """Whether the server refused a row permanently: a value, a constraint, a trigger."""
    if isinstance(error, asyncpg.PostgresError):
        state = error.sqlstate or ""
        return _is_answer(error) and not state.startswith((*_NOT_NOW, *_LOST, *_STATEMENT))
    return isinstance(error, Refused)


def is_undefined(error: BaseException) -> bool:
    """Whether our tables are missing, whichever driver raised this."""
    return (getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)) in _UNDEFINED


def translated(error: Exception, lost: type[StoreUnavailable]) -> Exception:
    """What to raise instead; `lost` when it is unknown whether the statement was executed."""
    without_data(error)
    if isinstance(error, NightmailError):
        return error
    if isinstance(error, asyncpg.DataError):
        # Refused by the driver itself: nothing was sent. Its text quotes the value.
        return Refused("Postgres cannot store this message: a value in it is of the wrong kind or too large")
    if is_undefined(error):
        return SchemaMissing()
    if isinstance(error, asyncpg.LockNotAvailableError):
        return Locked()
    if isinstance(error, asyncpg.PostgresError):
        return _meaning(error, lost)
    if isinstance(error, (*OF_THE_DRIVER, Broken)):
        return lost(f"the connection to Postgres was lost: {type(below(error)).__name__}")
    return error


def shown_cause(error: Exception) -> Exception | None:
    """The `__cause__` for our error: a traceback shows it, so nothing that quotes a value."""
    return None if type(error) is asyncpg.DataError else below(error)


def _meaning(error: asyncpg.PostgresError, lost: type[StoreUnavailable]) -> NightmailError:
    state = error.sqlstate or ""
    said = f"{type(error).__name__} ({state})"
    if is_refusal(error):
        return Refused(f"Postgres refused the message: {_sentence(error)}")
    if state.startswith(_NOT_NOW) or isinstance(error, asyncpg.InvalidCachedStatementError):
        return StoreUnavailable(f"Postgres refused for now: {said}")
    if state.startswith(_LOST) or not _is_answer(error):
        return lost(f"the connection to Postgres was lost: {said}")
    if state == _FORBIDDEN:
        return NotAllowed(f"this Postgres account may not do that: {_sentence(error)}")
    return StoreError(f"Postgres refused the statement: {_sentence(error)}")


def unreachable(error: Exception, where: str) -> StoreUnavailable:
    """The error for a connection that could not be opened."""
    if isinstance(error, StoreUnavailable):
        return error
    return StoreUnavailable(f"cannot connect to Postgres at {where}: {_why(error)}")


def without_data(error: BaseException) -> None:
    """Remove from these errors what may quote a message: a row in a DETAIL, the parameters."""
    for link in chain(error):
        if isinstance(link, asyncpg.PostgresError):
            link.detail = None
        elif type(link).__module__.startswith(("sqlalchemy.", "psycopg")):
            if hasattr(link, "hide_parameters"):
                link.hide_parameters = True
            if link.args and isinstance(link.args[0], str):
                link.args = (_before_the_detail(link.args[0]), *link.args[1:])


def chain(error: BaseException | None) -> Sequence[BaseException]:
    """An error and what it was raised from: SQLAlchemy's has the driver's as the cause of its cause."""
    links: list[BaseException] = []
    waiting = [error]
    while waiting:
        link = waiting.pop()
        if link is not None and link not in links:
            links.append(link)
            waiting += [link.__cause__, getattr(link, "orig", None), link.__context__]
    return links


def _is_answer(error: asyncpg.PostgresError) -> bool:
    """Whether the session survives this error."""
    severity = getattr(error, "severity_en", None) or getattr(error, "severity", None)
    return severity in (None, "ERROR")


def _sentence(error: asyncpg.PostgresError) -> str:
    """The server's message where it cannot quote a value, otherwise the kind of error."""
    state = error.sqlstate or ""
    # 22 is about values, and its messages often quote them.
    words = type(error).__name__ if state.startswith("22") else str(error.args[0])
    return f"{words} ({state})"


def _why(error: Exception) -> str:
    """The reason, as the server or the system states it. An engine's error has the driver's as its cause."""
    for link in chain(error):
        if isinstance(link, asyncpg.PostgresError):
            return str(link.args[0])
        if isinstance(link, TimeoutError):
            return "no answer in time"
        if isinstance(link, OSError):
            return link.strerror or str(link) or type(link).__name__
    # Only the kind of error: the driver's text about a URL may quote the password in it.
    return type(error).__name__


def _before_the_detail(text: str) -> str:
    """The text up to the server's DETAIL. Where that ends cannot be seen: a name in the row may have several lines."""
    return text.partition(_DETAIL)[0]
