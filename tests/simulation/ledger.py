"""What must be true of every message and worker, worked out from the journal alone."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.simulation.events import (
    Acked,
    Booted,
    Calm,
    Cancelled,
    Claimed,
    Committed,
    Ended,
    Ending,
    Event,
    Extended,
    Fault,
    Frozen,
    Killed,
    Paused,
    ProbedAgain,
    Received,
    Reported,
    Rescheduled,
    Resumed,
    Settled,
    SignedOff,
    Started,
    StopAsked,
    StopEnded,
    StopRequested,
    Stored,
)


@dataclass(slots=True)
class Run:
    """One handler run."""

    id: int
    worker: str
    started: int
    ended: int | None = None
    how: Ending | None = None


@dataclass(slots=True)
class Lease:
    """A lease as the store gave it."""

    claim: Claimed
    until: int
    heard: int | None = None
    """When its holder heard of it."""
    acked: bool = False
    """Acknowledged in a transaction of its handler's, which keeps it instead."""


@dataclass(slots=True)
class Pause:
    """A pause of a queue, or of a key in it."""

    since: int
    until: int | None
    length: int
    """For how long it was last set; each probe of an automatic one sets it again."""
    automatic: bool
    probe: tuple[int, str] | None = None
    """The last message that was let through since it was set, with its token."""

    def in_force(self, at: int) -> bool:
        """An automatic one is until it is resumed."""
        return self.automatic or self.until is None or self.until > at


@dataclass(slots=True)
class Entry:
    """A message."""

    stored: Stored
    id: int
    due: int
    owns: str | None
    """The timer id that it owns."""
    attempts: int = 0
    deliveries: int = 0
    lease: Lease | None = None
    is_head: bool = False
    """Whether it was claimed and holds its ordering key."""
    superseded: bool = False
    gone: str | None = None
    since: int = 0
    """When it was last stored, brought back or moved."""
    to_stop: bool = False
    """Whether an operator wants it stopped."""

    def is_running(self, at: int) -> bool:
        """Whether a lease on it has not expired."""
        return self.lease is not None and self.lease.until > at


@dataclass(slots=True)
class Hand:
    """A worker."""

    settings: Booted
    killed: int | None = None
    stop_asked: StopAsked | None = None
    """The last time it was asked to stop."""
    stops_since: int | None = None
    """The first."""
    stop_ended: int | None = None
    frozen: list[tuple[int, int]] = field(default_factory=list)
    blocked: list[tuple[int, int]] = field(default_factory=list)
    upset: list[tuple[int, int]] = field(default_factory=list)

    def was_well(self, since: int, until: int) -> bool:
        """Whether nothing had hit it in this time."""
        return not overlaps(self.frozen + self.blocked + self.upset, since, until)

    @property
    def process(self) -> str:
        """Its process, in this life."""
        return self.settings.worker.partition(".")[0]


def overlaps(spans: list[tuple[int, int]], begin: int, end: int) -> bool:
    """Whether one of these falls into this time."""
    return any(since <= end and until >= begin for since, until in spans)


