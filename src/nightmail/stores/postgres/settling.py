"""Everything that is written under a lease, on a connection of our own or in the caller's transaction."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Final
from uuid import UUID

import asyncpg

from nightmail.clock import Clock
from nightmail.errors import LeaseLost
from nightmail.message import Delivery
from nightmail.outcome import Dead, Done, Outcome, Postpone, Release, Retry, Standing
from nightmail.store import Settlement
from nightmail.stores._apart import apart
from nightmail.stores._sql import Statement
from nightmail.stores.postgres.connect import Connection
from nightmail.stores.postgres.errors import is_refusal
from nightmail.stores.postgres.lane import Lane
from nightmail.stores.postgres.moments import duration
from nightmail.stores.postgres.publishing import answer
from nightmail.stores.postgres.transaction import Session

logger = logging.getLogger(__name__)

_ZERO: Final = timedelta(0)


@dataclass(frozen=True, slots=True)
class Leases:
    """Ids and tokens in the order in which the statements want them: by id, each id once."""

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


class Settling:
    """Settle, extend, hold and ack."""

    def __init__(
        self, statements: Mapping[str, Statement], channel: str, clock: Clock, *, keep_delivered: bool
    ) -> None:
        self._statements = statements
        self._channel = channel
        self._clock = clock
        self._keep_delivered = keep_delivered

    # ------------------------------------------------------------------ on a connection of our own

    async def settle(self, lane: Lane, batch: Sequence[Settlement]) -> list[Standing]:
        """See `Store.settle`."""
        standings: dict[int, Standing] = {}
        for part in apart([settlement.delivery for settlement in batch]):
            found = await lane.run(partial(self._settle, batch=[batch[place] for place in part]))
            standings.update(zip(part, found, strict=True))
        return [standings[place] for place in range(len(batch))]

    async def extend(self, lane: Lane, deliveries: Sequence[Delivery], lease: timedelta) -> list[Standing]:
        """See `Store.extend`."""
        standings: dict[int, Standing] = {}
        for part in apart(deliveries):
            chosen = [deliveries[place] for place in part]
            found = await lane.run(partial(self._extend, deliveries=chosen, lease=lease))
            standings.update(zip(part, found, strict=True))
        return [standings[place] for place in range(len(deliveries))]

    async def _settle(self, connection: Connection, batch: Sequence[Settlement]) -> list[Standing]:
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
    ) -> list[Standing]:
        """One row that the server refuses must not keep its neighbours from being settled."""
        if len(batch) > 1:
            half = len(batch) // 2
            return [
                *await self._settle(connection, batch[:half]),
                *await self._settle(connection, batch[half:]),
            ]
        logger.error("Postgres refuses to settle message %d: %s", batch[0].delivery.id, error.sqlstate)
        return [Standing.BUSY]

    async def _write(self, connection: Connection, batch: Sequence[Settlement]) -> set[int]:
        if not self._keep_delivered and all(isinstance(settlement.outcome, Done) for settlement in batch):
            leases = Leases.of([settlement.delivery for settlement in batch])
            values = {**leases.values, "channel": self._channel, "now": self._clock.now()}
            found = await self._fetch(connection, "settle_done", values)
        else:
            found = await self._fetch(connection, "settle", self._mixed(batch))
        return set(found[0]["ids"])

    async def _write_unlocked(self, connection: Connection, batch: Sequence[Settlement]) -> set[int]:
        """The same for those rows that nobody has locked: one that somebody has must not hold up the others."""
        leases = Leases.of([settlement.delivery for settlement in batch])
        try:
            async with connection.transaction():
                locked = {row["id"] for row in await self._fetch(connection, "lock_leased", leases.values)}
                free = [settlement for settlement in batch if settlement.delivery.id in locked]
                return await self._write(connection, free) if free else set()
        except asyncpg.LockNotAvailableError:
            # Not a row this time: somebody has the whole table.
            return set()

    async def _still_leased(self, connection: Connection, missing: Sequence[Delivery]) -> set[int]:
        """Asked with a new snapshot: within one statement a row that changes meanwhile can be missed."""
        if not missing:
            return set()
        found = await self._fetch(connection, "still_leased", Leases.of(missing).values)
        return {row["id"] for row in found}

    async def _extend(
        self, connection: Connection, deliveries: Sequence[Delivery], lease: timedelta
    ) -> list[Standing]:
        values = {**Leases.of(deliveries).values, "lease": duration(lease), "now": self._clock.now()}
        held = {row["id"] for row in await self._fetch(connection, "extend", values)}
        leased = await self._still_leased(
            connection, [delivery for delivery in deliveries if delivery.id not in held]
        )
        return [
            Standing.HELD
            if delivery.id in held
            else Standing.BUSY
            if delivery.id in leased
            else Standing.LOST
            for delivery in deliveries
        ]

    async def _fetch(self, connection: Connection, name: str, values: Mapping[str, Any]) -> Sequence[Any]:
        statement = self._statements[name]
        return await connection.fetch(statement.text, *statement.arguments(values))

    def _mixed(self, batch: Sequence[Settlement]) -> dict[str, Any]:
        ordered = sorted(batch, key=lambda settlement: settlement.delivery.id)
        ending = [settlement for settlement in ordered if isinstance(settlement.outcome, Done | Dead)]
        back = [settlement for settlement in ordered if not isinstance(settlement.outcome, Done | Dead)]
        given_up = [
            settlement.outcome if isinstance(settlement.outcome, Dead) else None for settlement in ending
        ]
        return {
            "now": self._clock.now(),
            "channel": self._channel,
            "keep": self._keep_delivered,
            "ids": [settlement.delivery.id for settlement in ending],
            "tokens": [settlement.delivery.token for settlement in ending],
            "reasons": [None if dead is None else dead.reason for dead in given_up],
            "errors": [None if dead is None else dead.error for dead in given_up],
            "ran": [dead is not None and dead.ran for dead in given_up],
            "back_ids": [settlement.delivery.id for settlement in back],
            "back_tokens": [settlement.delivery.token for settlement in back],
            "back_kinds": [_kind(settlement.outcome) for settlement in back],
            "back_afters": [_after(settlement.outcome) for settlement in back],
        }

    # ------------------------------------------------------------------ in the caller's transaction

    async def hold(self, session: Session, deliveries: Sequence[Delivery], identity: UUID) -> None:
        """See `Store.hold`."""
        await self._all_or_none(session, "hold", deliveries, {"identity": identity})

    async def ack(self, session: Session, deliveries: Sequence[Delivery], identity: UUID) -> None:
        """See `Store.ack`."""
        values = {
            "identity": identity,
            "channel": self._channel,
            "keep": self._keep_delivered,
            "now": self._clock.now(),
        }
        await self._all_or_none(session, "ack", deliveries, values)

    async def _all_or_none(
        self, session: Session, name: str, deliveries: Sequence[Delivery], values: Mapping[str, Any]
    ) -> None:
        if not deliveries:
            return
        unique = {(delivery.id, delivery.token): delivery for delivery in deliveries}
        leases = Leases.of(list(unique.values()))
        if len(set(leases.ids)) < len(leases.ids):
            # One message under two tokens: one of them has been lost, so not all can hold.
            raise LeaseLost([id_ for id_ in dict.fromkeys(leases.ids) if leases.ids.count(id_) > 1])
        row = answer(await session.rows(self._statements[name], {**leases.values, **values}))
        held = set(row["ids"])
        lost = [delivery.id for delivery in deliveries if delivery.id not in held]
        if lost:
            raise LeaseLost(lost)


def _standing(settlement: Settlement, settled: set[int], leased: set[int]) -> Standing:
    id_ = settlement.delivery.id
    if id_ in settled:
        return Standing.HELD
    if id_ in leased:
        return Standing.BUSY
    return Standing.UNKNOWN if settlement.repeated else Standing.LOST


def _kind(outcome: Outcome) -> str:
    return type(outcome).__name__.lower()


def _after(outcome: Outcome) -> timedelta | None:
    match outcome:
        case Retry(after) | Postpone(after):
            return duration(after)
        case Release() | Done() | Dead():
            return _ZERO
