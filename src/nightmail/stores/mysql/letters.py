"""Dead letters for dead letter handlers: claimed like messages, but without levels, shares and lines.

find      candidates of all queues, the longest due first, by one statement that locks nothing
take      begin, lock the first of them, and read as many as fit. What others have locked is replaced by searching on
lease     write the leases, ask when to look again, and commit. Only after that is anything handed out
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, ClassVar, Final

from nightmail.clock import Clock
from nightmail.limits import MAX_STORED_HEADERS_BYTES, ByteBudget
from nightmail.outcome import ENDS, Done
from nightmail.store import Claimed, Settlement
from nightmail.stores.mysql import rows
from nightmail.stores.mysql.requests import SERVER, Answer, Server
from nightmail.stores.mysql.settling import Settling, after, by_token, leases
from nightmail.stores.mysql.text import NEVER, Queries, Sql, literal, several, union
from nightmail.stores.mysql.times import EARLIEST, LATEST, aware, later, now
from nightmail.stores.shared.meta import NOTICE_HORIZON
from nightmail.stores.shared.wanted import Wanted
from nightmail.stores.sql.verbs import Verb

WIDER: Final = 4
"""The factor by which a search widens when others have locked what it found."""
WIDEST: Final = 4000


@dataclass(frozen=True, slots=True)
class _Found:
    """A dead letter that can be claimed."""

    due_at: datetime
    id: int
    bytes: int
    too_large: bool


@dataclass(slots=True)
class _Look:
    """One look: its time, what was locked so far, and what not to try again."""

    wanted: Wanted
    budget: ByteBudget
    now: Sql
    """The time of this look: the server's clock; once read, the value it showed."""
    moment: datetime = LATEST
    taken: list[Sequence[Any]] = field(default_factory=list)
    given_up: list[int] = field(default_factory=list)
    """What cannot be handed out."""
    # No dead letter has the id 0, and an empty list would match nothing.
    tried: list[int] = field(default_factory=lambda: [0])
    begun: bool = False

    @property
    def room(self) -> int:
        return 0 if self.budget.spent else self.wanted.limit - len(self.taken)


