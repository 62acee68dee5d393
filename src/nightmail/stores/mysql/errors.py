"""What the drivers' errors mean to us. Only this module translates a driver's error into one of ours.

Errors are identified by number: asyncmy and aiomysql have classes of their own, which a caller's connection may raise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

from nightmail.errors import NightmailError, NotAllowed, Refused, SchemaMissing, StoreUnavailable
from nightmail.stores.shared.driver_errors import Broken, below
from nightmail.stores.sql.lane import Locked

DEADLOCK: Final = 1213
LOCK_TIMEOUT: Final = 1205
SNAPSHOT_CONFLICT: Final = 1020
NOT_READY: Final = 1047
LOCKED_NOW: Final = 3572
NO_ID_NOW: Final = 1467
"""Another session is storing an unknown number of rows, and until it is done no other gets ids (MariaDB)."""
DUPLICATE: Final = 1062

TRANSIENT: Final = frozenset({DEADLOCK, LOCK_TIMEOUT, SNAPSHOT_CONFLICT, NOT_READY, LOCKED_NOW, NO_ID_NOW})
"""Nothing was written, and a retry may succeed: a deadlock or (Galera) a conflict at commit, a row locked for
too long, a row changed since a snapshot, a node that is not ready."""
_LOCKED: Final = frozenset({LOCK_TIMEOUT, LOCKED_NOW, NO_ID_NOW})
_UNDEFINED: Final = frozenset({1146, 1049, 1051})
_THERE_ALREADY: Final = frozenset({1050, 1060, 1061, 1091})
"""A table, a column or an index exists; one to be dropped does not."""
# A missing column, and a foreign column that needs a value.
_MISFIT: Final = frozenset({1054, 1364})
# Command, table, column, routine or database denied.
_DENIED: Final = frozenset({1142, 1143, 1044, 1227, 1370})
# A value or a constraint: too long, out of range, not text, null, duplicate, check, foreign key, a trigger's own.
_REFUSED: Final = frozenset(
    {1406, 1264, 1265, 1292, 1366, 1048, 1062, 1451, 1452, 1644, 3819, 4025, 1364, 3140}
)
# The server cannot do it: disk full, read-only, too many connections, killed, statement timeout, shutdown.
_CANNOT: Final = frozenset({1021, 1040, 1041, 1114, 1203, 1290, 1792, 1836, 1969, 3024, 1317, 1180})
# The server is going down, or a connection was killed: it may have committed before it said so.
_LOST: Final = frozenset({1053, 1079, 1152, 1184, 1158, 1159, 1160, 1161, 1927})
NODE_NOT_READY: Final = (
    "this node of the cluster is not ready, or is cut off from the others: use another one"
)
_DRIVERS: Final = ("asyncmy", "pymysql", "aiomysql", "MySQLdb")


class TooLarge(NightmailError, ValueError):
    """This is larger than the server takes at once: raise its max_allowed_packet. A body needs twice its size."""


def number_of(error: BaseException) -> int | None:
    """The server's number for this error, or the driver's (2000 and above, or 0) if it is not from the server."""
    if not type(error).__module__.startswith(_DRIVERS) or not error.args:
        return None
    number = error.args[0]
    return number if isinstance(number, int) else None


def numbers_in(error: BaseException | None) -> Iterator[int]:
    """The numbers of an error and of its causes: SQLAlchemy's wraps the driver's."""
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        seen.append(error)
        if (number := number_of(error)) is not None:
            yield number
        error = getattr(error, "orig", None) or error.__cause__


def is_duplicate(error: BaseException) -> bool:
    """Whether this key exists already."""
    return DUPLICATE in numbers_in(error)


def is_undefined(error: BaseException) -> bool:
    """Whether our tables do not exist."""
    return not _UNDEFINED.isdisjoint(numbers_in(error))


def is_there_already(error: BaseException) -> bool:
    """Whether a change of the tables was made before: a table, column or index is there, or gone."""
    return not _THERE_ALREADY.isdisjoint(numbers_in(error))


def does_not_fit(error: BaseException) -> bool:
    """Whether the tables are not those that our statements are for."""
    return not (_UNDEFINED | _MISFIT).isdisjoint(numbers_in(error))


def is_denied(error: BaseException) -> bool:
    """Whether the account may not do this."""
    return not _DENIED.isdisjoint(numbers_in(error))


def is_transient(error: BaseException) -> bool:
    """Whether nothing was written and a retry may help."""
    return number_of(error) in TRANSIENT


def is_locked(error: BaseException) -> bool:
    """Whether a row was locked for too long."""
    return number_of(error) in _LOCKED


def is_worth_another_look(error: BaseException) -> bool:
    """Whether two claims wanted the same rows: the second looks again."""
    return number_of(error) in (DUPLICATE, DEADLOCK, LOCK_TIMEOUT, SNAPSHOT_CONFLICT)


def is_refusal(error: BaseException) -> bool:
    """Whether the input is refused for good: a value, a constraint, its size."""
    return not _REFUSED.isdisjoint(numbers_in(error)) or isinstance(error, TooLarge)


def leaves_connection_usable(error: BaseException) -> bool:
    """Whether the connection is still usable after this error."""
    if isinstance(error, NightmailError):
        return True
    number = number_of(error)
    # Leave a node that is not ready, or a server that cannot write: another connection may reach another one.
    return number is not None and _is_servers(number) and number not in _LOST | _CANNOT | {NOT_READY}


def translated(error: Exception, lost: type[StoreUnavailable]) -> Exception:
    """What to raise instead; `lost` when it is unknown whether the statement was executed."""
    if isinstance(error, NightmailError):
        return error
    number = number_of(error)
    if number is None:
        gone = OSError | TimeoutError | EOFError | asyncio.InvalidStateError | Broken
        kind = type(error.__cause__ or error).__name__
        return lost(f"the connection to the server was lost: {kind}") if isinstance(error, gone) else error
    told = f"{type(error).__name__} ({number})"
    if number in _LOCKED:
        return Locked()
    if number in _UNDEFINED:
        return SchemaMissing()
    if number in _DENIED:
        return NotAllowed(sentence_of(error))
    if number in TRANSIENT | _CANNOT:
        return StoreUnavailable(f"the server refused for now: {told}")
    if number in _LOST or not _is_servers(number):
        return lost(f"the connection to the server was lost: {told}")
    # Not the server's own text: some errors quote the refused value.
    return Refused(f"the server refused this: {told}")


def sentence_of(error: BaseException) -> str:
    """The message of the server or the system, without the number."""
    if number_of(error) is not None and len(error.args) > 1:
        return str(error.args[1])
    return str(error) or type(error).__name__


def unreachable(error: Exception, where: str, password: str) -> NightmailError:
    """For a connection that could not be made. `where`: the server and the account, in readable form."""
    if isinstance(error, NightmailError):
        return error
    error = below(error)
    number = number_of(error)
    if number == NOT_READY:
        return StoreUnavailable(f"{NODE_NOT_READY} ({where})")
    told = "no answer in time" if isinstance(error, TimeoutError) else sentence_of(error)
    if password and password in told:
        told = type(error).__name__
    return StoreUnavailable(f"cannot connect to {where}: {told}" + (f" ({number})" if number else ""))


def _is_servers(number: int) -> bool:
    return 1000 <= number < 2000 or number >= 3000
