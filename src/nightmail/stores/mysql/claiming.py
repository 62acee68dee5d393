"""Claims: which ranges to look through, and what of that is taken.

    find      candidates of all levels, in order, by one statement that locks nothing. None at all: no transaction
    take      begin, and lock the first of them. What others have locked or taken is made up for by a wider search
    lease     write the leases, ask when to look again, and commit. Only after that is anything handed out

A moment is read from the server's clock at the first step and used for all of them.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any, Final
from uuid import UUID

from nightmail.clock import Clock
from nightmail.errors import StoreUnavailable
from nightmail.message import Delivery
from nightmail.store import Claimed
from nightmail.stores._fairness import FairShare
from nightmail.stores._marks import LEVELS, Marks, Range
from nightmail.stores._sql import Statement
from nightmail.stores.mysql import rows
from nightmail.stores.mysql.errors import is_worth_another_look
from nightmail.stores.mysql.lane import Lane
from nightmail.stores.mysql.link import Answer, Link
from nightmail.stores.mysql.moments import LATEST, aware, later, now
from nightmail.stores.mysql.portions import Portions
from nightmail.stores.mysql.ranges import Place, within
from nightmail.stores.mysql.retries import Retries
from nightmail.stores.mysql.text import Sql, Value, filled, literal, several, union

WIDER: Final = 4
"""By how much a search is widened when others have locked what it found."""
LOOKS: Final = 8
"""How often in a row a claim looks because others were quicker: they took an ordering key, or committed first."""
LONGEST: Final = 2.0
"""Seconds for which a claim goes on beside quicker ones though it has something to hand out."""
NOTHING: Final = Claimed((), None)
AT_ONCE: Final = timedelta(0)

_AGE: Final = attrgetter("due_at", "id")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a claim is asked for; its queues in the order in which they are served."""

    queues: tuple[str, ...]
    limit: int
    lease: timedelta
    token: UUID


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A message that could be claimed, and where it was found."""

    range: Range[Place]
    due_at: datetime
    id: int


@dataclass(slots=True)
class _Look:
    """One look: at which moment, what was locked so far, and what need not be tried again."""

    wanted: Wanted
    limit: int
    """How much of what is wanted it is to take."""
    now: Sql
    """The moment of this look: the server's clock, and once it was read, what it showed."""
    moment: datetime = LATEST
    taken: list[Sequence[Any]] = field(default_factory=list)
    # No message has the id 0, and an empty list would let nothing pass.
    tried: list[int] = field(default_factory=lambda: [0])
    begun: bool = False

    @property
    def room(self) -> int:
        return self.limit - len(self.taken)


