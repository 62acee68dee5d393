"""What an operator may order and ask of a running system: pauses, workers, and what holds a message back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final, TypeAlias
from uuid import UUID

from nightmail.durations import Duration, as_timedelta
from nightmail.message import Due, check_due, check_name, check_not_too_far
from nightmail.outcome import REASON_LIMIT, SHORTEST_POSTPONEMENT, storable_text
from nightmail.records import DeadLetter, StoredMessage

WORKER_ID_BYTES: Final = 8
"""How many bytes of a lease's token say which worker took it."""
FORGOTTEN_AFTER: Final = timedelta(days=1)
"""A worker that has not reported for so long is forgotten."""
CONSUMERS_KEPT_FOR: Final = timedelta(days=90)
"""Who consumed a queue last is forgotten so long after it was seen."""
MOST_AHEAD: Final = 1000
"""How many messages `MessageFacts.ahead` counts at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """A queue, or one ordering key in it, from which nothing is claimed."""

    queue: str
    ordering_key: str | None
    """`None`: the whole queue."""
    by: str
    """Who paused it: a person, or the worker whose handler or breaker did."""
    reason: str | None
    since: datetime
    until: datetime | None
    """When it ends by itself; `None`: not until it is resumed."""
    automatic: bool
    """Whether a handler or a breaker paused it.

    Such a pause does not simply end: from `until` on it lets one message through at a time, as a probe.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    """What a process that consumes messages says about itself."""

    id: str
    """Sixteen hexadecimal digits: the first eight bytes of the token of every lease it takes."""
    host: str
    pid: int
    version: str
    """The version of Nightmail that it runs."""
    queues: tuple[str, ...]
    """Those that it takes messages from. To look after the dead letters of a queue is not to consume it."""
    state: Mapping[str, Any] = field(default_factory=dict)
    """Whatever else it says: JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRecord(WorkerReport):
    """A process that consumes messages, as it last reported itself. Times are the store's."""

    started_at: datetime
    """When it reported for the first time."""
    seen_at: datetime
    """When it reported last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastConsumer:
    """The process that consumed a queue last, whether it still does or not."""

    host: str
    pid: int
    seen_at: datetime
    """When it last reported that it consumes the queue, by the store's clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasedMessage:
    """A running message, and which worker holds it since when."""

    id: int
    queue: str
    worker_id: str
    attempts: int
    deliveries: int
    claimed_at: datetime
    lease_until: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageFacts:
    """All that a store knows about one message, read at one moment: what `why` explains."""

    now: datetime
    """The store's clock when it was read."""
    message: StoredMessage | None
    """`None` if it is gone."""
    letter: DeadLetter | None = None
    """The newest dead letter of this message; its body is left out."""
    delivered_at: datetime | None = None
    """When it was delivered, if it was and the store keeps a history."""
    worker_id: str | None = None
    """Which worker holds it."""
    stop_requested_by: str | None = None
    key_held_by: StoredMessage | None = None
    """The message of its ordering key that goes before it: the holder of the key, or else the first that is due."""
    superseded_by: int | None = None
    """The message that owns its timer id now, where this one is superseded."""
    locked: bool = False
    """Whether an open transaction has locked it."""
    ahead: int = 0
    """How many waiting messages of its queue are due before it, up to `MOST_AHEAD`."""
    pauses: tuple[Pause, ...] = ()
    """The pauses of its queue and of its ordering key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStatus:
    """One queue, at one look or between two."""

    queue: str
    ready: int = 0
    scheduled: int = 0
    running: int = 0
    superseded: int = 0
    dead: int = 0
    oldest_due_age: timedelta | None = None
    """For how long the oldest ready message has been due: what has not started."""
    lateness: timedelta | None = None
    """How long after its due time a handler started, as live workers say: the latest of the last twenty seconds or so.

    Of each claim one message is measured. `None`: none has started.
    """
    in_per_second: float | None = None
    """What came: what ended, and the change between two looks."""
    out_per_second: float = 0.0
    """What ended, done or dead, as live workers say: over the last ten seconds or so."""
    change_per_second: float | None = None
    """Messages that came less messages that ended, per second, between two looks."""
    dead_per_second: float | None = None
    drained_in: timedelta | None = None
    """When nothing will be ready, if ready messages go on to become fewer as they did between two looks."""
    workers: int = 0
    """How many live processes consume it."""
    pauses: tuple[Pause, ...] = ()
    """What is paused of it: the whole queue, or ordering keys."""
    paused_for: timedelta | None = None
    """For how long a person has paused the whole queue."""
    breaker_open_for: timedelta | None = None
    """For how long a handler or a breaker has paused it."""

    @property
    def paused_keys(self) -> int:
        """How many ordering keys are paused."""
        return sum(pause.ordering_key is not None for pause in self.pauses)


class PauseRequested(Exception):
    """A handler wants nothing more of its queue for a while: what `PauseQueue` is to a worker."""

    def __init__(self, retry_after: Duration, reason: str | None = None) -> None:
        super().__init__()
        delay = as_timedelta("retry_after", retry_after)
        check_not_too_far("retry_after", delay)
        self.retry_after = max(delay, SHORTEST_POSTPONEMENT)
        self.reason = reason


class PauseCause(StrEnum):
    """What paused a queue."""

    OPERATOR = "operator"
    HANDLER = "handler"
    """A handler raised `PauseQueue`."""
    BREAKER = "breaker"


Consumption: TypeAlias = tuple[Iterable[str], LastConsumer]
"""Queues, and a process that was seen to consume them."""


def consumption(worker: WorkerRecord) -> Consumption:
    """What this worker consumed when it was last seen."""
    return worker.queues, LastConsumer(host=worker.host, pid=worker.pid, seen_at=worker.seen_at)


def latest_of_each(seen: Iterable[Consumption]) -> dict[str, LastConsumer]:
    """For each queue the one that was last seen to consume it."""
    found: dict[str, LastConsumer] = {}
    for queues, consumer in seen:
        for queue in queues:
            if queue not in found or found[queue].seen_at < consumer.seen_at:
                found[queue] = consumer
    return found


def worker_of(token: UUID) -> str:
    """The id of the worker that made this token."""
    return token.bytes[:WORKER_ID_BYTES].hex()


def check_pause(queue: str, ordering_key: str | None, until: Due, by: str, *, automatic: bool) -> None:
    """Refuse what cannot be paused."""
    check_pausable(queue, ordering_key)
    check_name("by", by)
    check_due(until, "until")
    if automatic and ordering_key is not None:
        raise ValueError("only a whole queue can be paused automatically, not an ordering key")
    if automatic and not (isinstance(until, timedelta) and until > timedelta(0)):
        raise ValueError("an automatic pause needs a positive delay as `until`: then the queue is probed")


def check_pausable(queue: str, ordering_key: str | None) -> None:
    """Refuse what is neither a queue nor an ordering key in one."""
    check_name("queue", queue)
    if ordering_key is not None:
        check_name("ordering_key", ordering_key)


def storable_reason(reason: str | None) -> str | None:
    """A reason as stores keep it: at most 255 characters, without what not every store can keep."""
    return storable_text(reason, REASON_LIMIT) if reason else None
