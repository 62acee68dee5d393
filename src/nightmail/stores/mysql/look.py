"""One look for messages to claim: what it asks for, what it has found, and what it has locked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from nightmail.outcome import Reason
from nightmail.stores.mysql.pausing import Beside
from nightmail.stores.mysql.ranges import Place, after
from nightmail.stores.mysql.requests import Answer
from nightmail.stores.mysql.text import NEVER, Sql
from nightmail.stores.mysql.times import LATEST
from nightmail.stores.shared.marks import Range
from nightmail.stores.shared.wanted import Wanted
from nightmail.stores.sql.verbs import Verb

BEHIND_A_PARKED_ROW: Final = 2
_LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)


@dataclass(slots=True, eq=False)
class Found:
    """A message that is due and not leased, where it was found, and whether it can be claimed.

    Not frozen: one is made for every message, and a frozen one takes three times as long.
    """

    range: Range[Place]
    due_at: datetime
    id: int
    size: int
    too_large: bool
    waits_for: bytes | None
    """Its ordering key, unless it holds it."""
    standing: int

    @property
    def key(self) -> tuple[bytes, bytes] | None:
        """The queue, and the ordering key unless it holds that already."""
        return None if self.waits_for is None else (self.range.queue.encode(), self.waits_for)


def found_in(range_: Range[Place], row: Sequence[Any]) -> Found:
    """What was found there. An invalid due time counts as long ago: the claim that takes the message handles it."""
    due_at, id_, size, too_large, waits_for, standing = row
    readable = due_at.replace(tzinfo=UTC) if isinstance(due_at, datetime) else _LONG_AGO
    return Found(range_, readable, id_, int(size), bool(too_large), waits_for, int(standing))


class Walk:
    """Progress through a range: what was handled so far, and which ids further on not to try again."""

    def __init__(self, range_: Range[Place], known: Iterable[int]) -> None:
        self.origin = range_
        self.range = range_
        self.tried = set(known)
        self.over = False

    def went(self, found: Sequence[Found], *, asked_for: int) -> None:
        """Advance past the leading ones that were handled; if all were, and fewer came than asked for, it is over."""
        dealt_with = [each.standing != 0 or each.id in self.tried for each in found]
        done = dealt_with.index(False) if False in dealt_with else len(found)
        readable = [each for each in found[:done] if each.due_at != _LONG_AGO]
        if readable:
            self.range = after(self.range, (readable[-1].due_at, readable[-1].id))
            self.tried.difference_update(each.id for each in readable)
        self.over = done == len(found) and len(found) < asked_for


@dataclass(slots=True)
class Look:
    """One look: its time, what was locked so far, and what is left to do before the commit."""

    wanted: Wanted
    """Its queues are in the order in which they are served."""
    watched: tuple[str, ...]
    """The queues that decide when to look again: these, and those that may be probed."""
    limit: int
    """How many messages it may take."""
    max_bytes: int
    """How many bytes it may take."""
    needs_one: bool
    """Whether one message is taken regardless of its size."""
    now: Sql
    """The time of this look: the server's clock; once read, the value it showed."""
    moment: datetime = LATEST
    beside: Beside | None = None
    """What is paused, if that is known."""
    paused: Sql = NEVER
    """Whether anything is paused: a condition that its first statement asks, if that is not known."""
    met_pauses: bool = False
    """Whether something is paused that was not known: then it stops before it takes anything."""
    in_use: set[tuple[str, int]] | None = None
    """The queues and levels at which something is due, if that was asked first."""
    first_in: datetime | None = None
    """When the first message at one of the other levels is due."""
    begun: bool = False
    taken: list[Sequence[Any]] = field(default_factory=list)
    bytes: int = 0
    unread: dict[int, Reason] = field(default_factory=dict)
    """What cannot be handed out, and why."""
    followers: list[Found] = field(default_factory=list)
    """What waits in line and slows claims down."""
    back: set[int] = field(default_factory=set)
    """Parked rows, locked, to unpark."""
    anchors: set[int] = field(default_factory=set)
    parked: set[int] = field(default_factory=set)
    spent: bool = False
    """Whether something was left out because of the byte limit."""
    again: bool = False
    """Whether it unblocked something, so that there may be more than it found."""
    stopped: bool = False
    """Whether it stopped before it had seen everything, to bound the scan."""

    @property
    def room(self) -> int:
        """How many more it may take."""
        return 0 if self.spent else self.limit - len(self.taken)

    @property
    def found_all(self) -> bool:
        """Whether there is no more than it found."""
        return self.room > 0 and not self.again and not self.stopped

    def ask(self, *statements: Sql) -> Verb[list[Answer]]:
        """The answers to these statements, in the transaction of this look."""
        begin = () if self.begun else ("begin",)
        self.begun = True
        answers: list[Answer] = yield (*begin, *statements)
        return answers[len(begin) :]

    def fitting(self, candidates: Iterable[Found]) -> Iterator[Found]:
        """As many of these as may be taken, in order; at least one, if there is none yet."""
        left = self.max_bytes - self.bytes
        first = self.needs_one and not self.taken
        room = self.room
        for each in candidates:
            if room == 0 or (each.size > left and not first):
                return
            yield each
            room, left, first = room - 1, left - each.size, False