class Claims:
    """What claims of one process remember from one to the next: marks, shares, whose turn it is."""

    def __init__(
        self, lane: Lane, statements: Mapping[str, Statement], clock: Clock, retries: Retries
    ) -> None:
        self._lane = lane
        self._statements = statements
        self._clock = clock
        self._retries = retries
        self._marks: Marks[Place] = Marks()
        self._shares = FairShare()
        self._turns: defaultdict[frozenset[str], int] = defaultdict(int)

    async def claim(self, queues: Sequence[str], *, limit: int, lease: timedelta, token: UUID) -> Claimed:
        """See `Store.claim`."""
        named = tuple(dict.fromkeys(queues))
        if not named or limit <= 0:
            return NOTHING
        wanted = Wanted(self._in_turn(named), limit, lease, token)
        # Made here: what was committed before the lane has to begin anew is still to be handed out.
        portions = Portions(wanted.queues, limit, self._shares)
        return await self._lane.run(lambda link: self._claim(link, wanted, portions))

    async def recall(self, queues: Sequence[str], token: UUID) -> Sequence[Delivery]:
        """See `Store.recall`."""
        values: dict[str, Value] = {
            "queues": [queue.encode() for queue in queues],
            "levels": LEVELS,
            "token": token,
            "now": now(self._clock),
        }
        (found,) = await self._lane.run(lambda link: link.ask(self._filled("recall", values)))
        recalled = [rows.delivery(row, token, aware(row[15]), row[11]) for row in found.rows]
        return sorted(recalled, key=lambda delivery: (-delivery.priority, delivery.due_at, delivery.id))

    async def _claim(self, link: Link, wanted: Wanted, portions: Portions) -> Claimed:
        """All that is wanted or all there is; only if others go on being quicker it is less, and worth another look."""
        deadline = time.monotonic() + LONGEST
        refusals = 0
        try:
            while refusals < LOOKS and not (portions.ids and time.monotonic() > deadline):
                try:
                    found_all, next_in = await self._portion(link, wanted, portions)
                except Exception as error:
                    if not is_worth_another_look(error):
                        raise
                    await link.ask("rollback")
                    portions.refused()
                    await self._retries.pause(error, refusals)
                    refusals += 1
                else:
                    if found_all or not portions.size:
                        return Claimed(portions.in_order(), next_in)
                    refusals = 0
            if portions.ids:
                return Claimed(portions.in_order(), AT_ONCE)
            raise StoreUnavailable("other claims were quicker each time: look again")
        except BaseException:
            self._marks.forget()
            raise

    async def _portion(self, link: Link, wanted: Wanted, portions: Portions) -> tuple[bool, timedelta | None]:
        """Take a portion; whether that was all there is, and when there may be more."""
        look = _Look(wanted, portions.size, now(self._clock))
        look.tried += portions.ids
        next_in = await self._look(link, look)
        portions.add(self._deliveries(look))
        return look.room > 0, next_in

    async def _look(self, link: Link, look: _Look) -> timedelta | None:
        started = self._seconds()
        wanted = look.wanted
        await self._take_from(
            link, look, [each for q in wanted.queues for each in self._marks.forward(q, started)]
        )
        if look.room:
            await self._take_from(link, look, [each for q in wanted.queues for each in self._marks.behind(q)])
        next_in = await self._lease(link, look)
        self._marks.took(wanted.queues, started, self._seconds())
        return next_in

    # ----------------------------------------------------------------------------------------- find

    async def _find(
        self, link: Link, look: _Look, ranges: Sequence[Range[Place]], limit: int
    ) -> list[_Candidate]:
        """What could be claimed in these ranges: as many of each, in the order of the ranges and in theirs."""
        values: dict[str, Value] = {
            "now": look.now,
            "in_line": self._filled("in_line", {"now": look.now}),
            "tried": look.tried,
            "limit": limit,
        }
        branches = [f"(select -1 as place, {look.now} as due_at, 0 as id)"]
        for place, range_ in enumerate(ranges):
            values |= {"place": place, "queue": range_.queue.encode()}
            values |= {"level": range_.level, "within": within(range_)}
            branches.append(self._filled("candidates", values))
        (found,) = await link.ask(union(branches))
        # Sorted: the server need not keep the branches in order. The moment comes first.
        (_, moment, _), *rest = sorted(tuple(row) for row in found.rows)
        look.now = Sql(literal(aware(moment)))
        look.moment = aware(moment)
        return [_Candidate(ranges[place], due_at, id_) for place, due_at, id_ in rest]

    # ----------------------------------------------------------------------------------------- take

    async def _take_from(self, link: Link, look: _Look, ranges: Sequence[Range[Place]]) -> None:
        """Take what is wanted from these ranges; come back short only when there is no more."""
        limit = look.room
        while ranges and look.room:
            candidates = await self._find(link, look, ranges, limit)
            # Before the search is widened: a range that gave as many as were asked for may hold more.
            fullest = max(Counter(each.range for each in candidates).values(), default=0)
            more = fullest >= limit
            chosen = self._chosen(candidates, look)
            got = await self._lock(link, look, chosen)
            if chosen and not got:
                # All of them are locked by others, and perhaps many more: take any that are free, level by level.
                limit *= WIDER
                chosen = candidates
                for range_ in ranges:
                    await self._lock(link, look, [each for each in candidates if each.range is range_])
            if len(chosen) == len(candidates) and not more:
                return

    def _chosen(self, candidates: Sequence[_Candidate], look: _Look) -> list[_Candidate]:
        """As many as are wanted: queue by queue, the share of the oldest first, then by level."""
        chosen: list[_Candidate] = []
        for queue in look.wanted.queues:
            room = look.room - len(chosen)
            own = [each for each in candidates if each.range.queue == queue]
            # Where only one level has anything due, its oldest come first anyway.
            several = len({each.range.level for each in own}) > 1
            share = self._shares.reserved(queue, room) if several else 0
            oldest = sorted(own, key=_AGE)[:share]
            ids = {each.id for each in oldest}
            chosen += [*oldest, *(each for each in own if each.id not in ids)][:room]
        return chosen

    async def _lock(self, link: Link, look: _Look, chosen: Sequence[_Candidate]) -> int:
        """Lock these, up to what is wanted; how many could be."""
        if not chosen or not look.room:
            return 0
        ids = [each.id for each in chosen]
        look.tried += ids
        take = self._filled("take", {"ids": several(ids), "now": look.now, "limit": look.room})
        begin = () if look.begun else ("begin",)
        look.begun = True
        locked = (await link.ask(*begin, take))[-1].rows
        look.taken += locked
        return len(locked)

    # ---------------------------------------------------------------------------------------- lease

    async def _lease(self, link: Link, look: _Look) -> timedelta | None:
        """Write the leases, and commit; when it is worth looking again.

        The commit comes last. If the question failed after it, what is leased already would not be handed out; and of
        a commit in the middle of a packet a Galera cluster may say that it went well though it did not.
        """
        upcoming = [self._upcoming(look)] if look.room else []
        packet = upcoming
        if look.taken:
            values: dict[str, Value] = {
                "token": look.wanted.token,
                "now": look.now,
                "until": later(look.now, look.wanted.lease),
                "ids": [row[0] for row in look.taken],
            }
            packet = [self._filled("lease", values), *upcoming, Sql("commit")]
        elif look.begun:
            packet = [Sql("rollback"), *upcoming]
        answers = await link.ask(*packet)
        return _next_in(look, answers[1 if look.begun else 0]) if upcoming else None

    def _upcoming(self, look: _Look) -> Sql:
        """When the next message of these queues is due, or the next lease on one of them ends."""
        branches: list[Sql] = []
        for queue in look.wanted.queues:
            values: dict[str, Value] = {"queue": queue.encode(), "now": look.now, "levels": LEVELS}
            branches += [self._filled("coming", {**values, "level": level}) for level in LEVELS]
            branches.append(self._filled("expiring", values))
        return union(branches)

    def _deliveries(self, look: _Look) -> list[Delivery]:
        """What this look leased."""
        taken = [rows.delivery(row, look.wanted.token, look.moment, row[11] + 1) for row in look.taken]
        self._marks.found((each.queue, each.priority, (each.due_at, each.id)) for each in taken)
        return taken

    # --------------------------------------------------------------------------------------- inside

    def _in_turn(self, queues: tuple[str, ...]) -> tuple[str, ...]:
        """These queues, beginning with another one each time."""
        key = frozenset(queues)
        first = self._turns[key] % len(queues)
        self._turns[key] += 1
        return queues[first:] + queues[:first]

    def _filled(self, name: str, values: Mapping[str, Value]) -> Sql:
        return filled(self._statements[name], values)

    def _seconds(self) -> float:
        moment = self._clock.now()
        return time.monotonic() if moment is None else moment.timestamp()


def _next_in(look: _Look, upcoming: Answer) -> timedelta | None:
    moments = [aware(row[0]) for row in upcoming.rows if row[0] is not None]
    return min(moments) - look.moment if moments else None
