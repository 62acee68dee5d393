"""Where a claim starts to look.

A claim that always begins at the oldest due time walks over whatever it may not take: followers of an ordering key that
is held and, where the database cannot remove at once what was settled, all of that too. So it begins where the last one
found something: at the mark, a place in the order of due times, one for each queue and level.

Something may become available behind the mark: the commit of a slow transaction, an expired lease, a row that was
locked, a follower whose ordering key was freed, a clock set back. Hence a mark goes down as easily as up, a look that
comes back short goes on behind the marks, and once a second there are no marks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

P = TypeVar("P", bound=Any)
"""A place in the order in which messages are due, as the store writes it."""

LEVELS: Final = tuple(range(9, -1, -1))

LOOK_BEHIND_EVERY: Final = 1.0
"""Seconds: for so long at most may something wait behind a mark."""
WORTH: Final = 10
"""A look without marks may take a tenth of the time: when each takes longer than that, they get rarer."""


@dataclass(frozen=True, slots=True)
class Range(Generic[P]):
    """What to look through: a level of a queue, from a place (inclusive) or up to a place (exclusive), or all of it."""

    queue: str
    level: int
    start: P | None = None
    end: P | None = None


class Marks(Generic[P]):
    """The marks of one process. Times are seconds of any clock that goes on."""

    def __init__(self) -> None:
        self._marks: dict[tuple[str, int], P] = {}
        self._looked_behind: dict[str, float] = {}
        self._cost: dict[str, float] = {}
        self._interval: dict[str, float] = {}
        self._lowered: dict[tuple[str, int], P] = {}

    def forward(self, queue: str, now: float) -> list[Range[P]]:
        """From the marks on, the highest level first; from the beginning when it is time to look behind them."""
        for level in LEVELS:
            lowered = self._lowered.pop((queue, level), None)
            mark = self._marks.get((queue, level))
            if lowered is not None and mark is not None and lowered < mark:
                self._marks[queue, level] = lowered
        if self._time_to_look_behind(queue, now):
            self._drop(queue)
            self._looked_behind[queue] = now
        return [Range(queue, level, start=self._marks.get((queue, level))) for level in LEVELS]

    def behind(self, queue: str) -> Iterator[Range[P]]:
        """What lies behind the marks: for a look that found too little before it."""
        for level in LEVELS:
            if (mark := self._marks.get((queue, level))) is not None:
                yield Range(queue, level, end=mark)

    def found(self, taken: Iterable[tuple[str, int, P]]) -> None:
        """The last look took these messages, each with its queue and level: the next begins at the first of them."""
        self._marks.update(_lowest(taken))

    def lower(self, available: Iterable[tuple[str, int, P]]) -> None:
        """These became available again, each with its queue and level: the next look does not begin behind them.

        A look that is under way may have missed them, so this counts from the next one on, whatever that one finds.
        """
        for where, place in _lowest(available).items():
            before = self._lowered.get(where)
            if before is None or place < before:
                self._lowered[where] = place

    def took(self, queues: Iterable[str], started: float, ended: float) -> None:
        """The look that began at `started` took until `ended`.

        Looks without marks that are slow are made less often. One alone says nothing: the server, the network or this
        process may have stood still. So of the last two the quicker one counts.
        """
        for queue in queues:
            if self._looked_behind.get(queue) == started:
                cost = ended - started
                before, self._cost[queue] = self._cost.get(queue, 0.0), cost
                self._interval[queue] = max(LOOK_BEHIND_EVERY, WORTH * min(cost, before))

    def drop(self, queues: Iterable[str]) -> None:
        """Begin at the beginning in these queues: something came back to its old place."""
        for queue in queues:
            self._drop(queue)

    def forget(self) -> None:
        """Begin again: after an error or a new connection nothing is known."""
        self._marks.clear()
        self._looked_behind.clear()
        self._cost.clear()
        self._interval.clear()
        self._lowered.clear()

    def _time_to_look_behind(self, queue: str, now: float) -> bool:
        last = self._looked_behind.get(queue)
        # A clock set back counts as well: what it was later than is behind the mark now.
        return last is None or now < last or now - last >= self._interval.get(queue, LOOK_BEHIND_EVERY)

    def _drop(self, queue: str) -> None:
        for level in LEVELS:
            self._marks.pop((queue, level), None)


def _lowest(places: Iterable[tuple[str, int, P]]) -> dict[tuple[str, int], P]:
    """The first of these in each queue and level."""
    lowest: dict[tuple[str, int], P] = {}
    for queue, level, place in places:
        before = lowest.get((queue, level))
        if before is None or place < before:
            lowest[queue, level] = place
    return lowest
