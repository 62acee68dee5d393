"""Maps the driver's and the server's errors to ours. Nothing else translates them."""

from __future__ import annotations

import os
import re
import socket
import ssl
from typing import Final

from redis.exceptions import (
    AskError,
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    MovedError,
    NoScriptError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import TimeoutError as RedisTimeoutError

from nightmail.errors import Forbidden, NightmailError, SchemaDrift, StoreUnavailable
from nightmail.stores.shared.driver_errors import Broken, below

OF_THE_DRIVER: Final = (RedisError, OSError, EOFError)
"""What the driver raises on purpose. It sometimes fails in other ways, when a connection ends at a bad moment."""
REDIRECTIONS: Final = (MovedError, AskError, TryAgainError, ClusterDownError)
"""The server has done nothing: another one has the slot, or will have it soon."""

# The server has answered that it cannot: nothing was written, and it may be able to later. The driver turns some of
# these into its own classes and drops the error code, so both are checked.
_CANNOT: Final = (
    "BUSY",
    "CLUSTERDOWN",
    "LOADING",
    "MASTERDOWN",
    "MISCONF",
    "NOREPLICAS",
    "OOM",
    "READONLY",
    "TRYAGAIN",
)
_CANNOT_CLASSES: Final = frozenset(
    {"BusyLoadingError", "ClusterDownError", "MasterDownError", "OutOfMemoryError", "ReadOnlyError"}
)
_FORBIDDEN: Final = ("NOAUTH", "NOPERM", "WRONGPASS")
_FORBIDDEN_IN_A_SCRIPT: Final = ("executing the script can't", "may not use")
_ERRNO: Final = re.compile(r"\[Errno (\d+)\]")
_OURS: Final = re.compile(r"this account may not use [A-Z]+ on the keys of a queue")
_COMMAND: Final = re.compile(r"permissions to run the '([a-z|]+)' command")


class Moving(StoreUnavailable):
    """The slot of this queue is being moved, or its node is being replaced. Nothing was written: try again."""


def is_unknown_script(answer: object) -> bool:
    """Whether the server does not know the script: after a restart, a failover or SCRIPT FLUSH."""
    return isinstance(answer, NoScriptError)


def is_unknown_syntax(answer: object) -> bool:
    """Whether the server cannot parse the script: one before 7.0 fails on its first line, the flags."""
    return isinstance(answer, ResponseError) and "compiling script" in str(answer)


def leaves_connection_usable(error: BaseException) -> bool:
    """Whether the connection is intact after this error, and its server worth asking again."""
    if isinstance(error, NightmailError):
        return True
    # After a failover this server may stay a replica: a new connection finds the primary.
    return isinstance(error, ResponseError) and not _says(error, ("READONLY", "LOADING", "MASTERDOWN"))


def translated(error: Exception, lost: type[StoreUnavailable]) -> Exception:
    """What to raise instead; `lost` when it is unknown whether the command was executed."""
    if isinstance(error, NightmailError):
        return error
    if isinstance(error, ResponseError) or type(error).__name__ in _CANNOT_CLASSES:
        return _refused(error)
    if isinstance(error, (*OF_THE_DRIVER, Broken)):
        return lost(f"the connection to Redis was lost: {type(below(error)).__name__}")
    return error


def unreachable(error: Exception, place: str) -> StoreUnavailable:
    """For a connection that could not be made to this place."""
    return StoreUnavailable(f"cannot connect to {place}: {_own_words(error)}")


def _own_words(error: BaseException) -> str:
    """What the server or the system said, without the driver's text: that may quote the URL, and the password in it."""
    if isinstance(error, AuthenticationError | ResponseError | ReadOnlyError | BusyLoadingError):
        return str(error) or type(error).__name__
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, ssl.SSLError):
            return f"TLS failed: {seen.reason or type(seen).__name__}"
        if isinstance(seen, TimeoutError | RedisTimeoutError):
            return "no answer in time"
        if isinstance(seen, socket.gaierror) and seen.strerror:
            return seen.strerror
        if isinstance(seen, OSError) and (number := seen.errno or _errno_in(str(seen))):
            return os.strerror(number)
        seen = seen.__cause__ or seen.__context__
    return type(error).__name__


def _errno_in(text: str) -> int | None:
    """The errno quoted in the text: a host with several addresses fails as one error without a number of its own."""
    found = _ERRNO.search(text)
    return int(found[1]) if found else None


def _refused(error: Exception) -> Exception:
    if "non local key" in str(error):
        return Moving()
    if "WRONGTYPE" in str(error):
        return SchemaDrift(["a key of a queue holds another type of value than this version puts there"])
    if type(error).__name__ in _CANNOT_CLASSES or _says(error, _CANNOT):
        return StoreUnavailable(f"Redis refused for now: {_word(error)}")
    if _says(error, _FORBIDDEN) or any(words in str(error) for words in _FORBIDDEN_IN_A_SCRIPT):
        return Forbidden(f"Redis forbids it: {_sentence(error)}")
    return StoreUnavailable(f"Redis refused it: {_word(error)}")


def _says(error: BaseException, words: tuple[str, ...]) -> bool:
    name = type(error).__name__.upper()
    return str(error).startswith(words) or any(word in name for word in words)


def _sentence(error: Exception) -> str:
    """What the account may not do; of the server's text, only the name of the command."""
    if found := _OURS.search(str(error)):
        return found[0]
    if found := _COMMAND.search(str(error)):
        return f"this account may not use {found[1].upper()}"
    if any(words in str(error) for words in _FORBIDDEN_IN_A_SCRIPT):
        return "this account may not use a command that is needed: `nightmail check` names it"
    return _word(error)


def _word(error: Exception) -> str:
    """The error code, without the text, which may quote a command or a key."""
    first = str(error).partition(" ")[0]
    return first if first.isupper() else type(error).__name__
