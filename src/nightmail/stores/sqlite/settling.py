"""What each outcome does to the messages it came to."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from nightmail.message import DeadDelivery
from nightmail.outcome import Dead, Done, Release, Standing
from nightmail.store import Settlement
from nightmail.stores.sqlite.errors import Refused
from nightmail.stores.sqlite.jobs import Failed, Succeeded
from nightmail.stores.sqlite.leases import Leases, released
from nightmail.stores.sqlite.moments import StoreTime
from nightmail.stores.sqlite.notice import NOBODY, if_soon, ring
from nightmail.stores.sqlite.pile import Pile, due_again
from nightmail.stores.sqlite.steps import Change, Queries, Steps, carry_out
from nightmail.stores.sqlite.together import in_savepoint

logger = logging.getLogger(__name__)


class Settling:
    """The steps of `settle`, for messages."""

    def __init__(
        self,
        sql: Queries,
        time: StoreTime,
        leases: Leases,
        *,
        handed_back: Callable[[Iterable[str]], None],
    ) -> None:
        self._sql = sql
        self._time = time
        self._leases = leases
        self._handed_back = handed_back

    def settle(self, batch: Sequence[Settlement]) -> Steps[Change[list[Standing]]]:
        """Write how these deliveries ended; how each lease stood.

        Nobody else writes meanwhile, so a lease that is not found was lost: there is no need to ask twice.
        """
        done = [one.delivery for one in batch if isinstance(one.outcome, Done)]
        if len(done) == len(batch) and (yield from self._leases.all_hold(done)):
            # By far the most: everything was handled, and every lease held.
            yield from self._leases.finish([delivery.id for delivery in done])
            rings = released(done)
            return Change([Standing.HELD] * len(batch), (yield from ring(self._sql, rings)))
        superseded = yield from self._leases.held([one.delivery for one in batch])
        pile = Pile(batch, superseded, self._time.stamp())
        yield from self._write(pile)
        if pile.handed_back:
            self._handed_back({one.delivery.queue for one in batch if isinstance(one.outcome, Release)})
        return Change(pile.standings, (yield from ring(self._sql, _woken(pile, batch, superseded))))

    def _write(self, pile: Pile) -> Steps[None]:
        if pile.done:
            yield from self._leases.finish(pile.done)
        if pile.given_up:
            yield self._sql("bury", letters=json.dumps(pile.given_up), now=pile.now)
            yield self._sql("remove", ids=json.dumps([id_ for id_, *_ in pile.given_up]))
        if pile.retried:
            yield self._sql("retry", returned=json.dumps(pile.retried), now=pile.now)
        if pile.postponed:
            yield self._sql("postpone", returned=json.dumps(pile.postponed), now=pile.now)
        if pile.handed_back:
            yield self._sql("release", ids=json.dumps(pile.handed_back))


def settle_apart(
    connection: sqlite3.Connection,
    *,
    settle: Callable[[Sequence[Settlement]], Steps[Change[list[Standing]]]],
    batch: Sequence[Settlement],
) -> Change[list[Standing]]:
    """Settle these one by one, because a row among them is refused: it must not fail its neighbours."""
    standings: list[Standing] = []
    rings: frozenset[str] = NOBODY
    for one in batch:
        answer = in_savepoint(connection, partial(carry_out, steps=settle([one])))
        match answer:
            case Succeeded(change):
                standings += change.result
                rings |= change.rings
            case Failed(Refused() as error):
                kind = "dead letter" if isinstance(one.delivery, DeadDelivery) else "message"
                logger.error("%s %d cannot be settled: %s", kind, one.delivery.id, error)
                standings.append(Standing.BUSY)
            case Failed(error):
                raise error
    return Change(standings, rings)


def _woken(pile: Pile, batch: Sequence[Settlement], superseded: Mapping[int, int]) -> frozenset[str]:
    """The queues that have something now: a message that came back, a line whose next may go, a dead letter."""
    rings: set[str] = set()
    for place in pile.places:
        delivery, outcome = batch[place].delivery, batch[place].outcome
        if delivery.queue in rings:
            continue
        if isinstance(outcome, Dead):
            # Whoever looks after dead letters listens to the queue in which they die.
            rings.add(delivery.queue)
        elif (due_at := due_again(outcome, pile.now)) is None:
            rings |= released([delivery])
        else:
            rings |= if_soon(delivery.queue, pile.now if superseded[place] else due_at, pile.now)
    return frozenset(rings)
