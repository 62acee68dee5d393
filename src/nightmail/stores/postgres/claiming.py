"""Claims: which ranges to scan, and in which order to hand out what was found."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias

from nightmail.clock import Clock
from nightmail.errors import StoreUnavailable
from nightmail.limits import MAX_STORED_HEADERS_BYTES
from nightmail.message import Delivery
from nightmail.outcome import ENDS, Reason, Release
from nightmail.store import Claimed, Settlement
from nightmail.stores.postgres.errors import LOOK_AGAIN, TOOK_TOO_LONG
from nightmail.stores.postgres.pausing import Pauses, Pausing
from nightmail.stores.postgres.times import MOST_BYTES, duration
from nightmail.stores.shared.fairness import FairShare
from nightmail.stores.shared.marks import Marks, Range
from nightmail.stores.shared.wanted import NOTHING, Wanted
from nightmail.stores.sql.statements import Statement
from nightmail.stores.sql.verbs import Ask, Verb

LOOKS: Final = 5
"""How often a claim tries again because another one took the ordering key that it was about to take."""

WINDOW: Final = 200
"""How many messages that wait for an ordering key a claim reads in each range."""
WINDOW_PER_MESSAGE: Final = 2
"""How many more it reads for each message that it may take."""
RECKONED_WITH: Final = 10
"""After a claim that ended with the window, how many claims start by asking for the first message of each key."""
KEYS: Final = 2_000
"""For how many ordering keys to read the first message when those in the window are not enough."""
FIRSTS_SECONDS: Final = 1.0
"""How long that answer is used: a message that becomes the first of its key meanwhile may wait this long."""
TOO_LONG: Final = 1.0
"""Seconds: a claim that the server canceled sooner than this was not canceled for scanning too much."""
MILLISECOND: Final = timedelta(milliseconds=1)
ZERO: Final = timedelta(0)
SECONDS_PER_QUEUE: Final = 0.0005
SECONDS_PER_MESSAGE: Final = 0.0001
"""What a claim takes when it passes over nothing. Time beyond that, marks can save."""

Place: TypeAlias = tuple[datetime, int]
"""A due time and an id: settled messages stay in the index until vacuumed, and many may share a due time."""
BEGINNING: Final[Place] = (datetime.min.replace(tzinfo=UTC), 0)
END: Final[Place] = (datetime.max.replace(tzinfo=UTC), 0)


def back(place: Place, seconds: float) -> Place:
    """The place this many seconds before another."""
    delta = timedelta(seconds=seconds)
    return max(place[0], BEGINNING[0] + delta) - delta, 0


class Firsts:
    """Messages that were the first of their ordering keys a moment ago, by due time; claims consume them."""

    def __init__(self, rows: Iterable[Any], *, complete: bool, until: float) -> None:
        self._rows = sorted(rows, key=lambda row: (row["due_at"], row["id"]))
        self._complete = complete
        """Whether no other ordering keys are left to read."""
        self._fresh = True
        self._until = until

    def serve(self, now: float) -> bool:
        """Whether any are left and they are not too old."""
        return bool(self._rows) and now < self._until

    def next(self, limit: int) -> Sequence[Any]:
        """The next ones, as many as a claim may take."""
        return self._rows[:limit]

    def used(self, given: Sequence[Any], taken: Collection[int], *, full: bool) -> bool:
        """Record that a claim was given these and took some; return whether it has thus seen all there were.

        If it was not full, the others cannot be taken.
        """
        gone = taken if full else {row["id"] for row in given}
        self._rows = [row for row in self._rows if row["id"] not in gone]
        saw_all = self._complete and self._fresh and not self._rows
        self._fresh = False
        return saw_all


class Claims:
    """What the claims of one process remember from one to the next: marks, shares, the rotation of queues."""

    def __init__(self, statements: Mapping[str, Statement], clock: Clock, *, max_body_bytes: int) -> None:
        self._statements = statements
        self._clock = clock
        self._max_body_bytes = max_body_bytes
        self._marks: Marks[Place] = Marks(back)
        self._looked_at = BEGINNING[0]
        """The database time of the last look."""
        self._freed: set[tuple[str, str]] = set()
        """Queues and ordering keys that were freed: messages that wait for them may lie far behind the marks."""
        self._shares = FairShare()
        self._turns: defaultdict[frozenset[str], int] = defaultdict(int)
        self._cut: Counter[frozenset[str]] = Counter()
        """Where more messages waited for ordering keys than a window shows, and for how many claims to expect that."""
        self._keys: dict[str, str] = {}
        """The ordering key of each queue at which the next `firsts` continues."""
        self._asked: set[str] = set()
        """Queues of which every key was read, while other queues still have unread keys."""
        self._firsts: dict[frozenset[str], Firsts] = {}
        self._pausing = Pausing(statements, clock)

    def claim(self, wanted: Wanted, pauses: Pauses = Pauses.HEEDED) -> Verb[Claimed]:
        """See `Store.claim`."""
        if pauses is Pauses.HEEDED:
            wanted = replace(wanted, queues=self._in_turn(wanted.queues))
        try:
            unfinished = False
            for _ in range(LOOKS):
                started = self._seconds()
                try:
                    firsts = yield from self._firsts_for(wanted, started, pauses)
                    given = None if firsts is None else firsts.next(wanted.limit)
                    freed = frozenset(each for each in self._freed if each[0] in wanted.queues)
                    followers = (yield from self._followers(freed)) if freed else ()
                    values = self._values(wanted, given, followers, started, pauses)
                    told, *taken = yield self._ask("claim", values)
                except LOOK_AGAIN:
                    continue
                except TOOK_TOO_LONG:
                    if (yield from self._goes_on(wanted, started)):
                        continue
                    raise
                if told["over"]:
                    return (yield from self._see_to_pauses(wanted))
                unfinished = yield from self._unfinished(wanted, told)
                if firsts is not None:
                    saw_all = firsts.used(given or (), {row["id"] for row in taken}, full=told["full"])
                    unfinished |= not (saw_all or told["full"])
                full = unfinished or told["full"]
                until = None if full else self._marks.until_look_behind(wanted.queues, started)
                if not full:
                    self._freed -= freed
                set_back = self._learn(wanted, told, len(taken), started, full=full)
                if told["pauses"] or self._pausing.met:
                    set_back |= pauses is not Pauses.PROBED and self._resumed(wanted, told["pauses"])
                if taken or not (unfinished or set_back):
                    # By position, in the order of `Delivery`: this runs for every message.
                    claimed = [Delivery(row[0], wanted.token, *row[1:16]) for row in taken]
                    self._shares.put_in_order(claimed, wanted.queues)
                    self._mark(wanted, claimed, full=full)
                    next_in = None if full else _next_in(told, until, wanted.lease if taken else None)
                    return Claimed(claimed, next_in, full)
            if unfinished:
                return Claimed((), None, full=True)
            raise StoreUnavailable("other claims were quicker each time: look again")
        except BaseException:
            self.look_everywhere()
            raise

    def look_ahead(self, queues: Sequence[str]) -> Verb[dict[str, timedelta]]:
        """See `LooksAhead.look_ahead`."""
        # Where a look from the beginning is expensive, claims know better when to make one.
        expected = {queue: ZERO for queue in queues if self._marks.is_dear(queue)}
        cheap = [queue for queue in queues if queue not in expected]
        if cheap:
            values = {"queues": cheap, "window": WINDOW, "now": self._clock.now()}
            for row in (yield self._ask("look_ahead", values)):
                if row["next_in"] is not None:
                    expected[row["queue"]] = max(row["next_in"], ZERO)
        return expected

    def settled(self, batch: Sequence[Settlement]) -> None:
        """Look where these make a difference.

        Released messages are available again at their old places. Where a message ended, the next of its ordering key
        may go.
        """
        released = [settlement.delivery for settlement in batch if isinstance(settlement.outcome, Release)]
        if released:
            self._marks.lower((each.queue, each.priority, (each.due_at, each.id)) for each in released)
        for settlement in batch:
            key, queue = settlement.delivery.ordering_key, settlement.delivery.queue
            if (
                key is not None
                and isinstance(settlement.outcome, ENDS)
                and self._marks.is_dear(queue)
                and len(self._freed) < KEYS
            ):
                self._freed.add((queue, key))

    def look_everywhere(self) -> None:
        """Make the next claim start at the beginning: there may be messages behind the marks."""
        self._marks.forget()
        self._firsts.clear()

    def _see_to_pauses(self, wanted: Wanted) -> Verb[Claimed]:
        """A pause is past its end: take one message where an automatic one lets it through, or claim."""
        probes: list[Claimed] = []
        for queue in (yield from self._pausing.see_to(wanted.queues)):
            probe = yield from self._probe(wanted, queue)
            if probe.deliveries:
                return replace(probe, probe=True)
            probes.append(probe)
        rest = yield from self.claim(wanted, Pauses.SEEN_TO)
        full = rest.full or any(probe.full for probe in probes)
        moments = [each.next_in for each in (rest, *probes) if each.next_in is not None]
        return Claimed(rest.deliveries, None if full else min(moments, default=None), full)

    def _probe(self, wanted: Wanted, queue: str) -> Verb[Claimed]:
        """Take one message of a queue that is paused automatically, unless another process is doing that.

        The pause is renewed first: of many processes one then takes a message, and one that dies with it leaves the
        queue paused.
        """
        renewal = yield from self._pausing.renew(queue)
        if renewal is None:
            return NOTHING
        claimed = yield from self.claim(replace(wanted, queues=(queue,), limit=1), Pauses.PROBED)
        # Those that were read can be claimed only while probing.
        self._firsts.pop(frozenset((queue,)), None)
        if not claimed.deliveries:
            yield from self._pausing.put_back(renewal)
        return claimed

    def _resumed(self, wanted: Wanted, pauses: int) -> bool:
        """Whether something was resumed: what waited there lies behind the marks."""
        more = self._pausing.changed(wanted.queues, pauses)
        if more:
            self._marks.drop(wanted.queues)
            self._firsts.clear()
        return more < 0

    def _goes_on(self, wanted: Wanted, started: float) -> Verb[bool]:
        """After a look that the server canceled: whether to try again, looking less far behind the marks."""
        took = self._seconds() - started
        if took < TOO_LONG or all(self._marks.spares(queue, started) for queue in wanted.queues):
            return False
        (row,) = yield self._ask("moment", {"now": self._clock.now()})
        self._marks.gave_up(wanted.queues, started, started + took, (row["looked_at"], 0))
        return True

    def _learn(self, wanted: Wanted, told: Any, taken: int, started: float, *, full: bool) -> bool:
        """Record what a look cost; return whether the database clock was set back before it.

        If so, what is due now may lie behind marks of a later time.
        """
        before, self._looked_at = self._looked_at, told["looked_at"]
        if self._looked_at < before:
            self.look_everywhere()
            return True
        allowed = SECONDS_PER_QUEUE * len(wanted.queues) + SECONDS_PER_MESSAGE * taken
        # With a manual clock nothing takes any time.
        cost = max(told["seconds"] - allowed, 0.0) if self._clock.now() is None else 0.0
        self._marks.took(wanted.queues, started, started + cost, came_back_short=not full)
        return False

    def _unfinished(self, wanted: Wanted, told: Any) -> Verb[bool]:
        """Whether there may be more than this look saw, although it was not full."""
        if told["large"]:
            values = {
                "ids": told["large"],
                "reason": Reason.TOO_LARGE.value,
                "max_body_bytes": self._max_body_bytes,
                "max_header_bytes": MAX_STORED_HEADERS_BYTES,
                "now": self._clock.now(),
            }
            yield self._ask("bury_large", values)
        if told["cut"]:
            self._cut[frozenset(wanted.queues)] = RECKONED_WITH
        return bool(told["large"] or told["cut"])

    def _cuts_short(self, wanted: Wanted) -> bool:
        """Whether the window is likely not to show enough."""
        left = self._cut[frozenset(wanted.queues)]
        if left <= 1:
            del self._cut[frozenset(wanted.queues)]
        else:
            self._cut[frozenset(wanted.queues)] = left - 1
        return left > 0

    def _firsts_for(self, wanted: Wanted, now: float, pauses: Pauses) -> Verb[Firsts | None]:
        """The first messages of more ordering keys than a window shows, if the window is likely not to show enough."""
        known = self._firsts.get(frozenset(wanted.queues))
        if known is not None and known.serve(now):
            return known
        self._firsts.pop(frozenset(wanted.queues), None)
        if not self._cuts_short(wanted):
            return None
        firsts = yield from self._ask_for_firsts(wanted, now, pauses)
        self._firsts[frozenset(wanted.queues)] = firsts
        return firsts

    def _ask_for_firsts(self, wanted: Wanted, now: float, pauses: Pauses) -> Verb[Firsts]:
        """The first messages of some ordering keys: one page, and the next call reads the next page."""
        asked = [queue for queue in wanted.queues if queue not in self._asked] or list(wanted.queues)
        values = {
            "queues": asked,
            "afters": [self._keys.get(queue, "") for queue in asked],
            "most": max(KEYS // len(asked), 1),
            "probing": pauses is Pauses.PROBED,
            "now": self._clock.now(),
        }
        found = yield self._ask("firsts", values)
        for row in found:
            if row["id"] is None:
                self._keys[row["queue"]] = row["key"] or ""
                if row["key"] is None:
                    self._asked.add(row["queue"])
        finished = self._asked.issuperset(wanted.queues)
        if finished:
            self._asked.difference_update(wanted.queues)
        firsts = [row for row in found if row["id"] is not None]
        return Firsts(firsts, complete=finished, until=now + FIRSTS_SECONDS)

    def _followers(self, freed: Collection[tuple[str, str]]) -> Verb[Sequence[Range[Place]]]:
        """The places of the messages that may go next because their ordering keys were freed."""
        values = {
            "queues": [queue for queue, _ in freed],
            "keys": [key for _, key in freed],
            "now": self._clock.now(),
        }
        found = yield self._ask("followers", values)
        return [
            Range(row["queue"], row["priority"], (row["due_at"], row["id"]), (row["due_at"], row["id"] + 1))
            for row in found
        ]

    def _ask(self, name: str, values: Mapping[str, Any]) -> Ask:
        return Ask(self._statements[name], values)

    def _in_turn(self, queues: tuple[str, ...]) -> tuple[str, ...]:
        """These queues, starting with another one each time."""
        key = frozenset(queues)
        first = self._turns[key] % len(queues)
        self._turns[key] += 1
        return queues[first:] + queues[:first]

    def _values(
        self,
        wanted: Wanted,
        given: Sequence[Any] | None,
        followers: Sequence[Range[Place]],
        started: float,
        pauses: Pauses,
    ) -> dict[str, Any]:
        ranges: list[Range[Place]] = []
        firsts: list[int] = []
        lasts: list[int] = []
        for queue in wanted.queues:
            # Postgres arrays start at one.
            firsts.append(len(ranges) + 1)
            ranges += self._marks.forward(queue, started)
            behind = list(self._marks.behind(queue, started))
            ranges += behind
            ranges += _further(behind, followers)
            lasts.append(len(ranges))
        return {
            "now": self._clock.now(),
            "heeding": pauses is Pauses.HEEDED,
            "probing": pauses is Pauses.PROBED,
            "limit": wanted.limit,
            # With the first messages of many keys given, a larger window is known to be of little use.
            "window": WINDOW + WINDOW_PER_MESSAGE * wanted.limit if given is None else wanted.limit,
            "max_bytes": min(wanted.max_bytes, MOST_BYTES),
            "max_body_bytes": self._max_body_bytes,
            "max_header_bytes": MAX_STORED_HEADERS_BYTES,
            "lease": duration(wanted.lease),
            "token": wanted.token,
            "queues": list(wanted.queues),
            "shares": [self._shares.reserved(queue, wanted.limit) for queue in wanted.queues],
            "firsts": firsts,
            "lasts": lasts,
            "levels": [entry.level for entry in ranges],
            "from_at": [(entry.start or BEGINNING)[0] for entry in ranges],
            "from_id": [(entry.start or BEGINNING)[1] for entry in ranges],
            "to_at": [(entry.end or END)[0] for entry in ranges],
            "to_id": [(entry.end or END)[1] for entry in ranges],
            "has_extra": given is not None,
            **_extra(given or ()),
        }

    def _mark(self, wanted: Wanted, claimed: Sequence[Delivery], *, full: bool) -> None:
        """Have the next claim start at the first of these."""
        self._marks.found((each.queue, each.priority, (each.due_at, each.id)) for each in claimed)
        if not full:
            self._marks.looked(wanted.queues, (self._looked_at, 0))

    def _seconds(self) -> float:
        now = self._clock.now()
        return time.monotonic() if now is None else now.timestamp()


def _next_in(told: Any, until: float | None, lease: timedelta | None) -> timedelta | None:
    """When something more may be due: as told, when marks are next ignored, or when a lease taken just now ends."""
    moments: list[timedelta | None] = [told["next_in"], lease]
    if until is not None:
        # Rounded up: a look just before its time would skip it once more.
        moments.append(timedelta(seconds=until) + MILLISECOND)
    return min((each for each in moments if each is not None), default=None)


def _extra(firsts: Sequence[Any]) -> dict[str, Any]:
    return {
        "extra_queues": [row["queue"] for row in firsts],
        "extra_levels": [row["priority"] for row in firsts],
        "extra_at": [row["due_at"] for row in firsts],
        "extra_ids": [row["id"] for row in firsts],
        "extra_keys": [row["key"] for row in firsts],
    }


def _further(behind: Iterable[Range[Place]], followers: Iterable[Range[Place]]) -> list[Range[Place]]:
    """The followers that lie further back than a look goes."""
    edges = {(each.queue, each.level): each.start for each in behind if each.start is not None}
    return [
        follower
        for follower in followers
        if follower.start is not None
        and follower.start < edges.get((follower.queue, follower.level), BEGINNING)
    ]
