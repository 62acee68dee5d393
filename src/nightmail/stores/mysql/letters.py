"""Dead letters in the hands of whoever looks after them: claimed like messages, but without levels, shares and lines.

find      candidates of all queues, the longest due first, by one statement that locks nothing
take      begin, and lock the first of them. What others have locked is passed over by a wider search
lease     write the leases, ask when to look again, and commit. Only after that is anything handed out
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from nightmail.clock import Clock
from nightmail.message import Delivery
from nightmail.outcome import Dead, Done
from nightmail.store import Claimed, Settlement
from nightmail.stores._sql import Statement
from nightmail.stores.mysql import rows
from nightmail.stores.mysql.lane import Lane
from nightmail.stores.mysql.link import Answer, Link
from nightmail.stores.mysql.moments import LATEST, NOTICE_HORIZON, aware, later, microseconds, now
from nightmail.stores.mysql.settling import Settling, after, kind, leases
from nightmail.stores.mysql.text import Sql, Value, filled, literal, several, union
from nightmail.stores.mysql.transaction import Session

WIDER: Final = 4
"""By how much a search is widened when others have locked what it found."""
NOTHING: Final = Claimed((), None)


@dataclass(slots=True)
class _Look:
    """One look: at which moment, what was locked so far, and what need not be tried again."""

    queues: Sequence[str]
    limit: int
    now: Sql
    """The moment of this look: the server's clock, and once it was read, what it showed."""
    moment: datetime = LATEST
    taken: list[Sequence[Any]] = field(default_factory=list)
    # No letter has the id 0, and an empty list would let nothing pass.
    tried: list[int] = field(default_factory=lambda: [0])
    begun: bool = False

    @property
    def room(self) -> int:
        return self.limit - len(self.taken)


class LetterClaims:
    """Claims of dead letters."""

    def __init__(self, lane: Lane, statements: Mapping[str, Statement], clock: Clock) -> None:
        self._lane = lane
        self._statements = statements
        self._clock = clock

    async def claim(self, queues: Sequence[str], *, limit: int, lease: timedelta, token: UUID) -> Claimed:
        """See `Store.claim_dead`."""
        named = tuple(dict.fromkeys(queues))
        if not named or limit <= 0:
            return NOTHING

        async def claim(link: Link) -> Claimed:
            look = _Look(named, limit, now(self._clock))
            await self._take(link, look)
            return await self._lease(link, look, lease, token)

        return await self._lane.run(claim)

    async def recall(self, queues: Sequence[str], token: UUID) -> Sequence[Delivery]:
        """See `Store.recall_dead`."""
        values: dict[str, Value] = {
            "queues": [queue.encode() for queue in queues],
            "token": token,
            "now": now(self._clock),
        }
        (found,) = await self._lane.run(lambda link: link.ask(self._filled("recall", values)))
        recalled = [rows.letter(row, token, aware(row[17]), row[10]) for row in found.rows]
        return sorted(recalled, key=lambda letter: (letter.due_at, letter.id))

    async def _take(self, link: Link, look: _Look) -> None:
        """Take what is wanted; come back short only when there is no more."""
        limit = look.room
        while look.room:
            found = await self._find(link, look, limit)
            first, rest = found[: look.room], found[look.room :]
            got = await self._lock(link, look, first)
            if not got:
                # All of them are locked by others, and perhaps many more: whoever is free.
                await self._lock(link, look, rest)
            if len(found) < limit and (not got or not rest):
                return
            limit = look.room if got else limit * WIDER

    async def _find(self, link: Link, look: _Look, limit: int) -> list[int]:
        """The ids of what could be taken, the longest due first."""
        values: dict[str, Value] = {"now": look.now, "tried": look.tried, "limit": limit}
        branches = [f"(select {look.now} as due_at, 0 as id)"]
        branches += [self._filled("candidates", {**values, "queue": queue.encode()}) for queue in look.queues]
        (found,) = await link.ask(union(branches))
        # The server need not keep the branches in order. The moment has the id that no letter has.
        places = sorted((row[0], row[1]) for row in found.rows)
        (moment,) = (at for at, id_ in places if id_ == 0)
        look.now, look.moment = Sql(literal(aware(moment))), aware(moment)
        return [id_ for _, id_ in places if id_ != 0][:limit]

    async def _lock(self, link: Link, look: _Look, ids: Sequence[int]) -> int:
        """Lock these, up to what is wanted; how many could be."""
        if not ids:
            return 0
        look.tried += ids
        take = self._filled("take", {"ids": several(ids), "now": look.now, "limit": look.room})
        begin = () if look.begun else ("begin",)
        look.begun = True
        locked = (await link.ask(*begin, take))[-1].rows
        look.taken += locked
        return len(locked)

    async def _lease(self, link: Link, look: _Look, lease: timedelta, token: UUID) -> Claimed:
        # The commit last: see the claims of messages.
        upcoming = [self._upcoming(look)] if look.room else []
        packet = upcoming
        if look.taken:
            values: dict[str, Value] = {
                "token": token,
                "now": look.now,
                "until": later(look.now, lease),
                "ids": [row[0] for row in look.taken],
            }
            packet = [self._filled("lease", values), *upcoming, Sql("commit")]
        elif look.begun:
            packet = [Sql("rollback"), *upcoming]
        answers = await link.ask(*packet)
        taken = [rows.letter(row, token, look.moment, row[10] + 1) for row in look.taken]
        taken.sort(key=lambda letter: (letter.due_at, letter.id))
        return Claimed(taken, _next_in(look, answers[1 if look.begun else 0]) if upcoming else None)

    def _upcoming(self, look: _Look) -> Sql:
        """When the next letter of these queues may be taken, or the next lease on one of them ends."""
        return union(
            self._filled(name, {"queue": queue.encode(), "now": look.now})
            for queue in look.queues
            for name in ("coming", "expiring")
        )

    def _filled(self, name: str, values: Mapping[str, Value]) -> Sql:
        return filled(self._statements[name], values)


def _next_in(look: _Look, upcoming: Answer) -> timedelta | None:
    moments = [aware(row[0]) for row in upcoming.rows if row[0] is not None]
    return min(moments) - look.moment if moments else None


class LetterSettling(Settling):
    """Settle, extend, hold and ack of letters: as of messages, in another table. Nothing of them is kept."""

    what = "dead letter"

    async def remove(self, session: Session, deliveries: Sequence[Delivery]) -> None:
        """End as done what was just held."""
        if deliveries:
            await session.ask(self._filled("remove", {"leases": leases(deliveries)}))

    def _writes(self, batch: Sequence[Settlement], begun: Sql) -> list[Sql]:
        done = [each.delivery for each in batch if isinstance(each.outcome, Done)]
        stay = [each for each in batch if not isinstance(each.outcome, Done)]
        writes: list[Sql] = []
        if done:
            writes.append(self._filled("remove", {"leases": leases(done, begun)}))
        if stay:
            returned = [
                [each.delivery.id, kind(each.outcome), microseconds(after(each.outcome))] for each in stay
            ]
            values: dict[str, Value] = {
                "leases": leases((each.delivery for each in stay), begun),
                "now": now(self._clock),
                "returned": json.dumps(returned),
            }
            writes.append(self._filled("bring_back", values))
        return writes

    def _awake(self, settled: Sequence[Settlement], answers: Sequence[Answer]) -> set[str]:
        return {
            each.delivery.queue
            for each in settled
            if not isinstance(each.outcome, Done | Dead) and after(each.outcome) < NOTICE_HORIZON
        }
