"""What a claim takes, and in which order."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import count
from operator import itemgetter
from typing import Any, Final, TypeAlias

from nightmail.limits import MAX_STORED_HEADERS_BYTES, ByteBudget
from nightmail.message import Delivery
from nightmail.store import Claimed
from nightmail.stores.shared.fairness import FairShare
from nightmail.stores.shared.marks import Marks, Range
from nightmail.stores.shared.wanted import Wanted
from nightmail.stores.sql.verbs import Verb
from nightmail.stores.sqlite import rows
from nightmail.stores.sqlite.blobs import copy_body
from nightmail.stores.sqlite.pausing import NOTHING_PAUSED, Paused
from nightmail.stores.sqlite.queries import Queries, gathered
from nightmail.stores.sqlite.ringing import ring
from nightmail.stores.sqlite.times import (
    BEGINNING_OF_TIME,
    END_OF_TIME,
    StoreTime,
    after,
    in_microseconds,
    moment_of,
)

logger = logging.getLogger(__name__)

SMALL: Final = 4096
"""Bodies up to this many bytes are read together with their rows, larger ones once their messages are chosen."""
MOST_GATHERED: Final = 1_000_000
"""How many bytes of larger bodies are read in one statement."""

LONG_LOCKED_OUT: Final = 0.2
"""Seconds. If others had the lock for longer, leases may have expired only because they could not be renewed."""
GRACE: Final = timedelta(seconds=10)
"""Such leases are spared once. One that expired longer ago has no holder that tries to renew it.

