"""Deletes what is no longer needed."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from nightmail.clock import Clock
from nightmail.records import DeadFilter, Swept
from nightmail.stores.postgres.inspecting import CustomPlanSession, filter_values
from nightmail.stores.postgres.lane import Lane
from nightmail.stores.postgres.moments import age
from nightmail.stores.postgres.transaction import Direct, Session
from nightmail.stores.sql.statements import Statement


class Sweeping:
    """The statements of purge and sweep."""

    def __init__(self, statements: Mapping[str, Statement], clock: Clock) -> None:
        self._statements = statements
        self._clock = clock

    async def purge(self, lane: Lane, which: DeadFilter, limit: int) -> int:
        """See `Inspection.purge`."""
        values = {**filter_values(which), "limit": max(limit, 0), "now": self._clock.now()}
        return await lane.run(
            lambda connection: self._deleted(CustomPlanSession(connection, readonly=False), "purge", values)
        )

    async def sweep(self, lane: Lane, older_than: timedelta, limit: int) -> Swept:
        """See `Inspection.sweep`. One table after the other: other work on the connection may go in between."""
        values = {"older_than": age(older_than), "limit": max(limit, 0), "now": self._clock.now()}

        async def sweep(name: str) -> int:
            return await lane.run(lambda connection: self._deleted(Direct(connection), name, values))

        return Swept(
            delivered=await sweep("sweep_delivered"),
            dead=await sweep("sweep_dead"),
            dedup=await sweep("sweep_dedup"),
        )

    async def _deleted(self, session: Session, name: str, values: Mapping[str, Any]) -> int:
        (row,) = await session.rows(self._statements[name], values)
        return int(row["deleted"])
