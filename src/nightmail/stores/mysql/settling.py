"""Everything that is written under a lease, on a connection of our own or in the caller's transaction.

On our own: begin, lock, write and commit go out in one packet. If one of the rows is locked it fails at once, and is
retried in two packets for the rows that are not locked. Each write checks that the transaction is still open.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar, Final
from uuid import UUID

from nightmail.clock import Clock
from nightmail.errors import LeaseLost
from nightmail.message import Delivery
from nightmail.outcome import Dead, Done, Outcome, Postpone, Release, Retry, WriteResult
from nightmail.store import Settlement
from nightmail.stores.mysql.errors import is_locked, is_refusal, number_of
from nightmail.stores.mysql.lane import Lane
from nightmail.stores.mysql.link import Link
from nightmail.stores.mysql.moments import EARLIEST, NOTICE_HORIZON, microseconds, now
from nightmail.stores.mysql.rows import text
from nightmail.stores.mysql.text import ALWAYS, Sql, Value, filled, literal, several
from nightmail.stores.mysql.transaction import Session
from nightmail.stores.shared.duplicates import split_duplicates
from nightmail.stores.sql.statements import Statement

logger = logging.getLogger(__name__)

A_MOMENT: Final = 0.015
_ZERO: Final = timedelta(0)


def by_token(deliveries: Iterable[Delivery]) -> dict[UUID, list[int]]:
    """The ids leased under each token."""
    found: defaultdict[UUID, list[int]] = defaultdict(list)
    for delivery in deliveries:
        found[delivery.token].append(delivery.id)
    return found


def fenced(leased: Mapping[UUID, Iterable[int]], begun: Sql = ALWAYS) -> Sql:
    """The fence: ids under their tokens. `begun`: nothing passes it outside of a transaction (see `Dialect.begun`)."""
    held = [
        f"(m.id in {literal(several(sorted(ids)))} and m.token = {literal(token)})"
        for token, ids in leased.items()
    ]
    return Sql(f"(({' or '.join(held)}) and {begun})" if held else "false")


def leases(deliveries: Iterable[Delivery], begun: Sql = ALWAYS) -> Sql:
    """The fence of these deliveries."""
    return fenced(by_token(deliveries), begun)


class Settling:
    """Settle, extend, hold and ack. `ring` gets the queues in which something becomes available.

    `came_back` is called when a message was returned without losing its position.
    """

    what: ClassVar = "message"

    def __init__(
        self,
        statements: Mapping[str, Statement],
        clock: Clock,
        ring: Callable[[Iterable[str]], None],
        came_back: Callable[[], None],
        *,
        keep_delivered: bool,
    ) -> None:
        self._statements = statements
        self._clock = clock
        self._ring = ring
        self._came_back = came_back
        self._keep_delivered = keep_delivered

    # ------------------------------------------------------------------ on a connection of our own

    async def settle(self, lane: Lane, batch: Sequence[Settlement]) -> list[WriteResult]:
        """See `Store.settle`."""
        results: dict[int, WriteResult] = {}
        for part in split_duplicates([settlement.delivery for settlement in batch]):
            found = await lane.run(partial(self._settle, batch=[batch[place] for place in part]))
            results.update(zip(part, found, strict=True))
        return [results[place] for place in range(len(batch))]

    async def extend(self, lane: Lane, deliveries: Sequence[Delivery], lease: timedelta) -> list[WriteResult]:
        """See `Store.extend`."""
        results: dict[int, WriteResult] = {}
        for part in split_duplicates(deliveries):
            chosen = [deliveries[place] for place in part]
            found = await lane.run(partial(self._extend, deliveries=chosen, lease=lease))
            results.update(zip(part, found, strict=True))
        return [results[place] for place in range(len(deliveries))]

    async def recall(self, lane: Lane, queues: Sequence[str], token: UUID) -> int:
        """See `Store.recall`."""
        recalled = await lane.run(partial(self._recall, queues=queues, token=token))
        if recalled:
            self._came_back()
            self._ring(dict.fromkeys(recalled.values()))
        return len(recalled)

    async def _recall(self, link: Link, queues: Sequence[str], token: UUID) -> dict[int, str]:
        """Release what is leased under this token and not locked by others; returns the ids and queues."""
        values: dict[str, Value] = {
            "queues": [queue.encode() for queue in queues],
            "ever": EARLIEST,
            "token": token,
        }
        (found,) = await link.ask(self._filled("leased_under", values))
        leased = {row[0]: text(row[1]) for row in found.rows}
        if not leased:
            return {}
        fence = fenced({token: leased})
        _, locked = await link.ask("begin", self._filled("lock_unlocked", {"leases": fence}))
        ids = [row[0] for row in locked.rows]
        back = self._bring_back({token: ids}, [(id_, Release()) for id_ in ids], link.dialect.begun)
        await link.ask(back, "commit")
        return {id_: leased[id_] for id_ in ids}

    def _tell(self, settled: Sequence[Settlement]) -> None:
        """Ring for what becomes available by this."""
        if any(isinstance(each.outcome, Release) for each in settled):
            self._came_back()
        self._ring(self._awake(settled))

    async def _settle(
        self, link: Link, batch: Sequence[Settlement], *, patient: bool = True
    ) -> list[WriteResult]:
        by_id = {settlement.delivery.id: settlement for settlement in batch}

        def writes(deliveries: Sequence[Delivery]) -> list[Sql]:
            return self._writes([by_id[delivery.id] for delivery in deliveries], link.dialect.begun)

        try:
            settled = await self._fenced(link, [each.delivery for each in batch], writes)
        except Exception as error:
            if not is_refusal(error):
                raise
            await link.ask("rollback")
            return await self._settle_halves(link, batch, error)
        missing = [each.delivery for each in batch if each.delivery.id not in settled]
        leased = await self._still_leased(link, missing)
        self._tell([each for each in batch if each.delivery.id in settled])
        if leased and patient:
            # Another session may have locked a row only for a moment, to check it.
            await asyncio.sleep(A_MOMENT)
            left = [each for each in batch if each.delivery.id in leased]
            again = await self._settle(link, left, patient=False)
            results = {each.delivery.id: result for each, result in zip(left, again, strict=True)}
            return [results.get(each.delivery.id) or _standing(each, settled, set()) for each in batch]
        return [_standing(each, settled, leased) for each in batch]

    async def _settle_halves(
        self, link: Link, batch: Sequence[Settlement], error: Exception
    ) -> list[WriteResult]:
        """One row that the server refuses must not keep the others in its batch from being settled."""
        if len(batch) > 1:
            half = len(batch) // 2
            return [*await self._settle(link, batch[:half]), *await self._settle(link, batch[half:])]
        logger.error(
            "the server refuses to settle %s %d: %s", self.what, batch[0].delivery.id, number_of(error)
        )
        return [WriteResult.BUSY]

    async def _extend(
        self, link: Link, deliveries: Sequence[Delivery], lease: timedelta
    ) -> list[WriteResult]:
        def writes(chosen: Sequence[Delivery]) -> list[Sql]:
            values: dict[str, Value] = {
                "leases": leases(chosen, link.dialect.begun),
                "lease": microseconds(lease),
                "now": now(self._clock),
            }
            return [self._filled("extend", values)]

        held = await self._fenced(link, deliveries, writes)
        leased = await self._still_leased(link, [each for each in deliveries if each.id not in held])
        return [_lease_standing(delivery.id, held, leased) for delivery in deliveries]

    async def _fenced(
        self, link: Link, deliveries: Sequence[Delivery], writes: Callable[[Sequence[Delivery]], list[Sql]]
    ) -> set[int]:
        """Lock what is still under its lease, and write; returns its ids.

        Each write is fenced, and what is locked cannot change: every write skips what is lost.
        """
        if not deliveries:
            return set()
        lock = self._filled("lock_at_once", {"leases": leases(deliveries)})
        try:
            _, locked, *_ = await link.ask("begin", lock, *writes(deliveries), "commit")
        except Exception as error:
            if not is_locked(error):
                raise
        else:
            return {row[0] for row in locked.rows}
        await link.ask("rollback")
        return await self._fenced_unlocked(link, deliveries, writes)

    async def _fenced_unlocked(
        self, link: Link, deliveries: Sequence[Delivery], writes: Callable[[Sequence[Delivery]], list[Sql]]
    ) -> set[int]:
        """The same, skipping locked rows: a locked row must not hold up the others."""
        try:
            _, locked = await link.ask("begin", self._filled("lock_unlocked", {"leases": leases(deliveries)}))
            ids = {row[0] for row in locked.rows}
            await link.ask(*writes([each for each in deliveries if each.id in ids]), "commit")
        except Exception as error:
            if not is_locked(error):
                raise
            # Not a row this time: the whole table is locked.
            await link.ask("rollback")
            return set()
        return ids

    async def _still_leased(self, link: Link, missing: Sequence[Delivery]) -> set[int]:
        """Read with a new snapshot: a row may have been unlocked, or taken over, in between."""
        if not missing:
            return set()
        (found,) = await link.ask(self._filled("still_leased", {"leases": leases(missing)}))
        return {row[0] for row in found.rows}

    def _writes(self, batch: Sequence[Settlement], begun: Sql) -> list[Sql]:
        """The statements that settle these."""
        done = [each.delivery for each in batch if isinstance(each.outcome, Done)]
        dead = [(each.delivery, each.outcome) for each in batch if isinstance(each.outcome, Dead)]
        back = [each for each in batch if not isinstance(each.outcome, Done | Dead)]
        moment = now(self._clock)
        writes: list[Sql] = []
        if done and self._keep_delivered:
            writes.append(self._filled("keep", {"leases": leases(done, begun), "now": moment}))
        if dead:
            fence = leases((delivery for delivery, _ in dead), begun)
            letters = json.dumps([_letter(delivery, outcome) for delivery, outcome in dead])
            writes.append(self._filled("bury", {"leases": fence, "now": moment, "letters": letters}))
        if done or dead:
            ended = [*done, *(delivery for delivery, _ in dead)]
            writes.append(self._filled("remove", {"leases": leases(ended, begun)}))
        if back:
            outcomes = [(each.delivery.id, each.outcome) for each in back]
            writes.append(self._bring_back(by_token(each.delivery for each in back), outcomes, begun))
        return writes

    def _bring_back(
        self, leased: Mapping[UUID, Iterable[int]], outcomes: Iterable[tuple[int, Outcome]], begun: Sql
    ) -> Sql:
        returned = [[id_, kind(outcome), microseconds(after(outcome))] for id_, outcome in outcomes]
        values: dict[str, Value] = {
            "leases": fenced(leased, begun),
            "now": now(self._clock),
            "returned": json.dumps(returned),
        }
        return self._filled("bring_back", values)

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

    def _filled(self, name: str, values: Mapping[str, Value]) -> Sql:
        return filled(self._statements[name], values)

    # ------------------------------------------------------------------ in the caller's transaction

    async def hold(self, session: Session, deliveries: Sequence[Delivery]) -> None:
        """See `Store.hold`."""
        if not deliveries:
            return
        unique = {(delivery.id, delivery.token) for delivery in deliveries}
        if len({id_ for id_, _ in unique}) < len(unique):
            # One message under two tokens: one of the leases is lost, so not all can be held.
            ids = [id_ for id_, _ in unique]
            raise LeaseLost([id_ for id_ in dict.fromkeys(ids) if ids.count(id_) > 1])
        found = await session.ask(self._filled("hold", {"leases": leases(deliveries)}))
        held = {row[0] for row in found.rows}
        lost = [delivery.id for delivery in deliveries if delivery.id not in held]
        if lost:
            raise LeaseLost(lost)

    async def remove(self, session: Session, deliveries: Sequence[Delivery]) -> None:
        """Ack what was just held."""
        if not deliveries:
            return
        values: dict[str, Value] = {"leases": leases(deliveries), "now": now(self._clock)}
        if self._keep_delivered:
            await session.ask(self._filled("keep", values))
        await session.ask(self._filled("remove", values))


def _standing(settlement: Settlement, settled: set[int], leased: set[int]) -> WriteResult:
    result = _lease_standing(settlement.delivery.id, settled, leased)
    return WriteResult.UNKNOWN if result is WriteResult.LOST and settlement.repeated else result


def _lease_standing(id_: int, held: set[int], leased: set[int]) -> WriteResult:
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
