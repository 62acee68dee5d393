"""A journal, sorted: what is known of each message, each lease and each process."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import inf
from typing import Final

from faults.journal import Line

ENDS: Final = ("done", "dead")
"""The outcomes after which a message is gone."""
REFUSED: Final = ("lost", "busy")
"""The answers after which nothing was written."""


@dataclass(slots=True)
class Lease:
    """One claim of one message, and everything that was done under it."""

    claimed: Line
    number: int
    """The number of its line: what stands above it was sent before its answer came."""
    started: list[Line] = field(default_factory=list)
    ended: Line | None = None
    settling: list[tuple[int, Line]] = field(default_factory=list)
    """What was sent to the store, each with the number of its line."""
    settled: list[Line] = field(default_factory=list)
    extended: list[Line] = field(default_factory=list)
    acking: list[tuple[int, Line]] = field(default_factory=list)
    acked: list[Line] = field(default_factory=list)
    """Acks whose transaction was heard to end: `written`, or `lost` where the store refused it."""
    skew: float = 0.0
    """How far ahead the store's clock had been moved when it was claimed."""

    @property
    def process(self) -> str:
        return self.claimed.process

    @property
    def store_at(self) -> float:
        """When it was claimed, by the store's clock."""
        return self.claimed.store_at or 0.0

    @property
    def claimed_at(self) -> float:
        """The same, as if the store's clock had never been moved."""
        return self.store_at - self.skew

    @property
    def written(self) -> Line | None:
        """The outcome that the store has written, as far as its answer was heard."""
        return next((line for line in self.settled if line.result == "written"), None)

    @property
    def gone(self) -> Line | None:
        """The answer after which its message was gone."""
        written = self.written
        if written is not None and written.outcome in ENDS:
            return written
        return next((line for line in self.acked if line.result == "written"), None)

    def may_have_ended(self, before: int) -> bool:
        """Whether a write that ends this lease, and not its message, was sent before that line of the journal.

        One that was answered counts if it was written. If it was to remove the message, an answer that was not heard
        is no end: the message is there.
        """
        return any(
            number < before and (answer == "written" or (answer is None and sent.outcome not in ENDS))
            for number, sent, answer in self._answers()
        )

    @property
    def removing(self) -> float:
        """The number of the line at which the first write was sent that may have removed the message.

        `inf`: none was, or each was refused.
        """
        settled = (
            number
            for number, sent, answer in self._answers()
            if sent.outcome in ENDS and answer not in REFUSED
        )
        refused = sum(line.result == "lost" for line in self.acked)
        acked = self.acking if len(self.acking) > refused else []
        return min((*settled, *(number for number, _ in acked)), default=inf)

    def _answers(self) -> Iterator[tuple[int, Line, str | None]]:
        """Each outcome that was sent: the number of its line, the line, and the answer, if one was heard that says."""
        answers = deque(self.settled)
        for place, (number, sent) in enumerate(self.settling):
            following = self.settling[place + 1][1].at if place + 1 < len(self.settling) else inf
            heard = answers.popleft() if answers and (answers[0].sent or answers[0].at) < following else None
            yield number, sent, heard.result if heard is not None and heard.result != "unknown" else None


@dataclass(slots=True)
class Message:
    """One message: its publisher's side, and its leases in the order of the store's clock."""

    key: str
    intended: Line | None = None
    acknowledged: Line | None = None
    """The first time that its publisher was told that it is stored."""
    refused: Line | None = None
    """Its publisher was told that it is not."""
    ids: set[int] = field(default_factory=set)
    leases: list[Lease] = field(default_factory=list)

    @property
    def is_timer(self) -> bool:
        return self.intended is not None and self.intended.timer


@dataclass(slots=True)
class Pause:
    """A queue, or one ordering key of it, of which nothing is to run."""

    paused: Line
    """From here on an operator knows that it is paused."""
    resuming: Line | None = None

    @property
    def ends_at(self) -> float:
        """From here on it may be over."""
        return inf if self.resuming is None else self.resuming.at

    def covers(self, message: Message) -> bool:
        """Whether it keeps this message from running."""
        intended = message.intended
        return (
            intended is not None
            and intended.queue == self.paused.queue
            and self.paused.ordering_key in (None, intended.ordering_key)
        )


