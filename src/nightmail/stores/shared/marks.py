"""Where a claim starts to scan.

A claim that always starts at the oldest due time scans rows it cannot take: followers of an ordering key that is held
and, where the database cannot remove settled rows at once, all of those too. So it starts where the last one found
something: at the mark, a place in the order of due times, one for each queue and level.

Messages can become available behind the mark: the commit of a slow transaction, an expired lease, a row that was
locked, a follower whose ordering key was freed, a clock set back. So a mark moves down as easily as up, a look that
comes back short goes on behind the marks, and once a second a look ignores the marks.

Settled rows cannot be removed while another session holds an old snapshot, and a look behind the marks then scans all
of them. Where that is expensive, a store may let looks that come back short go only a little behind the marks, until
the next look without marks is due. Where even that one never finishes in time, looks without marks go back only for a
limited time, doubled with each look.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

P = TypeVar("P", bound=Any)
"""A place in the order of due times, as the store represents it."""

LEVELS: Final = tuple(range(9, -1, -1))

LOOK_BEHIND_EVERY: Final = 1.0
"""Seconds: the longest a message may wait behind a mark."""
WORTH: Final = 10
"""Looks without marks may take a tenth of the time: if they take longer, they become rarer."""
CHEAP: Final = 0.01
"""Seconds: while looks without marks take no longer than this, every look that comes back short goes all the way."""
LATE: Final = 1.0
"""Seconds behind the marks: every look that comes back short goes at least this far."""
EVER: Final = 1e9
"""Seconds behind the marks: no look needs to go further."""


@dataclass(frozen=True, slots=True)
class Range(Generic[P]):
    """What to scan: a level of a queue, from a place (inclusive) or up to a place (exclusive), or all of it."""

    queue: str
    level: int
    start: P | None = None
    end: P | None = None


class Marks(Generic[P]):
    """The marks of one process. Times are seconds of any monotonic clock."""

    def __init__(self, back: Callable[[P, float], P] | None = None) -> None:
        """`back` returns the place some seconds before another. Without it, looks behind the marks go all the way."""
        self._back = back
        self._marks: dict[tuple[str, int], P] = {}
        self._looked_behind: dict[str, float] = {}
        self._under_way: dict[str, float] = {}
        """When the current look without marks started."""
        self._cost: dict[str, float] = {}
        self._interval: dict[str, float] = {}
        self._lowered: dict[tuple[str, int], P] = {}
        self._dear: set[str] = set()
        """Queues in which looks without marks are expensive."""
        self._dropped: dict[str, dict[int, P]] = {}
        """The marks before the last look without marks."""
        self._reach: dict[str, float] = {}
        """Queues in which a look without marks took too long, and how many seconds the next one goes back instead."""

    def forward(self, queue: str, now: float) -> list[Range[P]]:
        """From the marks on, the highest level first; from the beginning when a look without marks is due."""
        for level in LEVELS:
            lowered = self._lowered.pop((queue, level), None)
            mark = self._marks.get((queue, level))
            if lowered is not None and mark is not None and lowered < mark:
                self._marks[queue, level] = lowered
        if self._time_to_look_behind(queue, now):
            self._looked_behind[queue] = self._under_way[queue] = now
            if queue in self._reach:
                self._reach_back(queue)
            else:
                self._dropped[queue] = self._drop(queue)
        return [Range(queue, level, start=self._marks.get((queue, level))) for level in LEVELS]

    def behind(self, queue: str, now: float | None = None) -> Iterator[Range[P]]:
        """The ranges behind the marks, for a look that found too little in front of them. Without `now`, all of it."""
        back = self._back if now is not None and self._goes_not_all_the_way(queue, now) else None
        for level in LEVELS:
            if (mark := self._marks.get((queue, level))) is not None:
                yield Range(queue, level, start=None if back is None else back(mark, LATE), end=mark)

    def spares(self, queue: str, now: float) -> bool:
        """Whether the look that starts now goes only a little behind the marks. Call it after `forward`."""
        return (
            self.is_dear(queue)
            and self._under_way.get(queue) != now
            and not self._time_to_look_behind(queue, now)
        )

    def is_dear(self, queue: str) -> bool:
        """Whether looks without marks are so expensive in this queue that other looks should skip them."""
        return self._back is not None and (queue in self._dear or queue in self._reach)

    def until_look_behind(self, queues: Iterable[str], now: float) -> float | None:
        """Seconds until the next look without marks of those queues where the look at `now` skipped it, if any did."""
        left = [
            self._looked_behind[queue] + self._interval.get(queue, LOOK_BEHIND_EVERY) - now
            for queue in queues
            if self.spares(queue, now)
        ]
        return min(left, default=None)

    def found(self, taken: Iterable[tuple[str, int, P]]) -> None:
        """The last look took these messages, each with its queue and level: the next starts at the first of them."""
        self._marks.update(_lowest(taken))

    def lower(self, available: Iterable[tuple[str, int, P]]) -> None:
        """These became available again, each with its queue and level: the next look starts no later than at them.

        The current look may have missed them, so this applies from the next one on, whatever the current one finds.
        """
        for where, place in _lowest(available).items():
            before = self._lowered.get(where)
            if before is None or place < before:
                self._lowered[where] = place

    def looked(self, queues: Iterable[str], up_to: P) -> None:
        """The last look came back short and saw everything up to this place: the mark, where looks are expensive.

        Otherwise a level in which nothing was found would be scanned from the beginning each time.
        """
        for queue in queues:
            if self.is_dear(queue):
                self._marks.update(((queue, level), up_to) for level in LEVELS)

    def gave_up(self, queues: Iterable[str], started: float, ended: float, place: P) -> None:
        """The look that started at `started` took until `ended`, too long, and found nothing.

        The next looks start at the marks from before it, or shortly before `place`, the end. Looks behind that go back
        for a limited time, each twice as long as the last.
        """
        if self._back is None:
            return
        begin = self._back(place, ended - started)
        for queue in queues:
            if not self.spares(queue, started):
                reach = self._reach.get(queue)
                self._reach[queue] = LATE if reach is None else max(reach / 4, LATE)
                self._reckon(queue, 0.0 if reach is None else (ended - started) / 4)
                self._looked_behind[queue] = ended
                self._under_way.pop(queue, None)
                before = self._dropped.pop(queue, {})
                for level in LEVELS:
                    known = [
                        mark
                        for mark in (self._marks.get((queue, level)), before.get(level))
                        if mark is not None
                    ]
                    self._marks[queue, level] = max(known, default=begin)

    def took(
        self, queues: Iterable[str], started: float, ended: float, *, came_back_short: bool = False
    ) -> None:
        """The look that started at `started` took until `ended`. One that came back short went behind the marks too.

        Slow looks without marks are made less often. A single slow one says nothing: the server, the network or this
        process may have stalled. So the faster of the last two counts.
        """
        for queue in queues:
            if came_back_short and not self.spares(queue, started):
                self._looked_behind[queue] = self._under_way[queue] = started
            if self._under_way.pop(queue, None) == started:
                self._dropped.pop(queue, None)
                self._reckon(queue, ended - started)
                if came_back_short and queue in self._reach:
                    self._reach_further(queue)

    def drop(self, queues: Iterable[str]) -> None:
        """Start at the beginning in these queues: a message came back to its old place."""
        for queue in queues:
            self._drop(queue)

    def forget(self) -> None:
        """Start over: after an error or a new connection nothing is known."""
        self._marks.clear()
        self._looked_behind.clear()
        self._under_way.clear()
        self._cost.clear()
        self._interval.clear()
        self._lowered.clear()
        self._dear.clear()
        self._dropped.clear()
        self._reach.clear()

    def _time_to_look_behind(self, queue: str, now: float) -> bool:
        last = self._looked_behind.get(queue)
        # A clock set back counts as well: messages due now may lie behind the mark.
        return last is None or now < last or now - last >= self._interval.get(queue, LOOK_BEHIND_EVERY)

    def _goes_not_all_the_way(self, queue: str, now: float) -> bool:
        return queue in self._reach or self.spares(queue, now)

    def _reach_back(self, queue: str) -> None:
        for level in LEVELS:
            mark = self._marks.get((queue, level))
            if mark is not None and self._back is not None:
                self._dropped.setdefault(queue, {})[level] = mark
                self._marks[queue, level] = self._back(mark, self._reach[queue])

    def _reach_further(self, queue: str) -> None:
        self._reach[queue] *= 2
        if self._reach[queue] > EVER:
            del self._reach[queue]

    def _reckon(self, queue: str, cost: float) -> None:
        before, self._cost[queue] = self._cost.get(queue, 0.0), cost
        counts = min(cost, before)
        self._interval[queue] = max(LOOK_BEHIND_EVERY, WORTH * counts)
        if counts > CHEAP:
            self._dear.add(queue)
        else:
            self._dear.discard(queue)

    def _drop(self, queue: str) -> dict[int, P]:
        """Forget the marks of a queue and return them."""
        dropped = {level: self._marks.pop((queue, level), None) for level in LEVELS}
        return {level: mark for level, mark in dropped.items() if mark is not None}


def _lowest(places: Iterable[tuple[str, int, P]]) -> dict[tuple[str, int], P]:
    """The first of these places in each queue and level."""
    lowest: dict[tuple[str, int], P] = {}
    for queue, level, place in places:
        before = lowest.get((queue, level))
        if before is None or place < before:
            lowest[queue, level] = place
    return lowest
