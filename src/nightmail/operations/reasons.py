"""What can be said about why a message does not run: values, each with one line for people."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeAlias

from nightmail.controls import MOST_AHEAD
from nightmail.operations.liveness import last_seen
from nightmail.operations.shell import resume_command
from nightmail.wording import count, length, moment, several, when


@dataclass(frozen=True, slots=True, kw_only=True)
class DueLater:
    """It is not due yet."""

    due_at: datetime
    due_in: timedelta
    attempts: int
    """How many have failed."""
    max_attempts: int | None = None
    """How often it is tried, if it has failed and a worker of its queue says so."""
    last_error: str | None = None

    @property
    def text(self) -> str:
        """For people."""
        due = f"due in {length(self.due_in)} ({moment(self.due_at)})"
        if not self.attempts:
            return due
        return f"{_attempt(self.attempts, self.max_attempts)} is {due}{_last_error(self.last_error)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Expired:
    """It waited for longer than it was good for."""

    queue: str
    expires_at: datetime
    expired_for: timedelta

    @property
    def text(self) -> str:
        """For people."""
        return (
            f"expired {length(self.expired_for)} ago ({moment(self.expires_at)}): the next worker that takes it makes "
            "it a dead letter, without running its handler"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Paused:
    """Its queue, or its ordering key, is paused."""

    queue: str
    ordering_key: str | None
    """`None`: the whole queue is paused."""
    by: str
    cause: str | None
    since: datetime
    paused_for: timedelta
    until: datetime | None
    ends_in: timedelta | None
    """Until it ends by itself, or lets a probe through; negative if that is overdue."""
    automatic: bool
    behind: int | None = None
    """How many messages of the queue are ready and held back, if that was counted: not for an ordering key."""
    ahead: int

    @property
    def text(self) -> str:
        """For people."""
        why = f' ("{self.cause}")' if self.cause else ""
        by = f"by the breaker of {self.by}" if self.automatic else f"by {self.by}"
        since = f"paused {by} for {length(self.paused_for)}, since {moment(self.since)}{why}"
        if self.ordering_key is not None:
            return f"ordering key {self.ordering_key} of queue {self.queue} {since}; {self._end}"
        behind = f", {several(self.behind, 'message')} ready behind it" if self.behind else ""
        ahead = f", {_ahead(self.ahead)} ahead of this one" if self.ahead else ""
        return f"queue {self.queue} {since}{behind}{ahead}; {self._end}"

    @property
    def _end(self) -> str:
        if self.ends_in is None:
            return f"it stays paused until `{resume_command(self.queue, self.ordering_key)}`"
        if not self.automatic:
            return f"it ends by itself in {length(self.ends_in)}"
        if self.ends_in <= timedelta(0):
            return "the next claim lets one message through to try"
        return f"in {length(self.ends_in)} it lets one message through to try"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyHeld:
    """Another message of its ordering key goes first."""

    ordering_key: str
    message_id: int
    running: bool
    attempts: int
    """How many attempts of that message have failed."""
    due_in: timedelta
    """Negative: it has been due for so long."""
    max_attempts: int | None = None
    """How often it is tried, if a worker of its queue says so."""
    last_error: str | None = None

    @property
    def text(self) -> str:
        """For people."""
        attempt = _attempt(self.attempts, self.max_attempts)
        if self.running:
            state = f"{attempt} runs now"
        elif self.due_in > timedelta(0):
            state = f"{attempt} is due in {length(self.due_in)}"
        else:
            state = f"{attempt} has been due for {length(-self.due_in)}"
        return (
            f"ordering key {self.ordering_key}: message {self.message_id} goes first; its "
            f"{state}{_last_error(self.last_error)} (`nightmail why {self.message_id}`)"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Leased:
    """A worker has it."""

    worker_id: str
    worker: str | None
    """Its host and process id; `None` if it has never reported itself."""
    seen_ago: timedelta | None
    """Since the worker was last seen, if that is longer than it should be."""
    running_for: timedelta
    lease_until: datetime
    attempts: int

    @property
    def text(self) -> str:
        """For people."""
        who = f"worker {self.worker_id}, which is not registered" if self.worker is None else self.worker
        held = f"attempt {self.attempts + 1} is with {who} for {length(self.running_for)}"
        leased = f"{held}, leased until {moment(self.lease_until)}"
        if self.seen_ago is None:
            return leased
        silent = f"that worker was last seen {length(self.seen_ago)} ago"
        return f"{leased}; {silent}: if it is gone, another one takes over then"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLost:
    """Its last lease expired without an outcome."""

    lease_until: datetime
    expired_for: timedelta
    deliveries: int

    @property
    def text(self) -> str:
        """For people."""
        return (
            f"its worker was lost: that lease ended {length(self.expired_for)} ago without a result "
            f"({count(self.deliveries)} deliver{'y' if self.deliveries == 1 else 'ies'} so far)"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NoWorker:
    """No live worker consumes its queue."""

    queue: str
    worker: str | None
    """The one that was seen last, within 90 days, whether it stopped in order or not."""
    seen_ago: timedelta | None

    @property
    def text(self) -> str:
        """For people."""
        return f"no live worker consumes queue {self.queue}: {last_seen(self.worker, self.seen_ago)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Superseded:
    """A newer message of its timer id has taken its place."""

    timer_id: str | None
    message_id: int | None
    """The newer one, if it is still there."""

    @property
    def text(self) -> str:
        """For people."""
        newer = "a newer message" if self.message_id is None else f"message {self.message_id}"
        return f"superseded by {newer} of timer id {self.timer_id}: it does not run again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Locked:
    """An open transaction has locked it."""

    @property
    def text(self) -> str:
        """For people."""
        return "locked by an open transaction: workers pass over it until that commits or rolls back"


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequested:
    """An operator asked for it to be stopped."""

    by: str

    @property
    def text(self) -> str:
        """For people."""
        return f"{self.by} asked for it to be stopped: its worker is told when it next renews the lease"


@dataclass(frozen=True, slots=True, kw_only=True)
class Died:
    """It is a dead letter."""

    id: int
    """The dead letter's id."""
    queue: str
    died_at: datetime
    died_ago: timedelta
    cause: str
    error: str | None
    """The first line of its error."""
    attempts: int

    @property
    def text(self) -> str:
        """For people."""
        error = f": {self.error}" if self.error else ""
        return (
            f"dead for {length(self.died_ago)}, since {moment(self.died_at)}: {self.cause} after "
            f"{several(self.attempts, 'attempt')}{error} (`nightmail dead show {self.id}`)"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """It was delivered."""

    delivered_at: datetime
    delivered_ago: timedelta

    @property
    def text(self) -> str:
        """For people."""
        return f"delivered {when(self.delivered_at, self.delivered_at + self.delivered_ago)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Available:
    """Nothing holds it back."""

    queue: str
    workers: int
    within: timedelta
    ahead: int

    @property
    def text(self) -> str:
        """For people."""
        workers = f"{count(self.workers)} live worker{' looks' if self.workers == 1 else 's look'}"
        ahead = (
            f"; {_ahead(self.ahead)} of its queue {'is' if self.ahead == 1 else 'are'} ahead of it"
            if self.ahead
            else ""
        )
        return f"available: {workers} at queue {self.queue} at least every {length(self.within)}{ahead}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """The store has nothing with this id."""

    @property
    def text(self) -> str:
        """For people."""
        return (
            "no message has this id: it was delivered, cancelled, replaced, redriven (which gives it a new id) or "
            "purged, or it never was"
        )


WhyReason: TypeAlias = (
    DueLater
    | Expired
    | Paused
    | KeyHeld
    | Leased
    | WorkerLost
    | NoWorker
    | Superseded
    | Locked
    | StopRequested
    | Died
    | Delivered
    | Available
    | Unknown
)


def _ahead(number: int) -> str:
    return f"{count(number)} or more messages" if number >= MOST_AHEAD else several(number, "message")


def _attempt(failed: int, most: int | None) -> str:
    """The attempt that follows so many that failed."""
    return f"attempt {failed + 1}" + ("" if most is None else f" of {most}")


def _last_error(error: str | None) -> str:
    return "" if error is None else f", last error {error}"
