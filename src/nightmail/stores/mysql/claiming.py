"""Claims: which ranges to search, and what to take from them.

    find      what is due at all levels, in order, by one statement that locks nothing. If nothing is: no transaction
    take      begin, and lock the first of it. What others have locked or taken is replaced by searching further
    lease     write the leases, ask when to look again, and commit. Only after that is anything handed out

The first statement also asks whether anything is paused. If so, the pauses are read, and the claim starts again beside
them (see `pausing`).

Due times are compared with the server's clock as the first step read it; leases begin when they are written.
"""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from operator import attrgetter
from typing import Any, Final

from nightmail.clock import Clock
from nightmail.errors import StoreUnavailable
from nightmail.limits import MAX_STORED_HEADERS_BYTES
from nightmail.message import Delivery
from nightmail.outcome import Reason
from nightmail.store import Claimed
from nightmail.stores.mysql import rows
from nightmail.stores.mysql.errors import is_worth_another_look
from nightmail.stores.mysql.lines import MOST_FOLLOWERS, Lines
from nightmail.stores.mysql.look import Found, Look, Walk, found_in
from nightmail.stores.mysql.pausing import Beside, Pauses
from nightmail.stores.mysql.portions import Portions
from nightmail.stores.mysql.ranges import Place, within
from nightmail.stores.mysql.requests import SERVER, Answer, Pause, Server
from nightmail.stores.mysql.retries import Retries
from nightmail.stores.mysql.text import ALWAYS, NEVER, Queries, Sql, Value, listed, literal, several, union
from nightmail.stores.mysql.times import aware, later, now
from nightmail.stores.shared.fairness import FairShare
from nightmail.stores.shared.marks import LEVELS, Marks, Range
from nightmail.stores.shared.wanted import Wanted
from nightmail.stores.sql.verbs import MakeVerb, Verb

WIDER: Final = 4
"""The factor by which a search widens when it found little that could be taken."""
WIDEST: Final = 4000
FEW_QUEUES: Final = 5
"""With more queues than this, first ask at which levels something is due, rather than search them all."""
LOOKS: Final = 8
"""How often in a row a claim retries because others were faster: they took an ordering key, or committed first."""
MOST_IN_LINE: Final = 200
"""How many messages that wait for their ordering keys are read to see whether anything is available. Beyond that, a
claim finds out."""
LONGEST: Final = 2.0
"""Seconds after which a claim stops searching."""

_AGE: Final = attrgetter("due_at", "id")
ZERO: Final = timedelta(0)