class Ledger:
    """Every message, lease, run and worker, as of the last event."""

    def __init__(self) -> None:
        self.messages: dict[int, Entry] = {}
        self.runs: dict[tuple[int, str], Run] = {}
        """By message and token: each delivery runs once at most."""
        self.claims: dict[tuple[int, str], Claimed] = {}
        self.workers: dict[str, Hand] = {}
        self.windows: dict[tuple[str, str], int] = {}
        """Until when a timer id counts as taken."""
        self.pauses: dict[tuple[str, str | None, bool], Pause] = {}
        """By queue, ordering key, and whether it is automatic."""
        self.probes: dict[str, list[tuple[int, str]]] = {}
        """By queue: every message that was let through, with its token."""
        self.told: dict[tuple[int, str], int] = {}
        """When the holder of a lease was first told that its message is to be stopped, as far as it heard that."""
        self.reporters: dict[str, str] = {}
        """Every process that reported, by its id, and the worker that did so."""
        self.signed_off: set[str] = set()
        self.calm_at: int | None = None
        self.troubles = 0
        """How many faults there were, but for processes killed by a message."""

    def owner(self, queue: str, timer: str) -> Entry | None:
        """The message that owns this timer id."""
        found = (
            each
            for each in self.messages.values()
            if each.gone is None and each.owns == timer and each.stored.queue == queue
        )
        return next(found, None)

    def of_key(self, entry: Entry) -> list[Entry]:
        """The other messages with the same ordering key."""
        stored = entry.stored
        return [
            each
            for each in self.messages.values()
            if each is not entry
            and each.gone is None
            and each.stored.queue == stored.queue
            and each.stored.key == stored.key
        ]

    def paused(self, entry: Entry, at: int) -> list[Pause]:
        """The pauses in force that hold this message back."""
        queue, key = entry.stored.queue, entry.stored.key
        places: list[tuple[str, str | None, bool]] = [(queue, None, False), (queue, None, True)]
        if key is not None:
            places.append((queue, key, False))
        found = (self.pauses.get(place) for place in places)
        return [pause for pause in found if pause is not None and pause.in_force(at)]

    def held(self, id_: int, token: str) -> Entry | None:
        """The message, if the lease on it is still this one."""
        entry = self.messages.get(id_)
        if entry is None or entry.gone is not None or entry.lease is None or entry.lease.claim.token != token:
            return None
        return entry

    def apply(self, event: Event) -> None:
        """Take this into account."""
        match event:
            case Stored():
                self._store(event)
            case Claimed():
                self._claim(event)
            case Settled():
                self._settle(event)
            case Extended():
                entry = self.held(event.id, event.token)
                if event.written and entry is not None and entry.lease is not None:
                    entry.lease.until = max(entry.lease.until, event.until)
                if event.stop:
                    self.told.setdefault((event.id, event.token), event.at)
            case Received():
                entry = self.held(event.id, event.token)
                if entry is not None and entry.lease is not None:
                    entry.lease.heard = event.at
            case Acked():
                entry = self.held(event.id, event.token)
                if entry is not None and entry.lease is not None:
                    entry.lease.acked = True
            case Committed():
                self._leave(event.id, "committed")
            case Cancelled():
                entry = self.messages.get(event.id)
                if entry is not None and entry.owns is not None:
                    self.windows.pop((entry.stored.queue, entry.owns), None)
                self._leave(event.id, "cancelled")
            case Rescheduled():
                if (entry := self.messages.get(event.id)) is not None:
                    entry.due, entry.lease, entry.since = event.due, None, event.at
            case Started():
                self.runs[event.id, event.token] = Run(event.id, event.worker, event.at)
            case Ended():
                if (run := self.runs.get((event.id, event.token))) is not None:
                    run.ended, run.how = event.at, event.how
            case Calm():
                self.calm_at = event.at
            case Paused() | Resumed() | ProbedAgain() | StopRequested() | Reported() | SignedOff():
                self._steer(event)
            case _:
                self._apply_to_worker(event)

    def _steer(self, event: Paused | Resumed | ProbedAgain | StopRequested | Reported | SignedOff) -> None:
        match event:
            case Paused():
                self.troubles += 1
                place = event.queue, event.key, event.automatic
                before = self.pauses.get(place)
                since = before.since if before is not None and before.in_force(event.at) else event.at
                length = 0 if event.until is None else event.until - event.at
                self.pauses[place] = Pause(since, event.until, length, event.automatic)
            case Resumed():
                self.pauses.pop((event.queue, event.key, event.automatic), None)
            case ProbedAgain():
                pause = self.pauses.get((event.queue, None, True))
                if pause is not None and pause.probe == (event.id, event.token):
                    pause.until = event.at
            case StopRequested():
                self.troubles += 1
                if (entry := self.messages.get(event.id)) is not None:
                    entry.to_stop = True
            case Reported():
                self.reporters[event.id] = event.worker
            case SignedOff():
                self.signed_off.add(event.id)

    def _apply_to_worker(self, event: Event) -> None:
        match event:
            case Booted():
                self.workers[event.worker] = Hand(event)
            case Killed():
                self.troubles += event.by is None
                self.workers[event.worker].killed = event.at
            case Frozen():
                hand = self.workers[event.worker]
                (hand.blocked if event.thread else hand.frozen).append((event.at, event.until))
                self.troubles += 1
            case StopAsked():
                self.troubles += 1
                hand = self.workers[event.worker]
                hand.stop_asked = event
                hand.stops_since = event.at if hand.stops_since is None else hand.stops_since
            case StopEnded():
                self.workers[event.worker].stop_ended = event.at
            case Fault():
                self.troubles += 1
                if event.worker in self.workers:
                    self.workers[event.worker].upset.append((event.at, event.until))
            case _:
                pass

    def _store(self, event: Stored) -> None:
        if event.id is None:
            return
        if event.timer is not None and event.dedup:
            window = event.queue, event.timer
            self.windows[window] = max(self.windows.get(window, 0), event.at + event.dedup)
        if event.timer is not None:
            owner = self.owner(event.queue, event.timer)
            if owner is not None and owner.id != event.id:
                owner.owns = None
                owner.superseded = owner.id != event.own
        before = self.messages.get(event.id)
        entry = Entry(event, event.id, event.due, event.timer, since=event.at)
        if before is not None and before.stored.key == event.key:
            entry.is_head = before.is_head
        self.messages[event.id] = entry

    def _claim(self, event: Claimed) -> None:
        self.claims[event.id, event.token] = event
        entry = self.messages.get(event.id)
        if entry is not None:
            entry.lease = Lease(event, event.until)
            entry.deliveries += 1
            entry.is_head = True
            if event.probe:
                self._probe(event, entry.stored.queue)

    def _probe(self, event: Claimed, queue: str) -> None:
        self.probes.setdefault(queue, []).append((event.id, event.token))
        if (pause := self.pauses.get((queue, None, True))) is not None:
            pause.until = event.at + pause.length
            pause.probe = event.id, event.token

    def _settle(self, event: Settled) -> None:
        if event.result != "written" or (entry := self.messages.get(event.id)) is None:
            return
        match event.outcome:
            case "done" | "dead":
                self._leave(event.id, event.outcome)
                return
            case "retry":
                entry.attempts += 1
                entry.deliveries = 0
            case "postpone":
                entry.attempts = entry.deliveries = 0
            case "release":
                entry.deliveries -= 1
        entry.lease = None
        entry.since = event.at
        if event.due is not None:
            entry.due = event.due

    def _leave(self, id_: int, how: str) -> None:
        if (entry := self.messages.get(id_)) is not None:
            entry.gone, entry.owns, entry.lease = how, None, None
