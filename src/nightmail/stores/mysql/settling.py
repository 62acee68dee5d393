"""Everything that is written under a lease, on a connection of our own or in the caller's transaction.

On our own: begin, lock, write and commit go out in one packet. If one of the rows is locked it fails at once, and is
retried in two packets for the rows that are not locked. Each write checks that the transaction is still open.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, ClassVar, Final, TypeAlias
from uuid import UUID

from nightmail.clock import Clock
from nightmail.describing import last_error
from nightmail.errors import LeaseLost
from nightmail.json_log import about
from nightmail.message import Delivery
from nightmail.outcome import ENDS, Dead, Done, Outcome, Postpone, Release, Retry, WriteResult
from nightmail.store import Settlement
from nightmail.stores.mysql.errors import is_locked, is_refusal, number_of
from nightmail.stores.mysql.requests import CHECK_TABLES, SERVER, Answer, Pause, Server
from nightmail.stores.mysql.rows import text
from nightmail.stores.mysql.text import ALWAYS, Queries, Sql, literal, several
from nightmail.stores.mysql.times import EARLIEST, microseconds, now
from nightmail.stores.shared.duplicates import split_duplicates
from nightmail.stores.shared.meta import NOTICE_HORIZON
from nightmail.stores.sql.verbs import Change, Verb

logger = logging.getLogger(__name__)

A_MOMENT: Final = 0.015
_ZERO: Final = timedelta(0)
_Writes: TypeAlias = Callable[[Sequence[Delivery]], list[Sql]]
"""The statements that write what is to become of these deliveries."""


def by_token(deliveries: Iterable[Delivery]) -> dict[UUID, list[int]]:
    """The ids leased under each token."""
    found: dict[UUID, list[int]] = {}
    token, ids = None, list[int]()
    for delivery in deliveries:
        if delivery.token is not token:  # Messages claimed together share it, and its hash is a call.
            token = delivery.token
            ids = found.setdefault(token, [])
        ids.append(delivery.id)
    return found


def fenced(leased: Mapping[UUID, Iterable[int]], begun: Sql = ALWAYS) -> Sql:
    """The fence: ids under their tokens. `begun`: nothing passes it outside of a transaction (see `Dialect.begun`)."""
    held = [
        f"(m.id in {several(sorted(ids))} and m.token = {literal(token)})" for token, ids in leased.items()
    ]
    return Sql(f"(({' or '.join(held)}) and {begun})" if held else "false")


def leases(deliveries: Iterable[Delivery], begun: Sql = ALWAYS) -> Sql:
    """The fence of these deliveries."""
    return fenced(by_token(deliveries), begun)


class Settling:
    """The verbs under a lease, for messages."""

    what: ClassVar = "message"
    stopped: ClassVar = Sql("m.stop_requested_by is not null")
    """Whether the holder is asked to stop."""

    def __init__(self, sql: Queries, clock: Clock, *, keep_delivered: bool = False) -> None:
        self._sql = sql
        self._clock = clock
        self._keep_delivered = keep_delivered

    # ------------------------------------------------------------------ on a connection of our own

    def settle(self, batch: Sequence[Settlement]) -> Verb[Change[list[WriteResult]]]:
        """See `Store.settle`. No message may be in it twice."""
        server: Server = yield SERVER
        rings: set[str] = set()
        results = yield from self._settle(batch, server.dialect.begun, rings)
        return Change(results, frozenset(rings))

    def extend(self, deliveries: Sequence[Delivery], lease: timedelta) -> Verb[list[WriteResult]]:
        """See `Store.extend`."""
        server: Server = yield SERVER
        results: dict[int, WriteResult] = {}
        for part in split_duplicates(deliveries):
            chosen = [deliveries[place] for place in part]
            found = yield from self._extend(chosen, lease, server.dialect.begun)
            results.update(zip(part, found, strict=True))
        return [results[place] for place in range(len(deliveries))]

    def recall(self, queues: Sequence[str], token: UUID) -> Verb[Change[int]]:
        """See `Store.recall`. Leaves alone what others have locked."""
        server: Server = yield SERVER
        found: Answer = yield self._sql(
            "leased_under", queues=[queue.encode() for queue in queues], ever=EARLIEST, token=token
        )
        leased = {row[0]: text(row[1]) for row in found.rows}
        if not leased:
            return Change(0)
        _, locked = yield "begin", self._lock_unlocked(fenced({token: leased}))
        ids = [row[0] for row in locked.rows]
        back = self._bring_back({token: ids}, [(id_, Release()) for id_ in ids], server.dialect.begun)
        yield back, "commit"
        return Change(len(ids), frozenset(leased[id_] for id_ in ids))

    def _settle(
        self, batch: Sequence[Settlement], begun: Sql, rings: set[str], *, patient: bool = True
    ) -> Verb[list[WriteResult]]:
        """Settle these, and add to `rings` the queues in which something becomes available by it."""
        by_id = {settlement.delivery.id: settlement for settlement in batch}

        def writes(deliveries: Sequence[Delivery]) -> list[Sql]:
            return self._writes([by_id[delivery.id] for delivery in deliveries], begun)

        try:
            settled = yield from self._fenced([each.delivery for each in batch], writes)
        except Exception as error:
            if not is_refusal(error):
                raise
            yield "rollback"
            return (yield from self._settle_halves(batch, begun, rings, error))
        rings |= self._awake([each for each in batch if each.delivery.id in settled])
        missing = [each.delivery for each in batch if each.delivery.id not in settled]
        if not missing:
            return [WriteResult.WRITTEN] * len(batch)
        leased = yield from self._still_leased(missing)
        if leased and patient:
            # Another session may have locked a row only for a moment, to check it.
            yield Pause(A_MOMENT)
            left = [each for each in batch if each.delivery.id in leased]
            again = yield from self._settle(left, begun, rings, patient=False)
            results = {each.delivery.id: result for each, result in zip(left, again, strict=True)}
            return [results.get(each.delivery.id) or _standing(each, settled, set()) for each in batch]
        return [_standing(each, settled, leased) for each in batch]

    def _settle_halves(
        self, batch: Sequence[Settlement], begun: Sql, rings: set[str], error: Exception
    ) -> Verb[list[WriteResult]]:
        """One row that the server refuses must not keep the others in its batch from being settled."""
        if len(batch) > 1:
            half = len(batch) // 2
            first = yield from self._settle(batch[:half], begun, rings)
            second = yield from self._settle(batch[half:], begun, rings)
            return [*first, *second]
        refused = batch[0].delivery
        logger.error(
            "the server refuses to settle %s %d: %s",
            self.what,
            refused.id,
            number_of(error),
            extra=about(refused),
        )
        return [WriteResult.BUSY]

    def _extend(
        self, deliveries: Sequence[Delivery], lease: timedelta, begun: Sql
    ) -> Verb[list[WriteResult]]:
        def writes(chosen: Sequence[Delivery]) -> list[Sql]:
            fence = leases(chosen, begun)
            return [self._sql("extend", leases=fence, lease=microseconds(lease), now=now(self._clock))]

        held = yield from self._fenced(deliveries, writes)
        missing = [each for each in deliveries if each.id not in held]
        leased = (yield from self._still_leased(missing)) if missing else set()
        stopped = {id_ for id_, stop in held.items() if stop}
        return [
            WriteResult.STOP if each.id in stopped else _lease_standing(each.id, held, leased)
            for each in deliveries
        ]

    def _fenced(self, deliveries: Sequence[Delivery], writes: _Writes) -> Verb[dict[int, int]]:
        """Lock what is still under its lease, and write; returns its ids, each with whether to stop.

        Each write is fenced, and what is locked cannot change: every write skips what is lost.
        """
        lock = self._sql("lock_leased", leases=leases(deliveries), stopped=self.stopped)
        try:
            _, locked, *_ = yield "begin", lock, *writes(deliveries), "commit"
        except Exception as error:
            if not is_locked(error):
                raise
        else:
            return dict(locked.rows)
        yield "rollback"
        return (yield from self._fenced_unlocked(deliveries, writes))

    def _fenced_unlocked(self, deliveries: Sequence[Delivery], writes: _Writes) -> Verb[dict[int, int]]:
        """The same, skipping locked rows: a locked row must not hold up the others."""
        try:
            _, locked = yield "begin", self._lock_unlocked(leases(deliveries))
            held = dict(locked.rows)
            yield *writes([each for each in deliveries if each.id in held]), "commit"
        except Exception as error:
            if not is_locked(error):
                raise
            # Not a row this time: the whole table is locked.
            yield "rollback"
            return {}
        return held

    def _lock_unlocked(self, fence: Sql) -> Sql:
        return self._sql("lock_leased_unlocked", leases=fence, stopped=self.stopped)

    def _still_leased(self, missing: Sequence[Delivery]) -> Verb[set[int]]:
        """Read with a new snapshot: a row may have been unlocked, or taken over, in between."""
        found: Answer = yield self._sql("still_leased", leases=leases(missing))
        return {row[0] for row in found.rows}

    def _writes(self, batch: Sequence[Settlement], begun: Sql) -> list[Sql]:
        """The statements that settle these."""
        done = [each.delivery for each in batch if isinstance(each.outcome, Done)]
        dead = [(each.delivery, each.outcome) for each in batch if isinstance(each.outcome, Dead)]
        back = [each for each in batch if not isinstance(each.outcome, ENDS)]
        moment = now(self._clock)
        writes: list[Sql] = []
        if done and self._keep_delivered:
            writes.append(self._sql("keep", leases=leases(done, begun), now=moment))
        if dead:
            fence = leases((delivery for delivery, _ in dead), begun)
            letters = json.dumps([_letter(delivery, outcome) for delivery, outcome in dead])
            writes.append(self._sql("bury", leases=fence, now=moment, letters=letters))
        if done or dead:
            ended = [*done, *(delivery for delivery, _ in dead)]
            writes.append(self._sql("remove", leases=leases(ended, begun)))
        if back:
            outcomes = [(each.delivery.id, each.outcome) for each in back]
            writes.append(self._bring_back(by_token(each.delivery for each in back), outcomes, begun))
        return writes

    def _bring_back(
        self, leased: Mapping[UUID, Iterable[int]], outcomes: Iterable[tuple[int, Outcome]], begun: Sql
    ) -> Sql:
        returned = [
            [id_, kind(outcome), microseconds(after(outcome)), last_error(outcome)]
            for id_, outcome in outcomes
        ]
        return self._sql(
            "bring_back", leases=fenced(leased, begun), now=now(self._clock), returned=json.dumps(returned)
        )

    def _awake(self, settled: Sequence[Settlement]) -> set[str]:
        """The queues in which something may become available: a returned message, a dead letter, the next of a key.

        Whether another message waits for the key cannot be known here: one may be about to commit.
        """
        return {
            each.delivery.queue
            for each in settled
            if each.delivery.ordering_key is not None
            or (not isinstance(each.outcome, Done) and after(each.outcome) < NOTICE_HORIZON)
        }

    # ------------------------------------------------------------------ in the caller's transaction

    def hold(self, deliveries: Sequence[Delivery]) -> Verb[Change[None]]:
        """See `Store.hold`."""
        # Locked first: a caller's snapshot taken earlier could be older than the last renewal.
        try:
            yield from self._hold(deliveries)
        except LeaseLost:
            yield CHECK_TABLES  # Or these were not our tables.
            raise
        yield CHECK_TABLES
        return Change(None)

    def ack(self, deliveries: Sequence[Delivery]) -> Verb[Change[None]]:
        """See `Store.ack`."""
        yield from self.hold(deliveries)
        if deliveries:
            fence = leases(deliveries)
            if self._keep_delivered:
                yield self._sql("keep", leases=fence, now=now(self._clock))
            yield self._sql("remove", leases=fence)
        return Change(None)

    def _hold(self, deliveries: Sequence[Delivery]) -> Verb[None]:
        if not deliveries:
            return
        unique = {(delivery.id, delivery.token) for delivery in deliveries}
        if len({id_ for id_, _ in unique}) < len(unique):
            # One message under two tokens: one of the leases is lost, so not all can be held.
            ids = [id_ for id_, _ in unique]
            raise LeaseLost([id_ for id_ in dict.fromkeys(ids) if ids.count(id_) > 1])
        found: Answer = yield self._sql("hold", leases=leases(deliveries))
        held = {row[0] for row in found.rows}
        lost = [delivery.id for delivery in deliveries if delivery.id not in held]
        if lost:
            raise LeaseLost(lost)


def _standing(settlement: Settlement, settled: Container[int], leased: Container[int]) -> WriteResult:
    result = _lease_standing(settlement.delivery.id, settled, leased)
    return WriteResult.UNKNOWN if result is WriteResult.LOST and settlement.repeated else result


def _lease_standing(id_: int, held: Container[int], leased: Container[int]) -> WriteResult:
    return WriteResult.WRITTEN if id_ in held else WriteResult.BUSY if id_ in leased else WriteResult.LOST


def _letter(delivery: Delivery, outcome: Dead) -> list[Any]:
    return [delivery.id, int(outcome.ran), outcome.reason, outcome.error]


def kind(outcome: Outcome) -> str:
    """The outcome's name in the statements."""
    return type(outcome).__name__.lower()


def after(outcome: Outcome) -> timedelta:
    """How long until this can be claimed again."""
    match outcome:
        case Retry(length) | Postpone(length):
            return length
        case Release() | Done() | Dead():
            return _ZERO
