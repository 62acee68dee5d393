"""Pauses, as claims and polls meet them.

While there are none, a claim asks whether there is one in a statement that it sends anyway. Once it has met one, the
next claims of that queue read the pauses first, and polls leave out what is paused, until a claim finds none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from nightmail.clock import Clock
from nightmail.stores.mysql import rows
from nightmail.stores.mysql.requests import SERVER, Server
from nightmail.stores.mysql.text import ALWAYS, Queries, Sql, Value, literal
from nightmail.stores.mysql.times import aware, aware_if_any, now
from nightmail.stores.sql.verbs import Verb


@dataclass(slots=True)
class Beside:
    """What is paused in the queues of a claim."""

    moment: datetime
    """The store's clock when it was read."""
    free: tuple[str, ...]
    """The queues that are not paused. Ordering keys in them may be."""
    to_probe: dict[str, datetime]
    """Queues of which one message may be taken, and since when."""
    next_end: datetime | None = None
    """When the next pause ends or lets a probe through."""

    @property
    def watched(self) -> tuple[str, ...]:
        """The queues in which something that becomes due can be claimed then."""
        return *self.free, *self.to_probe

    def probed_elsewhere(self, queue: str, until: datetime | None) -> None:
        """Another process probes this queue, which is paused until then; `None`: it was resumed."""
        del self.to_probe[queue]
        if until is not None:
            self.next_end = min(until, self.next_end or until)


class _Kind(NamedTuple):
    """The pauses of one kind in a queue: that of a person, the automatic one, or those of ordering keys together."""

    queue: str
    whole: bool
    automatic: bool
    ended: int
    held: int
    next_end: datetime | None
    first_end: datetime | None


class Pauses:
    """What one process knows about pauses."""

    def __init__(self, sql: Queries, clock: Clock) -> None:
        self._sql = sql
        self._clock = clock
        self._met: set[str] = set()
        """Queues in which the last claim met a pause, of the queue or of an ordering key."""

    def are_known(self, queues: Iterable[str]) -> bool:
        """Whether a pause in one of these queues is to be expected."""
        return not self._met.isdisjoint(queues)

    def any_in(self, queues: Iterable[str]) -> Sql:
        """The condition that there is a pause in one of these queues."""
        return self._sql("any_paused", queues=[queue.encode() for queue in queues])

    def is_open(self, queue: str, moment: Sql) -> Sql:
        """The condition that something of this queue may be claimed: asked only where a pause was met."""
        if queue not in self._met:
            return ALWAYS
        return self._sql("is_open", queue=queue.encode(), now=moment)

    def standing(self, moment: Sql, *, beside: bool) -> Sql:
        """Where a message stands in the line of its ordering key. `beside`: that may be paused."""
        standing = self._sql("standing", now=moment)
        return self._sql("standing_beside", standing=standing, now=moment) if beside else standing

    # --------------------------------------------------------------------------------------- a claim

    def read(self, queues: Sequence[str]) -> Verb[Beside]:
        """What is paused in these queues. Forgets what has ended."""
        names = [queue.encode() for queue in queues]
        moment = now(self._clock)
        in_force = self._sql("in_force", now=moment)
        clock, found = yield (
            self._sql("moment", now=moment),
            self._sql("beside", queues=names, now=moment, in_force=in_force),
        )
        kinds = [_kind(row) for row in found.rows]
        self._met.difference_update(queues)
        self._met.update(each.queue for each in kinds if each.held)
        if any(each.ended for each in kinds):
            yield self._sql("forget_ended", queues=names, now=moment)
        return _beside(aware(clock.rows[0][0]), kinds, queues)

    def renew(self, queue: str, beside: Beside) -> Verb[datetime | None]:
        """Renew the automatic pause of this queue, to probe it; returns until when, `None` if others were faster."""
        server: Server = yield SERVER
        values: dict[str, Value] = {
            "queue": queue.encode(),
            # One time for both statements.
            "now": Sql(literal(beside.moment)),
            "begun": server.dialect.begun,
        }
        _, found, *_ = yield (
            "begin",
            self._sql("lock_probe", **values),
            self._sql("renew", **values),
            "commit",
        )
        until, renewed = map(aware_if_any, found.rows[0]) if found.rows else (None, None)
        if renewed is None:
            beside.probed_elsewhere(queue, until)
        return renewed

    def put_back(self, queue: str, before: datetime, renewed: datetime) -> Verb[None]:
        """The probe found nothing: the pause is as it was."""
        yield self._sql("put_back", queue=queue.encode(), before=before, renewed=renewed)


def _kind(row: Sequence[Any]) -> _Kind:
    queue, whole, automatic, ended, held, next_end, first_end = row
    return _Kind(
        rows.text(queue),
        bool(whole),
        bool(automatic),
        int(ended),
        int(held),
        aware_if_any(next_end),
        aware_if_any(first_end),
    )


def _beside(moment: datetime, kinds: Sequence[_Kind], queues: Sequence[str]) -> Beside:
    shut = {each.queue for each in kinds if each.whole and each.held}
    by_a_person = {each.queue for each in kinds if each.whole and each.held and not each.automatic}
    past = {
        each.queue: each.first_end
        for each in kinds
        if each.automatic and each.first_end is not None and each.next_end is None
    }
    return Beside(
        moment,
        free=tuple(queue for queue in queues if queue not in shut),
        to_probe={queue: past[queue] for queue in queues if queue in past and queue not in by_a_person},
        next_end=min((each.next_end for each in kinds if each.next_end is not None), default=None),
    )