@dataclass(slots=True)
class Process:
    """One process, from its start to its end."""

    booted: Line | None = None
    stopping: Line | None = None
    stopped: Line | None = None
    exited: Line | None = None


class Spans:
    """When faults hit a process. Asked for each lease, so it must not go through all of them each time."""

    def __init__(self, faults: Iterable[Line]) -> None:
        spans = sorted((_began(fault), inf if fault.until is None else fault.until) for fault in faults)
        self._begins = [begins for begins, _ in spans]
        self._latest = list(accumulate((ends for _, ends in spans), max))

    def touch(self, since: float, until: float) -> bool:
        """Whether one of them falls into this time."""
        before = bisect_right(self._begins, until)
        return before > 0 and self._latest[before - 1] >= since


def _began(fault: Line) -> float:
    return fault.at if fault.sent is None else fault.sent


class Ledger:
    """Everything that a journal says."""

    def __init__(self, journal: Iterable[Line]) -> None:
        self.lines: Final = list(journal)
        self.messages: Final[dict[str, Message]] = {}
        self.processes: Final[dict[str, Process]] = {}
        self.faults: Final[list[Line]] = []
        self.pauses: Final[list[Pause]] = []
        self.unheard: Final[dict[str, Line]] = {}
        """Claims, by token, whose answer was never heard: they may have taken anything."""
        self.calm: Line | None = None
        self.over: Line | None = None
        self.orphans: Final[list[Line]] = []
        """Lines about a lease that was never claimed."""
        self.returned: Final[list[Line]] = []
        """When every server of a cluster was there again."""
        self._claims: Final[defaultdict[tuple[str, str], list[float]]] = defaultdict(list)
        self._leases: Final[dict[tuple[int, str], Lease]] = {}
        for number, line in enumerate(self.lines):
            self._add(number, line)
        self._steps: Final = [fault for fault in self.faults if fault.skew is not None]
        self._faults_of: Final[dict[str, list[Line]]] = {}
        self._spans: Final[dict[str, Spans]] = {}
        self._unheard_at: Final = sorted(claim.at for claim in self.unheard.values())
        self._answered_at: Final = sorted(at for several in self._claims.values() for at in several)
        self._held_by: Final[defaultdict[str, list[Lease]]] = defaultdict(list)
        for lease in self._leases.values():
            self._held_by[lease.process].append(lease)
        for message in self.messages.values():
            for lease in message.leases:
                lease.skew = self._skew(lease)
            message.leases.sort(key=lambda lease: (lease.claimed_at, lease.number))

    def faults_of(self, process: str) -> list[Line]:
        """The faults that hit this process."""
        if process not in self._faults_of:
            self._faults_of[process] = [fault for fault in self.faults if fault.target in (None, process)]
        return self._faults_of[process]

    def hit(self, process: str, since: float, until: float) -> bool:
        """Whether a fault hit this process in this time."""
        if process not in self._spans:
            self._spans[process] = Spans(self.faults_of(process))
        return self._spans[process].touch(since, until)

    def leases_of(self, process: str) -> Sequence[Lease]:
        """Every lease that this process had."""
        return self._held_by[process]

    def claims_of(self, process: str, queue: str) -> Sequence[float]:
        """When claims of this queue by this process were answered."""
        return self._claims[process, queue]

    def unheard_by(self, at: float) -> int:
        """How many claims whose answer was never heard had been sent by then."""
        return bisect_right(self._unheard_at, at)

    def in_use(self, since: float, until: float) -> bool:
        """Whether a claim of any process was answered in this time."""
        place = bisect_right(self._answered_at, since)
        return place < len(self._answered_at) and self._answered_at[place] <= until

    def stepped(self, since: float, until: float) -> bool:
        """Whether the store's clock was moved in this time."""
        return any((step.sent or step.at) <= until and step.at >= since for step in self._steps)

    def _skew(self, lease: Lease) -> float:
        """How far ahead the store's clock was when it gave this lease."""
        claim = lease.claimed
        before = [step for step in self._steps if step.at < (claim.sent or claim.at)]
        during = [step for step in self._steps if step not in before and (step.sent or step.at) <= claim.at]
        possible = [step.skew or 0.0 for step in (*before[-1:], *during)]
        if not before:
            possible.insert(0, 0.0)
        if len(possible) == 1:
            return possible[0]
        # The clock was moved while the claim was on its way: with the right guess it fits its neighbours.
        return min(possible, key=lambda skew: abs(lease.store_at - skew - claim.at - self._wall()))

    def _wall(self) -> float:
        """How far the store's clock was ahead of the monotonic one before it was moved."""
        first = self._steps[0].sent or self._steps[0].at
        for line in self.lines:
            if line.what == "claimed" and line.at < first and line.store_at is not None:
                return line.store_at - line.at
        return 0.0

    def about(self, key: str) -> list[Line]:
        """Every line about this message, and about what hit the processes that had it."""
        message = self.messages[key]
        holders = {lease.process for lease in message.leases}
        tokens = {lease.claimed.token for lease in message.leases}
        return [
            line
            for line in self.lines
            if line.key == key
            or (line.id in message.ids and line.what not in ("fault", "over"))
            or (line.what in ("claiming", "claim_ended", "recalled") and line.token in tokens)
            or (line.what == "fault" and line.target in (None, *holders))
            or (line.what in ("booted", "stopping", "stopped", "exited") and line.process in holders)
            or line.what in ("calm",)
        ]

    def _message(self, line: Line) -> Message:
        assert line.key is not None
        message = self.messages.setdefault(line.key, Message(line.key))
        if line.id is not None:
            message.ids.add(line.id)
        return message

    def _process(self, line: Line) -> Process:
        return self.processes.setdefault(line.process, Process())

    def _add(self, number: int, line: Line) -> None:
        match line.what:
            case "intended":
                message = self._message(line)
                message.intended = message.intended or line
            case "acknowledged":
                message = self._message(line)
                message.acknowledged = message.acknowledged or line
            case "refused" | "rolled_back":
                self._message(line).refused = line
            case "claiming":
                self.unheard[line.token or ""] = line
            case "claim_ended":
                claim = self.unheard.pop(line.token or "", None)
                for queue in (claim.queue or "").split(",") if claim is not None else ():
                    self._claims[line.process, queue].append(line.at)
            case "claimed":
                lease = Lease(line, number)
                self._leases[line.id or 0, line.token or ""] = lease
                self._message(line).leases.append(lease)
            case "started" | "ended" | "settling" | "settled" | "extended" | "acking" | "acked":
                self._add_to_lease(number, line)
            case "booted":
                self._process(line).booted = line
            case "stopping":
                self._process(line).stopping = line
            case "stopped":
                self._process(line).stopped = line
            case "exited":
                self.processes.setdefault(line.target or "", Process()).exited = line
            case "paused":
                self.pauses.append(Pause(line))
            case "resuming":
                for pause in self.pauses:
                    is_the_same = pause.paused.ordering_key == line.ordering_key
                    if pause.resuming is None and pause.paused.queue == line.queue and is_the_same:
                        pause.resuming = line
            case "left":
                self._message(line)
            case "fault":
                self.faults.append(line)
            case "returned":
                self.returned.append(line)
            case "calm":
                self.calm = line
            case "over":
                self.over = line
            case "uncertain" | "recalled" | "looked":
                pass

    def _add_to_lease(self, number: int, line: Line) -> None:
        lease = self._leases.get((line.id or 0, line.token or ""))
        if lease is None:
            self.orphans.append(line)
            return
        match line.what:
            case "started":
                lease.started.append(line)
            case "ended":
                lease.ended = line
            case "settling":
                lease.settling.append((number, line))
            case "settled":
                lease.settled.append(line)
            case "extended":
                lease.extended.append(line)
            case "acked":
                lease.acked.append(line)
            case _:
                lease.acking.append((number, line))
