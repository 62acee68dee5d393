"""Where a claim starts to look.

A claim that always begins at the oldest due time walks over whatever it may not take: followers of an ordering key that
is held and, where the database cannot remove at once what was settled, all of that too. So it begins where the last one
found something: at the mark, a place in the order of due times, one for each queue and level.

Something may become available behind the mark: the commit of a slow transaction, an expired lease, a row that was
locked, a follower whose ordering key was freed, a clock set back. Hence a mark goes down as easily as up, a look that
comes back short goes on behind the marks, and once a second there are no marks.

What was settled cannot be removed while another session holds an old snapshot, and a look behind the marks then walks
over all of it. Where that is dear, a store may have looks that come back short go only a little behind the marks, until
it is time for the next look without marks. And where that never ends in time, there are looks that go back for a while,
and the next for twice as long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

P = TypeVar("P", bound=Any)
"""A place in the order in which messages are due, as the store writes it."""

LEVELS: Final = tuple(range(9, -1, -1))

LOOK_BEHIND_EVERY: Final = 1.0
"""Seconds: for so long at most may something wait behind a mark."""
WORTH: Final = 10
"""A look without marks may take a tenth of the time: when each takes longer than that, they get rarer."""
CHEAP: Final = 0.01
"""Seconds: a look without marks that takes no longer is made by every look that comes back short."""
LATE: Final = 1.0
"""Seconds behind the marks: so far goes every look that comes back short."""
EVER: Final = 1e9
"""Seconds behind the marks: no look need go further."""


@dataclass(frozen=True, slots=True)
class Range(Generic[P]):
    """What to look through: a level of a queue, from a place (inclusive) or up to a place (exclusive), or all of it."""

    queue: str
    level: int
    start: P | None = None
    end: P | None = None


class Marks(Generic[P]):
    """The marks of one process. Times are seconds of any clock that goes on."""

    def __init__(self, back: Callable[[P, float], P] | None = None) -> None:
        """`back` gives the place so many seconds before another. Without it, looks behind the marks go all the way."""
        self._back = back
        self._marks: dict[tuple[str, int], P] = {}
        self._looked_behind: dict[str, float] = {}
        self._under_way: dict[str, float] = {}
        """When the look without marks began that is under way."""
        self._cost: dict[str, float] = {}
        self._interval: dict[str, float] = {}
        self._lowered: dict[tuple[str, int], P] = {}
        self._dear: set[str] = set()
        """Queues in which looks without marks are not cheap."""
        self._dropped: dict[str, dict[int, P]] = {}
        """The marks there were before the last look without marks."""
        self._reach: dict[str, float] = {}
        """Queues in which a look without marks took too long, and how many seconds the next one goes back instead."""

    def forward(self, queue: str, now: float) -> list[Range[P]]:
        """From the marks on, the highest level first; from the beginning when it is time to look behind them."""
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
        """What lies behind the marks: for a look that found too little before it. Without `now`, all of it."""
        back = self._back if now is not None and self._goes_not_all_the_way(queue, now) else None
        for level in LEVELS:
            if (mark := self._marks.get((queue, level))) is not None:
                yield Range(queue, level, start=None if back is None else back(mark, LATE), end=mark)

    def spares(self, queue: str, now: float) -> bool:
        """Whether the look that begins now goes only a little behind the marks. Asked after `forward`."""
        return (
            self.is_dear(queue)
            and self._under_way.get(queue) != now
            and not self._time_to_look_behind(queue, now)
        )

    def is_dear(self, queue: str) -> bool:
        """Whether looks without marks cost so much in this queue that others may be spared them."""
        return self._back is not None and (queue in self._dear or queue in self._reach)

    def until_look_behind(self, queues: Iterable[str], now: float) -> float | None:
        """Seconds until one of these has the look without marks of which the look at `now` was spared, if any was."""
        left = [
            self._looked_behind[queue] + self._interval.get(queue, LOOK_BEHIND_EVERY) - now
            for queue in queues
            if self.spares(queue, now)
        ]
        return min(left, default=None)

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

    def looked(self, queues: Iterable[str], up_to: P) -> None:
        """The last look came back short and has seen what there was up to this place: the mark, where looks are dear.

        Otherwise a level in which nothing was found would be looked through from the beginning each time.
        """
        for queue in queues:
            if self.is_dear(queue):
                self._marks.update(((queue, level), up_to) for level in LEVELS)

    def gave_up(self, queues: Iterable[str], started: float, ended: float, place: P) -> None:
        """The look that began at `started` took until `ended`, too long, and found nothing.

        The next begin where it would have begun, or shortly before `place`, the end. Looks behind that go back for a
        while, each for twice as long as the last.
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
        """The look that began at `started` took until `ended`. One that came back short has been behind the marks too.

        Looks without marks that are slow are made less often. One alone says nothing: the server, the network or this
        process may have stood still. So of the last two the quicker one counts.
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
        """Begin at the beginning in these queues: something came back to its old place."""
        for queue in queues:
            self._drop(queue)

    def forget(self) -> None:
        """Begin again: after an error or a new connection nothing is known."""
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
        # A clock set back counts as well: what it was later than is behind the mark now.
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
        """Forget the marks of a queue; what they were."""
        dropped = {level: self._marks.pop((queue, level), None) for level in LEVELS}
        return {level: mark for level, mark in dropped.items() if mark is not None}


def _lowest(places: Iterable[tuple[str, int, P]]) -> dict[tuple[str, int], P]:
    """The first of these in each queue and level."""
    lowest: dict[tuple[str, int], P] = {}
    for queue, level, place in places:
        before = lowest.get((queue, level))
        if before is None or place < before:
            lowest[queue, level] = place
    return lowest
