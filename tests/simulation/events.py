"""What a journal says: one small record for each thing that happened, in the order in which it happened.

`at` is the store's clock in microseconds. `worker` names one worker in one life of its process: `p1#2.a` is worker a
of process p1 in its second life. What the store did comes from its server, so it is true even if its caller never heard
of it; what handlers and processes did comes from them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal, TypeAlias

Outcome: TypeAlias = Literal["done", "retry", "postpone", "dead", "release"]
Ending: TypeAlias = Literal[
    "ok", "failed", "retry", "postpone", "reject", "cancelled", "acked", "undone", "lost", "pauses"
]
"""How a handler ended. `acked`: it returned after its transaction was committed, as far as it knows; `undone`: it acked
in a transaction and raised; `lost`: it was told that its lease was lost; `pauses`: it paused its queue."""


@dataclass(slots=True, kw_only=True)
class Event:
    """Something that happened."""

    at: int

    def __str__(self) -> str:
        said = " ".join(
            f"{field.name}={value}"
            for field in fields(self)
            if field.name != "at" and (value := getattr(self, field.name)) not in (None, False, ())
        )
        return f"{self.at / 1e6:12.6f}  {type(self).__name__:<12} {said}"


# ── publishers ─────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True, kw_only=True)
class Intended(Event):
    """A publish was sent."""

    tag: str


@dataclass(slots=True, kw_only=True)
class Acknowledged(Event):
    """Its publisher was told that it is stored."""

    tag: str
    id: int


@dataclass(slots=True, kw_only=True)
class Stored(Event):
    """The store carried a publish out. Without an id, a conflict kept it from being stored."""

    tag: str
    id: int | None
    queue: str
    due: int
    timer: str | None = None
    on_conflict: str = "skip"
    dedup: int = 0
    """For how long its timer id stays taken."""
    key: str | None = None
    expires: int | None = None
    own: int | None = None
    """The message whose handler published this."""
    poison: bool = False


@dataclass(slots=True, kw_only=True)
class Cancelled(Event):
    """The store removed the waiting owner of a timer id."""

    id: int


@dataclass(slots=True, kw_only=True)
class Rescheduled(Event):
    """The store moved the waiting owner of a timer id."""

    id: int
    due: int


# ── operators ──────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True, kw_only=True)
class Paused(Event):
    """The store noted a pause of a queue, or of an ordering key in it, until then or until it is resumed."""

    queue: str
    key: str | None = None
    until: int | None = None
    automatic: bool = False
    """Made by a worker, for a handler or a breaker: it ends by a probe."""


@dataclass(slots=True, kw_only=True)
class Resumed(Event):
    """The store ended a pause that was in force."""

    queue: str
    key: str | None = None
    automatic: bool = False


@dataclass(slots=True, kw_only=True)
class ProbedAgain(Event):
    """The store was told that a probe ended without running: the next one may be taken at once."""

    queue: str
    id: int
    """The probe."""
    token: str


@dataclass(slots=True, kw_only=True)
class StopRequested(Event):
    """The store noted that a message that runs is to be stopped."""

    id: int


@dataclass(slots=True, kw_only=True)
class Reported(Event):
    """The store noted that a process is alive."""

    worker: str
    """The worker that sent it."""
    id: str


@dataclass(slots=True, kw_only=True)
class SignedOff(Event):
    """The store forgot a process that has stopped in order."""

    id: str


# ── the store, for workers ─────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True, kw_only=True)
class Claimed(Event):
    """The store leased a message."""

    worker: str
    id: int
    token: str
    until: int
    attempts: int
    deliveries: int
    superseded: bool = False
    unheard: bool = False
    """Its caller had given up on the call by then: no reply, and no recall, can reach it in time."""
    probe: bool = False
    """Let through to see whether an automatic pause may end."""


@dataclass(slots=True, kw_only=True)
class Received(Event):
    """A worker heard what its claim took: from here on its keeper knows of the lease."""

    id: int
    token: str


@dataclass(slots=True, kw_only=True)
class Extended(Event):
    """The store was asked to extend a lease."""

    id: int
    token: str
    until: int
    written: bool
    stop: bool = False
    """Whether the answer is that an operator wants it stopped."""


@dataclass(slots=True, kw_only=True)
class Settled(Event):
    """The store was asked to write an outcome. `changed`: the message is not what it was before."""

    worker: str
    id: int
    token: str
    outcome: Outcome
    result: str
    changed: bool
    reason: str | None = None
    due: int | None = None
    """When it is due again, if it is."""


@dataclass(slots=True, kw_only=True)
class Acked(Event):
    """A handler acknowledged its message in a transaction that is still open: from here on that keeps it."""

    id: int
    token: str


@dataclass(slots=True, kw_only=True)
class Committed(Event):
    """A handler's transaction was committed, with its effect and the end of its message."""

    worker: str
    id: int
    token: str


# ── handlers ───────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True, kw_only=True)
class Started(Event):
    """A handler started."""

    worker: str
    id: int
    token: str


@dataclass(slots=True, kw_only=True)
class Ended(Event):
    """A handler ended."""

    worker: str
    id: int
    token: str
    how: Ending


# ── processes and faults ───────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True, kw_only=True)
class Booted(Event):
    """A worker runs, with these settings; times in microseconds."""

    worker: str
    lease: int
    grace: int
    timeout: int
    max_attempts: int
    max_deliveries: int
    breaker: bool = False
    """Whether it pauses a queue that keeps failing: then not every failure is an attempt."""


@dataclass(slots=True, kw_only=True)
class Killed(Event):
    """A worker's process died, with everything in it; perhaps a message killed it."""

    worker: str
    by: int | None = None


@dataclass(slots=True, kw_only=True)
class Frozen(Event):
    """A worker's process stands still until then. `thread`: only its event loop does, and its keeper goes on."""

    worker: str
    until: int
    thread: bool = False


@dataclass(slots=True, kw_only=True)
class StopAsked(Event):
    """A worker is to stop; with `hurry`, without a grace period."""

    worker: str
    hurry: bool = False


@dataclass(slots=True, kw_only=True)
class StopEnded(Event):
    """It has stopped."""

    worker: str


@dataclass(slots=True, kw_only=True)
class Fault(Event):
    """A call to the store is upset, until its caller hears of it."""

    worker: str
    kind: str
    verb: str
    until: int


@dataclass(slots=True, kw_only=True)
class Calm(Event):
    """No faults from here on."""


@dataclass(slots=True, kw_only=True)
class Over(Event):
    """The end: what the store still has."""

    waiting: tuple[int, ...] = ()
    letters: tuple[int, ...] = ()
    """The dead letters, by the ids of their messages."""
    complaints: tuple[str, ...] = ()
