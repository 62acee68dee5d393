"""Deletes what is no longer needed."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from nightmail.clock import Clock
from nightmail.records import DeadFilter, Swept
from nightmail.stores.postgres.inspecting import filter_values
from nightmail.stores.postgres.requests import CustomPlan
from nightmail.stores.postgres.times import age
from nightmail.stores.sql.statements import Statement
from nightmail.stores.sql.verbs import Ask, Verb


class Sweeping:
    """The verbs purge and sweep."""

    def __init__(self, statements: Mapping[str, Statement], clock: Clock) -> None:
        self._statements = statements
        self._clock = clock

    def purge(self, which: DeadFilter, *, limit: int) -> Verb[int]:
        """See `Inspection.purge`."""
        values = {**filter_values(which), "limit": max(limit, 0), "now": self._clock.now()}
        (row,) = yield CustomPlan(self._statements["purge"], values, readonly=False)
        deleted: int = row["deleted"]
        return deleted

    def sweep(self, *, older_than: timedelta, limit: int) -> Verb[Swept]:
        """See `Inspection.sweep`."""
        values = {"older_than": age(older_than), "limit": max(limit, 0), "now": self._clock.now()}
        (delivered,) = yield Ask(self._statements["sweep_delivered"], values)
        (dead,) = yield Ask(self._statements["sweep_dead"], values)
        (dedup,) = yield Ask(self._statements["sweep_dedup"], values)
        return Swept(delivered=delivered["deleted"], dead=dead["deleted"], dedup=dedup["deleted"])