class Letters(Settling):
    """The verbs of dead letter handlers. Under a lease they are those for messages, without a history."""

    what: ClassVar = "dead letter"
    stopped: ClassVar = NEVER

    def __init__(self, sql: Queries, clock: Clock, *, max_body_bytes: int) -> None:
        super().__init__(sql, clock)
        self._max_body_bytes = max_body_bytes

    # ---------------------------------------------------------------------------------------- claim

    def claim(self, wanted: Wanted) -> Verb[Claimed]:
        """See `Store.claim_dead`."""
        look = _Look(wanted, ByteBudget(wanted.max_bytes), now(self._clock))
        yield from self._take(look)
        return (yield from self._lease(look))

    def _take(self, look: _Look) -> Verb[None]:
        """Take what is wanted; take less only when there is no more."""
        limit = look.room
        while look.room:
            found = yield from self._find(look, limit)
            # Locked without reading them: how many fit is known only after that.
            free = yield from self._lock(look, found[: look.room])
            if not free:
                # Others have locked all of them, and perhaps many more: lock those that are free.
                free = yield from self._lock(look, found[look.room :])
            yield from self._read(look, [each for each in found if each.id in free])
            if len(found) < limit and all(each.id in look.tried for each in found):
                return
            limit = min(limit * WIDER, WIDEST)

    def _find(self, look: _Look, limit: int) -> Verb[list[_Found]]:
        """What can be claimed, the longest due first."""
        branches = [f"(select {look.now} as due_at, 0 as id, 0 as bytes, 0 as too_large)"]
        branches += [
            self._sql(
                "candidates",
                queue=queue.encode(),
                now=look.now,
                tried=look.tried,
                limit=limit,
                max_body_bytes=self._max_body_bytes,
                max_header_bytes=MAX_STORED_HEADERS_BYTES,
            )
            for queue in look.wanted.queues
        ]
        answer: Answer = yield union(branches)
        # The server need not keep the branches in order. The row with the clock has the id 0.
        found: list[_Found] = []
        for due_at, id_, size, too_large in answer.rows:
            if id_ == 0:
                look.moment = aware(due_at)
                look.now = Sql(literal(look.moment))
            else:
                readable = aware(due_at) if isinstance(due_at, datetime) else EARLIEST
                found.append(_Found(readable, id_, int(size), bool(too_large)))
        return sorted(found, key=lambda each: (each.due_at, each.id))[:limit]

    def _lock(self, look: _Look, found: Sequence[_Found]) -> Verb[set[int]]:
        """Lock those of these that others have not; returns the ids to read."""
        if not found:
            return set()
        look.tried += [each.id for each in found]
        ids = several(each.id for each in found)
        lock = self._sql("take", ids=ids, now=look.now, limit=len(found))
        begin = () if look.begun else ("begin",)
        look.begun = True
        locked = {row[0] for row in (yield (*begin, lock))[-1].rows}
        look.given_up += [each.id for each in found if each.too_large and each.id in locked]
        return {each.id for each in found if not each.too_large and each.id in locked}

    def _read(self, look: _Look, free: Sequence[_Found]) -> Verb[None]:
        """Take as many of these, which are locked, as fit."""
        fitting = [each.id for each in free[: look.room] if look.budget.take(each.bytes)]
        if not fitting:
            return
        found: Answer = yield self._sql("read", ids=fitting)
        for row in found.rows:
            if rows.is_readable_letter(row):
                look.taken.append(row)
            else:
                look.given_up.append(row[0])

    def _lease(self, look: _Look) -> Verb[Claimed]:
        # The commit last: see the claims of messages.
        token = look.wanted.token
        upcoming = [self._upcoming(look)] if look.room else []
        moment = now(self._clock)
        writes: list[Sql] = []
        if look.taken:
            ids = [row[0] for row in look.taken]
            until = later(moment, look.wanted.lease)
            writes.append(self._sql("lease", token=token, now=moment, until=until, ids=ids))
            writes.append(self._sql("leased_at", id=ids[0]))
        if look.given_up:
            server: Server = yield SERVER
            writes.append(self._sql("give_up", ids=look.given_up, begun=server.dialect.begun))
        if writes:
            packet = [*writes, *upcoming, Sql("commit")]
        else:
            packet = [Sql("rollback"), *upcoming] if look.begun else upcoming
        answers: list[Answer] = (yield tuple(packet)) if packet else []
        if writes:
            answers.pop()
        next_in = _next_in(look, answers[-1]) if upcoming else None
        if not look.taken:
            return Claimed((), next_in, full=look.room == 0)
        claimed_at = aware(answers[1].rows[0][0])
        taken = [rows.letter(row, token, claimed_at, rows.counted(row[10])) for row in look.taken]
        taken.sort(key=lambda letter: (letter.due_at, letter.id))
        return Claimed(taken, next_in, full=look.room == 0)

    def _upcoming(self, look: _Look) -> Sql:
        """When the next dead letter of these queues is due, or the next lease on one of them ends."""
        return union(
            self._sql(name, queue=queue.encode(), now=look.now)
            for queue in look.wanted.queues
            for name in ("upcoming", "expiring")
        )

    # --------------------------------------------------------------------------------------- settle

    def _writes(self, batch: Sequence[Settlement], begun: Sql) -> list[Sql]:
        done = [each.delivery for each in batch if isinstance(each.outcome, Done)]
        stay = [each for each in batch if not isinstance(each.outcome, Done)]
        writes: list[Sql] = []
        if done:
            writes.append(self._sql("remove", leases=leases(done, begun)))
        if stay:
            outcomes = [(each.delivery.id, each.outcome) for each in stay]
            writes.append(self._bring_back(by_token(each.delivery for each in stay), outcomes, begun))
        return writes

    def _awake(self, settled: Sequence[Settlement]) -> set[str]:
        return {
            each.delivery.queue
            for each in settled
            if not isinstance(each.outcome, ENDS) and after(each.outcome) < NOTICE_HORIZON
        }


def _next_in(look: _Look, upcoming: Answer) -> timedelta | None:
    moments = [aware(row[0]) for row in upcoming.rows if isinstance(row[0], datetime)]
    return min(moments) - look.moment if moments else None
