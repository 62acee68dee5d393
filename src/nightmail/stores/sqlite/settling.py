"""What each outcome does to the messages it came to."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Sequence
from functools import partial
from typing import Any, assert_never

from nightmail.outcome import Dead, Done, Outcome, Postpone, Release, Retry, Standing
from nightmail.store import Settlement
from nightmail.stores.sqlite.errors import Refused
from nightmail.stores.sqlite.jobs import Failed, Succeeded
from nightmail.stores.sqlite.leases import Leases, leases, released
from nightmail.stores.sqlite.moments import StoreTime, after
from nightmail.stores.sqlite.notice import if_soon, ring
from nightmail.stores.sqlite.steps import Change, Queries, Steps, carry_out, gathered
from nightmail.stores.sqlite.together import in_savepoint

logger = logging.getLogger(__name__)


class Settling:
    """The steps of `settle`."""

    def __init__(self, sql: Queries, time: StoreTime, leases: Leases) -> None:
        self._sql = sql
        self._time = time
        self._leases = leases

    def settle(self, batch: Sequence[Settlement]) -> Steps[Change[list[Standing]]]:
        """Write how these deliveries ended; how each lease stood.

        Nobody else writes meanwhile, so a lease that is not found was lost: there is no need to ask twice.
        """
        superseded: dict[int, int] = dict(
            (yield from gathered(self._sql("held", leases=leases([one.delivery for one in batch]))))
        )
        done = {one.delivery.id for one in batch if isinstance(one.outcome, Done)}
        if len(done) == len(superseded) == len(batch):
            # By far the most: everything was handled, and every lease held.
            yield from self._leases.finish(list(done))
            rings = released([one.delivery for one in batch])
            return Change([Standing.HELD] * len(batch), (yield from ring(self._sql, rings)))
        pile = _Pile(self._time.stamp())
        standings = []
        settled: set[int] = set()
        for place, settlement in enumerate(batch):
            # A second settlement of one message meets a lease that the first has ended.
            if place in superseded and settlement.delivery.id not in settled:
                settled.add(settlement.delivery.id)
                pile.add(settlement, superseded=bool(superseded[place]))
                standings.append(Standing.HELD)
            else:
                standings.append(Standing.UNKNOWN if settlement.repeated else Standing.LOST)
        yield from self._write(pile)
        return Change(standings, (yield from ring(self._sql, pile.rings)))

    def _write(self, pile: _Pile) -> Steps[None]:
        if pile.done:
            yield from self._leases.finish(pile.done)
        if pile.letters:
            yield self._sql("bury", letters=json.dumps(pile.letters), now=pile.now)
            yield self._sql("remove", ids=json.dumps([id_ for id_, *_ in pile.letters]))
        if pile.retried:
            yield self._sql("retry", returned=json.dumps(pile.retried), now=pile.now)
        if pile.postponed:
            yield self._sql("postpone", returned=json.dumps(pile.postponed), now=pile.now)
        if pile.handed_back:
            yield self._sql("release", ids=json.dumps(pile.handed_back), now=pile.now)


def settle_apart(
    connection: sqlite3.Connection, *, settling: Settling, batch: Sequence[Settlement]
) -> Change[list[Standing]]:
    """Settle these one by one, because a row among them is refused: it must not fail its neighbours."""
    standings: list[Standing] = []
    rings: frozenset[str] = frozenset()
    for one in batch:
        answer = in_savepoint(connection, partial(carry_out, steps=settling.settle([one])))
        match answer:
            case Succeeded(change):
                standings += change.result
                rings |= change.rings
            case Failed(Refused() as error):
                logger.error("message %d cannot be settled: %s", one.delivery.id, error)
                standings.append(Standing.BUSY)
            case Failed(error):
                raise error
    return Change(standings, rings)


class _Pile:
    """Settlements sorted by what has to be written, and the queues to be rung for them."""

    def __init__(self, now: int) -> None:
        self.now = now
        self.done: list[int] = []
        self.letters: list[tuple[Any, ...]] = []
        self.retried: list[tuple[int, int]] = []
        self.postponed: list[tuple[int, int]] = []
        self.handed_back: list[int] = []
        self.rings: frozenset[str] = frozenset()

    def add(self, settlement: Settlement, *, superseded: bool) -> None:
        delivery, outcome = settlement.delivery, settlement.outcome
        match outcome:
            case Done():
                self.done.append(delivery.id)
            case Dead(reason, error, ran):
                self.letters.append((delivery.id, reason, error, int(ran)))
            case Retry(delay):
                self.retried.append((delivery.id, after(self.now, delay)))
            case Postpone(delay):
                self.postponed.append((delivery.id, after(self.now, delay)))
            case Release():
                self.handed_back.append(delivery.id)
            case _:
                assert_never(outcome)
        self._ring(settlement, superseded=superseded)

    def _ring(self, settlement: Settlement, *, superseded: bool) -> None:
        queue = settlement.delivery.queue
        if queue in self.rings:
            return
        due_at = _due_again(settlement.outcome, self.now)
        if due_at is None:
            self.rings |= released([settlement.delivery])
        else:
            self.rings |= if_soon(queue, self.now if superseded else due_at, self.now)


def _due_again(outcome: Outcome, now: int) -> int | None:
    """When a message with this outcome is due again; `None` when it does not come back."""
    match outcome:
        case Retry(delay) | Postpone(delay):
            return after(now, delay)
        case Release():
            return now
        case _:
            return None