If recent waits for the lock only add up to that, they are spared too, for one lease at most: this process may have had
the lock several times while the holder, in another process, was always too late.
"""
_SOON: Final = in_microseconds(timedelta(milliseconds=100))
"""When to check spared leases again: a renewal gets the lock much sooner."""
_STRAYS_EVERY: Final = in_microseconds(timedelta(minutes=1))
_STRAYS: Final = 100
"""How many strays, rows that no claim finds, are dead-lettered at once."""
_ROUNDS: Final = 10
"""How often one claim dead-letters unfit rows and looks again. Then it reports that it is full."""

Found: TypeAlias = list[Any]
"""An entry of `available`, then queue, priority, headers and body. A plain list: one is made for every message."""
_ID: Final = 0
_DUE: Final = 1
_SIZE: Final = 2
_KEY: Final = 4
_LEVEL: Final = 13
_BODY: Final = 15
_AGE: Final = itemgetter(_DUE, _ID)
_UNFIT: Final = 2
"""The length of an entry for a row that cannot be delivered: its id and a reason."""
_LARGE: Final = "-"
"""In place of headers or a body that are too large to be read with the others."""
_EVER: Final = float("-inf")


@dataclass(frozen=True, slots=True)
class Moment:
    """What a claim compares with: messages are due up to `now`, leases have expired up to `expired`."""

    now: int
    expired: int
    paused: Paused = NOTHING_PAUSED

    @classmethod
    def after_lock_out(cls, now: int, locked_out: float, waited_lately: float, lease: timedelta) -> Moment:
        """The moment of a claim that waited for the lock for so many seconds: just now, and lately in total."""
        if locked_out >= LONG_LOCKED_OUT:
            return cls(now, now - in_microseconds(GRACE))
        if waited_lately >= LONG_LOCKED_OUT:
            return cls(now, now - in_microseconds(min(GRACE, lease)))
        return cls(now, now)

    def until(self, moment: int | None) -> timedelta | None:
        """How long until then."""
        if moment is None:
            return None
        # Only a spared lease ends in the past.
        return timedelta(microseconds=moment - self.now if moment > self.now else _SOON)


class _Unfit(Exception):
    """A look came upon rows that cannot be delivered: pairs of an id and a reason."""

    def __init__(self, rows: Sequence[Sequence[Any]]) -> None:
        self.rows = rows


def _order(found: Found) -> tuple[int, int, int]:
    return -found[_LEVEL], found[_DUE], found[_ID]


class Claims:
    """What `claim` does: `look`, then `take`.

    A claim looks before it takes, so that one which finds nothing never asks for the write lock: idle workers must not
    block writers.
    """

    def __init__(self, sql: Queries, time: StoreTime, max_body_bytes: int) -> None:
        self._sql = sql
        self._time = time
        self._max_body_bytes = max_body_bytes
        self._share = FairShare()
        self._marks: Marks[int] = Marks()
        self._claims = count(1)
        self._served: Counter[str] = Counter()
        self._looked_for_strays: dict[tuple[str, ...], int] = {}
        self.is_busy = False
        """Whether the last claim was full: then the next takes without looking first."""

    def look(self, wanted: Wanted) -> Verb[Claimed | None]:
        """The result of a claim that finds nothing to take; `None` when there is something."""
        at = Moment(now := self._time.now(), now)
        try:
            due, at = yield from self._due(wanted.queues, at)
            for queue, levels in due.items():
                for level in levels:
                    if (yield from self._available(Range(queue, level), 1, at)):
                        return None
        except _Unfit:
            return None
        if (yield from self._strays(wanted.queues, at)):
            return None
        return Claimed((), (yield from self._next_in(wanted.queues, at)))

    def take(self, wanted: Wanted, locked_out: float = 0.0, waited_lately: float = 0.0) -> Verb[Claimed]:
        """Lease what is available, up to the limits, after waiting for the lock for so many seconds."""
        at = Moment.after_lock_out(self._time.now(), locked_out, waited_lately, wanted.lease)
        yield from self._give_up_strays(wanted.queues, at)
        due, at = yield from self._due(wanted.queues, at)
        if at.paused.left_over:
            yield self._sql("end_pauses", queues=json.dumps(wanted.queues), now=at.now)
        taken, full = yield from self._probe(due, wanted, at)
        is_probe = bool(taken)
        if not full:
            taken, full = yield from self._gather(due, wanted.limit, wanted.max_bytes, at)
        deliveries = (yield from self._lease(taken, wanted, at.now)) if taken else []
        self.is_busy = full
        next_in = None if full else (yield from self._next_in(wanted.queues, at))
        return Claimed(deliveries, next_in, full, is_probe)

    def look_from_the_start(self, queues: Iterable[str]) -> None:
        """Forget the marks of these queues: a message came back to its old place."""
        self._marks.drop(queues)

    def _probe(self, due: dict[str, list[int]], wanted: Wanted, at: Moment) -> Verb[tuple[list[Found], bool]]:
        """One message of a queue that may be probed, if there is one, and whether there may be more.

        That queue is then paused for as long again. All such queues are taken out of `due`.
        """
        taken: list[Found] = []
        full = False
        for queue in at.paused.to_probe:
            levels = due.pop(queue, None)
            if levels is None or full:
                continue
            taken, full = yield from self._gather({queue: levels}, 1, wanted.max_bytes, at)
            if taken:
                yield self._sql("renew_pause", queue=queue, now=at.now, end=END_OF_TIME)
        return taken, full

    def _gather(
        self, due: Mapping[str, list[int]], limit: int, max_bytes: int, at: Moment
    ) -> Verb[tuple[list[Found], bool]]:
        """What is available, up to the limits, and whether there may be more."""
        claim = next(self._claims)
        budget = ByteBudget(max_bytes)
        taken: list[Found] = []
        full = False
        # The queue that was served longest ago comes first.
        for queue in sorted(due, key=self._served.__getitem__):
            room = limit - len(taken)
            chosen, more = yield from self._choose_fit(queue, due[queue], room, budget, at)
            fitting = [found for found in chosen if budget.take(found[_SIZE])]
            if fitting:
                self._share.claimed(queue, len(fitting))
                self._served[queue] = claim
                taken += fitting
            full = full or more or budget.spent or len(taken) == limit
            if full:
                break
        return taken, full

    def _lease(self, taken: Sequence[Found], wanted: Wanted, now: int) -> Verb[list[Delivery]]:
        token, lease_until = wanted.token.bytes, after(now, wanted.lease)
        plain = [found[_ID] for found in taken if found[_KEY] is None]
        keyed = [found[_ID] for found in taken if found[_KEY] is not None]
        for statement, ids in (("lease", plain), ("lease_in_line", keyed)):
            if ids:
                yield self._sql(statement, ids=json.dumps(ids), token=token, lease_until=lease_until, now=now)
        large = [found for found in taken if found[_BODY] == _LARGE]
        for handful in _handfuls(large):
            bodies = yield from gathered(
                self._sql("bodies", ids=json.dumps([found[_ID] for found in handful]))
            )
            for found in handful:
                found[_BODY] = bodies[str(found[_ID])]
        claimed_at = moment_of(now)
        return [rows.leased(found, wanted.token, claimed_at) for found in taken]

    # -------------------------------------------------------------------------------------- choosing

    def _choose_fit(
        self, queue: str, levels: Collection[int], room: int, budget: ByteBudget, at: Moment
    ) -> Verb[tuple[list[Found], bool]]:
        """Up to `room` deliverable messages, and whether there may be more behind unfit ones."""
        for _ in range(_ROUNDS):
            try:
                return (yield from self._choose(queue, levels, room, budget, at)), False
            except _Unfit as unfit:
                for id_, reason in unfit.rows:
                    yield from self._give_up(id_, reason, at)
            yield from ring(self._sql, frozenset((queue,)))
        return [], True

    def _choose(
        self, queue: str, levels: Collection[int], room: int, budget: ByteBudget, at: Moment
    ) -> Verb[list[Found]]:
        """Up to `room` available messages: the share of the oldest, then by priority."""
        found = yield from self._in(self._marks.forward(queue, at.now / 1e6), levels, room, at)
        behind: list[Found] = []
        if len(found) < room:
            behind = yield from self._in(self._marks.behind(queue), levels, room - len(found), at)
        if behind or len(levels) > 1:
            found = sorted(found + behind, key=_order)
        all_fit = budget.has_room_for([each[_SIZE] for each in found])
        share = self._share.reserved(queue, len(found) if all_fit else room)
        if share and len(levels) > 1:
            firsts: list[Found] = []
            for level in levels:
                firsts += yield from self._available(Range(queue, level), share, at)
            oldest = sorted(firsts, key=_AGE)[:share]
            found = list({each[_ID]: each for each in oldest + found}.values())[: len(found)]
        # Of one priority, in order, the first is the lowest.
        lowest = found[:1] if len(levels) == 1 else found
        self._marks.found((queue, each[_LEVEL], each[_DUE]) for each in lowest)
        return found

    def _in(
        self, ranges: Iterable[Range[int]], levels: Collection[int], room: int, at: Moment
    ) -> Verb[list[Found]]:
        found: list[Found] = []
        for each in ranges:
            if each.level in levels and len(found) < room:
                found += yield from self._available(each, room - len(found), at)
        return found

    def _due(self, queues: Sequence[str], at: Moment) -> Verb[tuple[dict[str, list[int]], Moment]]:
        """Those of these queues in which something is due and not paused, at which priorities, highest first.

        And the same moment, with what is paused then.
        """
        ((found, pauses),) = yield self._sql("levels", queues=json.dumps(queues), now=at.now)
        due: dict[str, list[int]] = {}
        for queue, level in json.loads(found):
            due.setdefault(queue, []).append(level)
        if pauses is None:
            return due, at
        paused = Paused.at(at.now, json.loads(pauses), queues)
        return {queue: due[queue] for queue in paused.open(list(due))}, replace(at, paused=paused)

    def _available(self, within: Range[int], limit: int, at: Moment) -> Verb[list[Found]]:
        ask = self._sql(
            "candidates",
            queue=within.queue,
            priority=within.level,
            first=_EVER if within.start is None else within.start,
            last=at.now if within.end is None else min(at.now, within.end - 1),
            limit=limit,
            now=at.now,
            expired=at.expired,
            paused_keys=at.paused.keys.get(within.queue),
            small=SMALL,
            max_body=self._max_body_bytes,
            max_headers=MAX_STORED_HEADERS_BYTES,
            beginning=BEGINNING_OF_TIME,
            end=END_OF_TIME,
        )
        ((entries, headers, bodies),) = yield ask
        found: list[Found] = json.loads(entries)
        if not found:
            return found
        unfit: list[Sequence[Any]] = []
        for each, header, body in zip(found, headers.split(","), bodies.split(","), strict=True):
            if len(each) == _UNFIT:
                unfit.append(each)
            elif header == _LARGE:
                unfit.append((each[_ID], "too_large"))
            else:
                each[_SIZE] += len(header) // 2
                each += (within.queue, within.level, header, body)
        if unfit:
            raise _Unfit(unfit)
        return found

    def _next_in(self, queues: Sequence[str], at: Moment) -> Verb[timedelta | None]:
        ((moment,),) = yield self._sql(
            "upcoming",
            queues=json.dumps(at.paused.open(queues)),
            now=at.now,
            expired=at.expired,
            end=END_OF_TIME,
        )
        return at.until(at.paused.next_look(moment))

    # -------------------------------------------------------------------------------- what is unfit

    def _strays(self, queues: tuple[str, ...], at: Moment) -> Verb[list[int]]:
        """Messages that no claim finds. Other software wrote them, so an occasional look is enough."""
        last = self._looked_for_strays.get(queues)
        if last is not None and last <= at.now < last + _STRAYS_EVERY:
            return []
        found = yield self._sql("strays", queues=json.dumps(queues), end=END_OF_TIME, limit=_STRAYS)
        if not found:
            self._looked_for_strays[queues] = at.now
        return [id_ for (id_,) in found]

    def _give_up_strays(self, queues: tuple[str, ...], at: Moment) -> Verb[None]:
        strays = yield from self._strays(queues, at)
        for id_ in strays:
            yield from self._give_up(id_, "unreadable", at)
        if strays:
            yield from ring(self._sql, frozenset(queues))

    def _give_up(self, id_: int, reason: str, at: Moment) -> Verb[None]:
        """Turn a message that cannot be delivered into a dead letter, without reading its body into memory."""
        yield self._sql(
            "bury_unfit",
            id=id_,
            reason=reason,
            error=_ERRORS[reason],
            now=at.now,
            small=SMALL,
            beginning=BEGINNING_OF_TIME,
            end=END_OF_TIME,
        )
        ((letter,),) = yield self._sql("buried")
        yield copy_body(self._sql.prefix, message=id_, letter=letter)
        yield self._sql("remove", ids=json.dumps([id_]))
        logger.warning(
            "message %d cannot be delivered and is now dead letter %d: %s", id_, letter, _ERRORS[reason]
        )


_ERRORS: Final = {
    "too_large": "the body or the headers are larger than this store reads (max_body_bytes)",
    "unreadable": "other software stored values in this row that a message cannot have",
}


def _handfuls(large: Sequence[Found]) -> Iterator[list[Found]]:
    """Split these so that the bodies of each part fit into one value: SQLite's limit is a gigabyte."""
    handful: list[Found] = []
    size = 0
    for found in large:
        if handful and size + found[_SIZE] > MOST_GATHERED:
            yield handful
            handful, size = [], 0
        handful.append(found)
        size += found[_SIZE]
    if handful:
        yield handful