class Claims:
    """What claims of one process remember between calls: marks, shares, and which queue goes first."""

    def __init__(
        self, sql: Queries, clock: Clock, retries: Retries, pauses: Pauses, *, max_body_bytes: int
    ) -> None:
        self._sql = sql
        self._clock = clock
        self._retries = retries
        self._pauses = pauses
        self._max_body_bytes = max_body_bytes
        self._lines = Lines(sql)
        self._marks: Marks[Place] = Marks()
        self._shares = FairShare()
        self._turns: defaultdict[frozenset[str], int] = defaultdict(int)

    def claim(self, wanted: Wanted) -> MakeVerb[Claimed]:
        """See `Store.claim`."""
        queues = self._in_turn(wanted.queues)
        # Made once, not by each attempt: what was committed before a retry must still be handed out.
        portions = Portions(queues, wanted.limit, self._shares)
        return partial(self._claim, replace(wanted, queues=queues), portions)

    def look_ahead(self, queues: Sequence[str]) -> Verb[dict[str, timedelta]]:
        """See `LooksAhead.look_ahead`. What is leased is due too: then a claim has to tell until when."""
        # Where something is paused, only a claim knows until when.
        expected = {queue: ZERO for queue in queues if self._pauses.are_known([queue])}
        others = [queue for queue in queues if queue not in expected]
        found: Answer = yield self._levels(others, now(self._clock), NEVER)
        for place, _, first, moment, _ in found.rows:
            # No date is a time that has come: the claim buries it.
            next_in = max(first - moment, ZERO) if isinstance(first, datetime) else ZERO
            expected[others[place]] = min(next_in, expected.get(others[place], next_in))
        return expected

    def look_everywhere(self) -> None:
        """Make the next claim start from the oldest: a message was returned that keeps its position."""
        self._marks.forget()

    def _claim(self, wanted: Wanted, portions: Portions) -> Verb[Claimed]:
        try:
            if self._pauses.are_known(wanted.queues):
                return (yield from self._claim_beside(wanted, portions))
            return (yield from self._take_all(wanted, portions))
        except BaseException:
            self._marks.forget()
            raise

    def _take_all(self, wanted: Wanted, portions: Portions, beside: Beside | None = None) -> Verb[Claimed]:
        """All that is wanted or all there is; less, with `full` set, only if others keep being faster or at a limit."""
        deadline = time.monotonic() + LONGEST
        refusals = 0
        while refusals < LOOKS:
            try:
                look, next_in = yield from self._portion(wanted, portions, beside)
            except Exception as error:
                if not is_worth_another_look(error):
                    raise
                yield "rollback"
                portions.refused()
                yield Pause(self._retries.pause(error, refusals))
                refusals += 1
            else:
                if look.met_pauses:
                    return (yield from self._claim_beside(wanted, portions))
                if look.found_all:
                    return Claimed(portions.in_order(), next_in)
                if look.spent or look.stopped or not portions.size or time.monotonic() > deadline:
                    return Claimed(portions.in_order(), None, full=True)
                refusals = 0
            if portions.ids and time.monotonic() > deadline:
                break
        if portions.ids:
            return Claimed(portions.in_order(), None, full=True)
        raise StoreUnavailable("other claims were quicker each time: look again")

    def _portion(
        self, wanted: Wanted, portions: Portions, beside: Beside | None
    ) -> Verb[tuple[Look, timedelta | None]]:
        """Take a portion; returns what was found, and when there may be more."""
        left = wanted.max_bytes - portions.bytes
        watched = wanted.queues if beside is None else beside.watched
        look = Look(wanted, watched, portions.size, left, not portions.ids, now(self._clock))
        if beside is None:
            look.paused = self._pauses.any_in(wanted.queues)
        else:
            look.beside, look.moment = beside, beside.moment
        if len(look.watched) > FEW_QUEUES:
            yield from self._ask_what_is_in_use(look)
        started = self._seconds()
        forward = [each for q in wanted.queues for each in self._marks.forward(q, started)]
        yield from self._take_from(look, portions, _worth(look, forward))
        if look.met_pauses:
            return look, None
        if look.room and not look.stopped:
            behind = [each for q in wanted.queues for each in self._marks.behind(q)]
            yield from self._take_from(look, portions, _worth(look, behind))
        taken, next_in = yield from self._lease(look)
        self._marks.took(wanted.queues, started, self._seconds())
        self._marks.found((each.queue, each.priority, (each.due_at, each.id)) for each in taken)
        portions.add(taken, look.bytes)
        return look, next_in

    # --------------------------------------------------------------------------------- beside pauses

    def _claim_beside(self, wanted: Wanted, portions: Portions) -> Verb[Claimed]:
        """Leave out what is paused; take a probe first where one is due."""
        beside = yield from self._pauses.read(wanted.queues)
        for queue in tuple(beside.to_probe):
            # A claim that has taken something, before it was interrupted, has that to hand out.
            probe = None if portions.ids else (yield from self._probe(wanted, queue, beside))
            if probe is not None:
                return probe
        return (yield from self._take_all(replace(wanted, queues=beside.free), portions, beside))

    def _probe(self, wanted: Wanted, queue: str, beside: Beside) -> Verb[Claimed | None]:
        """Take one message of this queue and nothing else, if this process is the one to do so; `None` if it is not."""
        moment = Sql(literal(beside.moment))
        anything: Answer = yield self._sql(
            "available",
            place=0,
            queue=queue.encode(),
            levels=LEVELS,
            now=moment,
            standing=self._pauses.standing(moment, beside=True),
            limit=MOST_IN_LINE,
            open=ALWAYS,
        )
        # Asked first: otherwise idle workers would renew the pause and put it back, again and again.
        if not anything.rows:
            return None
        before = beside.to_probe[queue]
        renewed = yield from self._pauses.renew(queue, beside)
        if renewed is None:
            return None
        alone = replace(wanted, queues=(queue,), limit=1)
        portions = Portions(alone.queues, 1, self._shares)
        claimed = yield from self._take_all(alone, portions, Beside(beside.moment, alone.queues, {}))
        if claimed.deliveries:
            return Claimed(claimed.deliveries, None, full=True, probe=True)
        yield from self._pauses.put_back(queue, before, renewed)
        return claimed if claimed.full else None

    # ----------------------------------------------------------------------------------------- find

    def _ask_what_is_in_use(self, look: Look) -> Verb[None]:
        """Ask at which levels of the queues something is due: of many queues, few have anything."""
        queues = look.watched
        found: Answer = yield self._levels(queues, look.now, look.paused)
        look.in_use, look.paused = set(), NEVER
        for place, level, first, moment, paused in found.rows:
            look.met_pauses = bool(paused)
            if isinstance(first, datetime) and first > moment:
                look.first_in = min(aware(first), look.first_in or aware(first))
            else:
                look.in_use.add((queues[place], level))

    def _levels(self, queues: Sequence[str], moment: Sql, paused: Sql) -> Sql:
        """Asks for the first due time at each level of these queues."""
        return self._sql(
            "levels",
            queues=json.dumps([queue.encode().hex() for queue in queues]),
            levels=json.dumps(LEVELS),
            now=moment,
            paused=paused,
        )

    def _find(self, look: Look, walks: Sequence[Walk], limit: int) -> Verb[list[list[Found]]]:
        """What is due on these walks: up to `limit` on each, in order."""
        values: dict[str, Value] = {
            "now": look.now,
            "standing": self._pauses.standing(look.now, beside=look.beside is not None),
            "max_body_bytes": self._max_body_bytes,
            "max_header_bytes": MAX_STORED_HEADERS_BYTES,
            "limit": limit,
        }
        branches = [f"(select -1 as place, {look.now} as due_at, 0 as id, 0, 0, null, {look.paused})"]
        for place, walk in enumerate(walks):
            values |= {"place": place, "queue": walk.range.queue.encode()}
            # No message has the id 0, and an empty list would let nothing pass.
            values |= {
                "level": walk.range.level,
                "within": within(walk.range),
                "tried": listed((0, *walk.tried)),
            }
            branches.append(self._sql("candidates", **values))
        answer: Answer = yield union(branches)
        found: list[list[Found]] = [[] for _ in walks]
        for place, *row in answer.rows:
            if place == -1:
                look.moment = aware(row[0])
                look.now = Sql(literal(look.moment))
                look.met_pauses, look.paused = bool(row[5]), NEVER
            else:
                found[place].append(found_in(walks[place].origin, row))
        for each in found:
            # The server need not keep the order within a branch.
            each.sort(key=_AGE)
        return found

    # ----------------------------------------------------------------------------------------- take

    def _take_from(self, look: Look, portions: Portions, ranges: Sequence[Range[Place]]) -> Verb[None]:
        """Take what is wanted from these ranges; take less only when there is no more."""
        walks = [Walk(range_, portions.ids) for range_ in ranges]
        limit = look.room
        while walks and look.room and not look.stopped and not look.met_pauses:
            found = yield from self._find(look, walks, limit)
            if look.met_pauses:
                return
            look.followers += [each for some in found for each in some if each.standing]
            candidates = [each for some in found for each in some if not each.standing]
            more = {some[0].range for some in found if len(some) == limit}
            tried = yield from self._take(look, candidates, more)
            for walk, some in zip(walks, found, strict=True):
                walk.tried.update(each.id for each in some if each.id in tried)
                walk.went(some, asked_for=limit)
            walks = [walk for walk in walks if not walk.over]
            limit = min(limit * WIDER, WIDEST)
            if len(look.followers) >= MOST_FOLLOWERS:
                # The next look need not scan them. If none can be parked, others have them locked.
                look.stopped = (yield from self._lines.park(look)) > 0
        yield from self._lines.park(look)

    def _take(self, look: Look, candidates: Sequence[Found], more: set[Range[Place]]) -> Verb[set[int]]:
        """Lock as many of these as are wanted; returns the ids not to try again. `more`: ranges that may hold more."""
        too_large = [each for each in candidates if each.too_large]
        tried = yield from self._lock_unread(look, too_large)
        candidates = [each for each in candidates if not each.too_large]
        in_order = self._in_order(candidates, look, more)
        chosen = list(look.fitting(in_order))
        got = yield from self._lock(look, chosen)
        tried |= {each.id for each in chosen}
        if got == len(chosen):
            look.spent = len(chosen) < len(in_order)
        elif not got:
            # Others have locked all of them, and perhaps many more: lock those that are free, level by level.
            rest = [each for each in candidates if each.id not in tried]
            tried |= yield from self._take_free(look, rest, more)
        return tried

    def _take_free(self, look: Look, candidates: Sequence[Found], more: set[Range[Place]]) -> Verb[set[int]]:
        """Lock what others have not, in order; returns the ids not to try again."""
        tried: set[int] = set()
        by_range: defaultdict[Range[Place], list[Found]] = defaultdict(list)
        for each in candidates:
            by_range[each.range].append(each)
        for range_ in more:
            by_range.setdefault(range_, [])
        unfinished: set[str] = set()
        for range_, some in sorted(by_range.items(), key=lambda item: -item[0].level):
            # What is further back on a higher level goes before any lower level.
            if not look.room or range_.queue in unfinished:
                continue
            free = yield from self._lock_ids(look, some, look.room)
            chosen = list(look.fitting(each for each in some if each.id in free))
            yield from self._lock(look, chosen)
            look.spent = look.spent or len(chosen) < len(free)
            tried |= {each.id for each in some} - (free - {each.id for each in chosen})
            if range_ in more:
                unfinished.add(range_.queue)
        return tried

    def _in_order(self, candidates: Sequence[Found], look: Look, more: set[Range[Place]]) -> list[Found]:
        """Queue by queue, as many as are wanted: the share of the oldest first, then by level.

        Nothing below a level that was not read to its end: what is left there goes first.
        """
        by_queue: defaultdict[str, list[Found]] = defaultdict(list)
        for each in candidates:
            by_queue[each.range.queue].append(each)
        lowest: Counter[str] = Counter()
        for range_ in more:
            lowest[range_.queue] = max(lowest[range_.queue], range_.level)
        chosen: list[Found] = []
        for queue in look.wanted.queues:
            room = look.room - len(chosen)
            own = by_queue[queue]
            # Where only one level has anything due, its oldest come first anyway.
            several_levels = len({each.range.level for each in own}) > 1
            share = self._shares.reserved(queue, room) if several_levels else 0
            oldest = sorted(own, key=_AGE)[:share] if share else []
            ids, least = {each.id for each in oldest}, lowest[queue]
            rest = (each for each in own if each.id not in ids and each.range.level >= least)
            chosen += [*oldest, *rest][:room]
        return chosen

    def _lock(self, look: Look, chosen: Sequence[Found]) -> Verb[int]:
        """Lock these, and unpark the next in their lines; returns how many could be locked."""
        if not chosen:
            return 0
        take = self._sql("take", ids=several(each.id for each in chosen), now=look.now, limit=len(chosen))
        keys = {each.id: each.key for each in chosen if each.key is not None}
        locked, *lines = yield from look.ask(take, *self._lines.after(keys))
        stuck = yield from self._lines.bring_back_after(look, keys, lines)
        sizes = {each.id: each.size for each in chosen}
        taken = [row for row in locked.rows if row[0] not in stuck]
        for row in taken:
            if not rows.is_readable(row):
                look.unread[row[0]] = Reason.UNREADABLE
                look.again = look.again or row[5] is not None
                continue
            look.taken.append(row)
            look.bytes += sizes[row[0]]
        return len(taken)

    def _lock_ids(self, look: Look, candidates: Sequence[Found], limit: int) -> Verb[set[int]]:
        """Lock up to `limit` of these without reading them; returns their ids."""
        if not candidates:
            return set()
        ids = several(each.id for each in candidates)
        (locked,) = yield from look.ask(self._sql("take_unread", ids=ids, now=look.now, limit=limit))
        return {row[0] for row in locked.rows}

    def _lock_unread(self, look: Look, candidates: Sequence[Found]) -> Verb[set[int]]:
        """Lock what is too large to hand out; returns all ids given."""
        if not candidates:
            return set()
        locked = yield from self._lock_ids(look, candidates, len(candidates))
        keys = {each.id: each.key for each in candidates if each.key is not None and each.id in locked}
        if keys:
            lines = yield from look.ask(*self._lines.after(keys))
            locked -= yield from self._lines.bring_back_after(look, keys, lines)
            # Those behind them can now be claimed.
            look.again = True
        look.unread |= dict.fromkeys(locked, Reason.TOO_LARGE)
        return {each.id for each in candidates}

    # ---------------------------------------------------------------------------------------- lease

    def _lease(self, look: Look) -> Verb[tuple[list[Delivery], timedelta | None]]:
        """Write the leases, and commit; returns what was leased, and when to look again.

        The commit comes last. If the query failed after it, what is leased already would not be handed out; and a
        Galera cluster may report a commit in the middle of a packet as successful when it was not.
        """
        upcoming = [self._upcoming(look)] if look.found_all and look.watched else []
        server: Server = yield SERVER
        writes = self._writes(look, server.dialect.begun)
        if writes:
            packet = [*writes, *upcoming, Sql("commit")]
        else:
            packet = [Sql("rollback"), *upcoming] if look.begun else upcoming
        answers = (yield tuple(packet)) if packet else []
        if writes:
            answers.pop()
        next_in = _next_in(look, answers[-1].rows if upcoming else ()) if look.found_all else None
        if not look.taken:
            return [], next_in
        # The query right after the one that writes the leases.
        claimed_at = aware(answers[1].rows[0][0])
        token = look.wanted.token
        return [rows.delivery(row, token, claimed_at, rows.counted(row[11])) for row in look.taken], next_in

    def _writes(self, look: Look, begun: Sql) -> list[Sql]:
        """The statements that write what this look decided."""
        moment = now(self._clock)
        writes: list[Sql] = []
        if look.taken:
            values: dict[str, Value] = {
                "token": look.wanted.token,
                "now": moment,
                "until": later(moment, look.wanted.lease),
                "ids": listed(row[0] for row in look.taken),
                "begun": begun,
            }
            writes.append(self._sql("lease", **values))
            writes.append(self._sql("leased_at", id=look.taken[0][0]))
        for reason in dict.fromkeys(look.unread.values()):
            ids = [id_ for id_, why in look.unread.items() if why is reason]
            values = {"ids": ids, "reason": reason.value, "now": moment, "begun": begun}
            writes += [self._sql("bury_unfit", **values), self._sql("remove_buried", **values)]
        return writes + self._lines.writes(look, begun)

    def _upcoming(self, look: Look) -> Sql:
        """When the next message of these queues is due, or the next lease on one of them ends."""
        moment = look.now
        if look.in_use is None:
            levels = [(queue, level) for queue in look.watched for level in LEVELS]
            leased = [self._sql("expiring", now=moment, queue=queue.encode()) for queue in look.watched]
        else:
            levels = sorted(look.in_use)
            queues = [queue.encode() for queue in look.watched]
            leased = [self._sql("expiring_in", now=moment, queues=queues)]
        branches = [
            self._sql("upcoming", now=moment, queue=queue.encode(), level=level) for queue, level in levels
        ]
        return union([*branches, *leased])

    # --------------------------------------------------------------------------------------- inside

    def _in_turn(self, queues: tuple[str, ...]) -> tuple[str, ...]:
        """These queues, starting with a different one each time."""
        key = frozenset(queues)
        first = self._turns[key] % len(queues)
        self._turns[key] += 1
        return queues[first:] + queues[:first]

    def _seconds(self) -> float:
        moment = self._clock.now()
        return time.monotonic() if moment is None else moment.timestamp()


def _worth(look: Look, ranges: Sequence[Range[Place]]) -> Sequence[Range[Place]]:
    """Those of these ranges that may hold something."""
    in_use = look.in_use
    return ranges if in_use is None else [each for each in ranges if (each.queue, each.level) in in_use]


def _next_in(look: Look, upcoming: Sequence[Sequence[Any]]) -> timedelta | None:
    moments = [aware(row[0]) for row in upcoming if isinstance(row[0], datetime)]
    if look.first_in is not None:
        moments.append(look.first_in)
    if look.beside is not None and look.beside.next_end is not None:
        # It may have ended since it was read.
        moments.append(max(look.beside.next_end, look.moment))
    return min(moments) - look.moment if moments else None
