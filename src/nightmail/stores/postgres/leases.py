"""Writes under a lease, on a message or a dead letter: on our connections or in a caller's transaction."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from datetime import timedelta
from operator import attrgetter
from typing import Any, ClassVar, Final
from uuid import UUID

import asyncpg

from nightmail.clock import Clock
from nightmail.errors import LeaseLost
from nightmail.json_log import about
from nightmail.message import Delivery
from nightmail.outcome import WriteResult
from nightmail.store import Settlement
from nightmail.stores.postgres.errors import is_refusal
from nightmail.stores.postgres.requests import FirstAsk, InTransaction
from nightmail.stores.postgres.rows import answer
from nightmail.stores.postgres.times import duration
from nightmail.stores.shared.duplicates import split_duplicates
from nightmail.stores.sql.statements import Statement
from nightmail.stores.sql.verbs import Ask, Change, Verb

logger = logging.getLogger(__name__)

_ID: Final = attrgetter("id")
PASSED_OVER: Final = 10_000
"""How many waiting messages of a level a recall passes over."""


def lease_values(deliveries: Sequence[Delivery]) -> dict[str, Any]:
    """Ids and tokens as the statements need them: sorted by id. Each id may be there once."""
    ordered = sorted(deliveries, key=_ID)
    return {
        "ids": [delivery.id for delivery in ordered],
        "tokens": [delivery.token for delivery in ordered],
    }


class UnderLease(ABC):
    """Settle, extend, hold, ack and recall for one kind of delivery."""

    what: ClassVar[str]
    """What is under these leases, for logs."""
    suffix: ClassVar[str]
    """At the end of the names of the statements."""

    def __init__(self, statements: Mapping[str, Statement], clock: Clock) -> None:
        self._statements = statements
        self._clock = clock

    @abstractmethod
    def _ending(self, batch: Sequence[Settlement]) -> Ask:
        """The statement that writes these outcomes and returns the ids of those still leased under their tokens."""

    def _ack_values(self) -> dict[str, Any]:
        """Further parameters of an ack."""
        return {}

    # ------------------------------------------------------------------ on a connection of our own

    def settle(self, batch: Sequence[Settlement]) -> Verb[Change[list[WriteResult]]]:
        """See `Store.settle`."""
        parts = split_duplicates([settlement.delivery for settlement in batch])
        if len(parts) > 1:
            return (yield from self._settle_parts(batch, parts))
        try:
            try:
                (row,) = yield self._ending(batch)
                settled = set(row["ids"])
            except asyncpg.LockNotAvailableError:
                settled = yield from self._settle_unlocked(batch)
        except asyncpg.PostgresError as error:
            if not is_refusal(error):
                raise
            return (yield from self._settle_halves(batch, error))
        missing = [settlement.delivery for settlement in batch if settlement.delivery.id not in settled]
        if not missing:
            return Change([WriteResult.WRITTEN] * len(batch))
        leased = yield from self._still_leased(missing)
        return Change([_result(settlement, settled, leased) for settlement in batch])

    def extend(self, deliveries: Sequence[Delivery], lease: timedelta) -> Verb[list[WriteResult]]:
        """See `Store.extend`."""
        results: dict[int, WriteResult] = {}
        for part in split_duplicates(deliveries):
            found = yield from self._extend([deliveries[place] for place in part], lease)
            results.update(zip(part, found, strict=True))
        return [results[place] for place in range(len(deliveries))]

    def recall(self, queues: Sequence[str], token: UUID) -> Verb[Change[int]]:
        """See `Store.recall`."""
        values = {"queues": list(queues), "token": token, "most": PASSED_OVER}
        (row,) = yield self._ask("recall", values)
        return Change(row["many"])

    def _settle_parts(
        self, batch: Sequence[Settlement], parts: Sequence[Sequence[int]]
    ) -> Verb[Change[list[WriteResult]]]:
        """A statement writes a row once: a message that is in the batch twice needs two."""
        results: dict[int, WriteResult] = {}
        for part in parts:
            change = yield from self.settle([batch[place] for place in part])
            results.update(zip(part, change.result, strict=True))
        return Change([results[place] for place in range(len(batch))])

    def _settle_halves(
        self, batch: Sequence[Settlement], error: asyncpg.PostgresError
    ) -> Verb[Change[list[WriteResult]]]:
        """A row that the server refuses must not keep the others from being settled."""
        if len(batch) > 1:
            half = len(batch) // 2
            first = yield from self.settle(batch[:half])
            second = yield from self.settle(batch[half:])
            return Change([*first.result, *second.result])
        refused = batch[0].delivery
        logger.error(
            "Postgres refuses to settle %s %d: %s",
            self.what,
            refused.id,
            error.sqlstate,
            extra=about(refused),
        )
        return Change([WriteResult.BUSY])

    def _settle_unlocked(self, batch: Sequence[Settlement]) -> Verb[set[int]]:
        """Settle those that are not locked: one locked row must not hold up the others."""
        try:
            settled: set[int] = yield InTransaction(self._lock_and_settle(batch))
        except asyncpg.LockNotAvailableError:
            # Not a row this time: the whole table is locked.
            return set()
        return settled

    def _lock_and_settle(self, batch: Sequence[Settlement]) -> Verb[set[int]]:
        leases = lease_values([settlement.delivery for settlement in batch])
        locked = {row["id"] for row in (yield self._ask("lock_leased", leases))}
        free = [settlement for settlement in batch if settlement.delivery.id in locked]
        if not free:
            return set()
        (row,) = yield self._ending(free)
        return set(row["ids"])

    def _still_leased(self, missing: Sequence[Delivery]) -> Verb[set[int]]:
        """Queried with a new snapshot: within one statement a row that changes meanwhile can be missed."""
        if not missing:
            return set()
        return {row["id"] for row in (yield self._ask("still_leased", lease_values(missing)))}

    def _extend(self, deliveries: Sequence[Delivery], lease: timedelta) -> Verb[list[WriteResult]]:
        values = {**lease_values(deliveries), "lease": duration(lease), "now": self._clock.now()}
        held = {row["id"]: row["stop"] for row in (yield self._ask("extend", values))}
        leased = yield from self._still_leased(
            [delivery for delivery in deliveries if delivery.id not in held]
        )
        return [
            (WriteResult.STOP if held[delivery.id] else WriteResult.WRITTEN)
            if delivery.id in held
            else WriteResult.BUSY
            if delivery.id in leased
            else WriteResult.LOST
            for delivery in deliveries
        ]

    def _ask(self, name: str, values: Mapping[str, Any]) -> Ask:
        return Ask(self._statements[name + self.suffix], values)

    # ------------------------------------------------------------------ in the caller's transaction

    def hold(self, deliveries: Sequence[Delivery]) -> Verb[Change[None]]:
        """See `Store.hold`."""
        return self._all_or_none("hold", deliveries, {})

    def ack(self, deliveries: Sequence[Delivery]) -> Verb[Change[None]]:
        """See `Store.ack`."""
        return self._all_or_none("ack", deliveries, self._ack_values())

    def _all_or_none(
        self, name: str, deliveries: Sequence[Delivery], values: Mapping[str, Any]
    ) -> Verb[Change[None]]:
        if not deliveries:
            return Change(None)
        unique = {(delivery.id, delivery.token): delivery for delivery in deliveries}
        leases = lease_values(list(unique.values()))
        ids = leases["ids"]
        if len(set(ids)) < len(ids):
            # One message under two tokens: one of the leases is lost, so not all can be held.
            raise LeaseLost([id_ for id_ in dict.fromkeys(ids) if ids.count(id_) > 1])
        row = answer((yield FirstAsk(self._statements[name + self.suffix], {**leases, **values})))
        held = set(row["ids"])
        lost = [delivery.id for delivery in deliveries if delivery.id not in held]
        if lost:
            raise LeaseLost(lost)
        return Change(None)


def _result(settlement: Settlement, settled: set[int], leased: set[int]) -> WriteResult:
    id_ = settlement.delivery.id
    if id_ in settled:
        return WriteResult.WRITTEN
    if id_ in leased:
        return WriteResult.BUSY
    return WriteResult.UNKNOWN if settlement.repeated else WriteResult.LOST
