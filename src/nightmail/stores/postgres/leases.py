"""Writes under a lease, on a message or a dead letter: on our connections or in a caller's transaction."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar
from uuid import UUID

import asyncpg

from nightmail.clock import Clock
from nightmail.errors import LeaseLost
from nightmail.message import Delivery
from nightmail.outcome import WriteResult
from nightmail.store import Settlement
from nightmail.stores.postgres.connect import Connection
from nightmail.stores.postgres.errors import is_refusal
from nightmail.stores.postgres.lane import Lane
from nightmail.stores.postgres.moments import duration
from nightmail.stores.postgres.publishing import answer
from nightmail.stores.postgres.transaction import Session
from nightmail.stores.shared.duplicates import split_duplicates
from nightmail.stores.sql.statements import Statement

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Leases:
    """Ids and tokens as the statements need them: sorted by id, each id once."""

    ids: list[int]
    tokens: list[UUID]

    @classmethod
    def of(cls, deliveries: Sequence[Delivery]) -> Leases:
        """The leases of these deliveries."""
        ordered = sorted(deliveries, key=lambda delivery: delivery.id)
        return cls([delivery.id for delivery in ordered], [delivery.token for delivery in ordered])

    @property
    def values(self) -> dict[str, Any]:
        """As parameters."""
        return {"ids": self.ids, "tokens": self.tokens}


@dataclass(frozen=True, slots=True)
class Names:
    """The names of the statements for one kind of delivery."""

    what: str
    lock: str
    still_leased: str
    extend: str
    hold: str
    ack: str


class UnderLease(ABC):
    """Settle, extend, hold and ack for one kind of delivery."""

    names: ClassVar[Names]

    def __init__(self, statements: Mapping[str, Statement], clock: Clock) -> None:
        self._statements = statements
        self._clock = clock

    @abstractmethod
    async def _write(self, connection: Connection, batch: Sequence[Settlement]) -> set[int]:
        """Write these outcomes; return the ids of those still leased under their tokens."""

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

    async def _settle(self, connection: Connection, batch: Sequence[Settlement]) -> list[WriteResult]:
        try:
            try:
                settled = await self._write(connection, batch)
            except asyncpg.LockNotAvailableError:
                settled = await self._write_unlocked(connection, batch)
        except asyncpg.PostgresError as error:
            if not is_refusal(error):
                raise
            return await self._settle_halves(connection, batch, error)
        missing = [settlement.delivery for settlement in batch if settlement.delivery.id not in settled]
        leased = await self._still_leased(connection, missing)
        return [_standing(settlement, settled, leased) for settlement in batch]

    async def _settle_halves(
        self, connection: Connection, batch: Sequence[Settlement], error: asyncpg.PostgresError
    ) -> list[WriteResult]:
        """A row that the server refuses must not keep the others from being settled."""
        if len(batch) > 1:
            half = len(batch) // 2
            return [
                *await self._settle(connection, batch[:half]),
                *await self._settle(connection, batch[half:]),
            ]
        logger.error(
            "Postgres refuses to settle %s %d: %s", self.names.what, batch[0].delivery.id, error.sqlstate
        )
        return [WriteResult.BUSY]

    async def _write_unlocked(self, connection: Connection, batch: Sequence[Settlement]) -> set[int]:
        """Like `_write`, skipping locked rows: one locked row must not hold up the others."""
        leases = Leases.of([settlement.delivery for settlement in batch])
        try:
            async with connection.transaction():
                locked = {row["id"] for row in await self._fetch(connection, self.names.lock, leases.values)}
                free = [settlement for settlement in batch if settlement.delivery.id in locked]
                return await self._write(connection, free) if free else set()
        except asyncpg.LockNotAvailableError:
            # Not a row this time: the whole table is locked.
            return set()

    async def _still_leased(self, connection: Connection, missing: Sequence[Delivery]) -> set[int]:
        """Queried with a new snapshot: within one statement a row that changes meanwhile can be missed."""
        if not missing:
            return set()
        found = await self._fetch(connection, self.names.still_leased, Leases.of(missing).values)
        return {row["id"] for row in found}

    async def _extend(
        self, connection: Connection, deliveries: Sequence[Delivery], lease: timedelta
    ) -> list[WriteResult]:
        values = {**Leases.of(deliveries).values, "lease": duration(lease), "now": self._clock.now()}
        held = {row["id"] for row in await self._fetch(connection, self.names.extend, values)}
        leased = await self._still_leased(
            connection, [delivery for delivery in deliveries if delivery.id not in held]
        )
        return [
            WriteResult.WRITTEN
            if delivery.id in held
            else WriteResult.BUSY
            if delivery.id in leased
            else WriteResult.LOST
            for delivery in deliveries
        ]

    async def _fetch(self, connection: Connection, name: str, values: Mapping[str, Any]) -> Sequence[Any]:
        statement = self._statements[name]
        return await connection.fetch(statement.text, *statement.arguments(values))

    # ------------------------------------------------------------------ in the caller's transaction

    async def hold(self, session: Session, deliveries: Sequence[Delivery], identity: UUID | None) -> None:
        """See `Store.hold`."""
        await self._all_or_none(session, self.names.hold, deliveries, {"identity": identity})

    async def ack(self, session: Session, deliveries: Sequence[Delivery], identity: UUID | None) -> None:
        """See `Store.ack`."""
        await self._all_or_none(session, self.names.ack, deliveries, {"identity": identity, **self._ending()})

    def _ending(self) -> dict[str, Any]:
        """Further parameters of an ack."""
        return {}

    async def _all_or_none(
        self, session: Session, name: str, deliveries: Sequence[Delivery], values: Mapping[str, Any]
    ) -> None:
        if not deliveries:
            return
        unique = {(delivery.id, delivery.token): delivery for delivery in deliveries}
        leases = Leases.of(list(unique.values()))
        if len(set(leases.ids)) < len(leases.ids):
            # One message under two tokens: one of the leases is lost, so not all can be held.
            raise LeaseLost([id_ for id_ in dict.fromkeys(leases.ids) if leases.ids.count(id_) > 1])
        row = answer(await session.rows(self._statements[name], {**leases.values, **values}))
        held = set(row["ids"])
        lost = [delivery.id for delivery in deliveries if delivery.id not in held]
        if lost:
            raise LeaseLost(lost)


def _standing(settlement: Settlement, settled: set[int], leased: set[int]) -> WriteResult:
    id_ = settlement.delivery.id
    if id_ in settled:
        return WriteResult.WRITTEN
    if id_ in leased:
        return WriteResult.BUSY
    return WriteResult.UNKNOWN if settlement.repeated else WriteResult.LOST
