"""How a command ends: the code for scripts, and one line for people."""

from __future__ import annotations

from typing import Final

from nightmail.describing import one_line
from nightmail.errors import (
    DriverMissing,
    NightmailError,
    NotAllowed,
    PublishUncertain,
    SchemaDrift,
    SchemaMissing,
    SchemaOutdated,
    StoreError,
    StoreUnavailable,
    UnsuitableServer,
)

DONE: Final = 0
INCOMPLETE: Final = 1
"""It ran, and something is left: not everything moved, or the answer is no."""
USAGE: Final = 2
"""What was typed cannot be done: a wrong option, no store given, nothing selected."""
UNREACHABLE: Final = 3
SCHEMA: Final = 4
"""The tables are missing, older than this version, or changed."""
FORBIDDEN: Final = 5
NOT_FOUND: Final = 6
UNCONFIRMED: Final = 7
"""It asked, and the answer was no, or no one was there to answer."""
UNEXPECTED: Final = 70
"""A bug, here or in a driver."""
INTERRUPTED: Final = 130

_LINE: Final = 2000
"""Longer than any of our own messages: a schema check lists what differs."""


class Refusal(Exception):
    """The command ends here, with this line and this code."""

    def __init__(self, line: str, code: int = USAGE) -> None:
        super().__init__(line)
        self.code = code


def code_of(error: BaseException) -> int:
    """The exit code for this error."""
    match error:
        case Refusal():
            return error.code
        case SchemaMissing() | SchemaOutdated() | SchemaDrift():
            return SCHEMA
        case NotAllowed():
            return FORBIDDEN
        case DriverMissing():
            return USAGE
        case StoreUnavailable() | UnsuitableServer():
            return UNREACHABLE
        case StoreError() | NightmailError():
            return INCOMPLETE
        case ValueError() | TypeError():
            return USAGE
        case _:
            return UNEXPECTED


def line_of(error: BaseException, where: str, *, traced: bool = False) -> str:
    """What went wrong and what to do, in one line that cannot move the cursor. `where` names the store.

    `traced`: its traceback stands above.
    """
    said = one_line(" ".join(str(error).split()), _LINE)
    if isinstance(error, NotAllowed):
        return f"{said.rstrip('.')}. Which rights an account needs is in docs/stores.md ({where})"
    if isinstance(error, StoreUnavailable) and not isinstance(error, PublishUncertain):
        return f"{said.rstrip('.')}. Is the server up, and is the URL right? ({where})"
    if isinstance(error, Refusal | NightmailError | ValueError):
        return said
    return f"{type(error).__name__}: {said}{'' if traced else ' (--debug shows where)'}"
