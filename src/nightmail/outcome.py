"""The only ways a delivery can end, and what the store answers to a write."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Final, TypeAlias

ERROR_TEXT_LIMIT: Final = 8192
REASON_LIMIT: Final = 255
SHORTEST_POSTPONEMENT: Final = timedelta(milliseconds=100)
_TRUNCATED: Final = "…[truncated]"
_ZERO: Final = timedelta(0)


class Reason(StrEnum):
    """Why a worker gave up a message. A handler may give a reason of its own; these are ours."""

    REJECTED = "rejected"
    RETRIES_EXHAUSTED = "retries_exhausted"
    MAX_DELIVERIES = "max_deliveries"
    UNDECODABLE = "undecodable"
    POLICY_ERROR = "policy_error"
    EXPIRED = "expired"
    UNREADABLE = "unreadable"
    """The store cannot read the row: other software wrote values there that a message cannot have."""
    STOPPED = "stopped"
    """An operator stopped its handler."""
    TOO_LARGE = "too_large"
    """The body is larger than this store's `max_body_bytes`: it was not read into memory."""


@dataclass(frozen=True, slots=True)
class Done:
    """Handled: the message leaves the store."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Failed: one more attempt is counted, and it is due again once `after` has passed (≤ 0 is now)."""

    after: timedelta = _ZERO
    error: str | None = field(default=None, compare=False)
    """What went wrong: for the log, and shown with the message while it waits (`StoredMessage.last_error`)."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "after", max(self.after, _ZERO))


@dataclass(frozen=True, slots=True)
class Postpone:
    """Not yet: look again once `after` has passed. Both counters restart at 0.

    Never sooner than 100 ms: a handler that postpones by zero would spin at the full claim rate.
    """

    after: timedelta

    def __post_init__(self) -> None:
        object.__setattr__(self, "after", max(self.after, SHORTEST_POSTPONEMENT))


@dataclass(frozen=True, slots=True)
class Dead:
    """Given up: the message moves to the dead letters with the reason, and the error if there was one."""

    reason: str
    error: str | None = None
    ran: bool = True
    """Whether its handler ran this time: if so, the dead letter counts one attempt more."""

    def __post_init__(self) -> None:
        if not self.reason:
            raise ValueError(
                "a dead letter needs a reason: an operator will ask why the message was given up"
            )
        object.__setattr__(self, "reason", storable_text(self.reason, REASON_LIMIT))
        if self.error is not None:
            object.__setattr__(self, "error", storable_text(self.error, ERROR_TEXT_LIMIT))


@dataclass(frozen=True, slots=True)
class Release:
    """Handed back unstarted: the claim is undone, and the message keeps its place."""


Outcome: TypeAlias = Done | Retry | Postpone | Dead | Release
OUTCOMES: Final = (Done, Retry, Postpone, Dead, Release)
ENDS: Final = (Done, Dead)
"""After these a message is gone from its queue."""
"""The same for `isinstance`: a tuple is three times as fast."""


class WriteResult(StrEnum):
    """The result of a write that is fenced by a lease."""

    WRITTEN = "written"
    """The lease held, and the write is done."""
    STOP = "stop"
    """The lease was extended, and an operator wants this message stopped. Only `extend` says so."""
    LOST = "lost"
    """Another worker has the message, or it is gone: nothing was written."""
    BUSY = "busy"
    """An open transaction has locked the row: nothing was written, try again."""
    UNKNOWN = "unknown"
    """An earlier write, whose reply was lost, may have been carried out; it cannot be known now."""


def storable_text(text: str, limit: int) -> str:
    """`text` as every store can keep it: no NUL, no lone surrogate, at most `limit` characters.

    A dead letter whose text the database refuses would roll the move back, and the message would be
    redelivered forever.
    """
    clean = text.replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode("utf-8")
    return clean if len(clean) <= limit else clean[: limit - len(_TRUNCATED)] + _TRUNCATED
