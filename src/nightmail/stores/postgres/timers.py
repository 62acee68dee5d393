"""Changes to waiting messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nightmail.clock import Clock
from nightmail.message import Due
from nightmail.stores.postgres.rows import answer
from nightmail.stores.postgres.times import due_values
from nightmail.stores.sql.statements import Statement
from nightmail.stores.sql.verbs import Ask, Change, Verb


class Timers:
    """The verbs on waiting messages: each is one statement."""

    def __init__(self, statements: Mapping[str, Statement], clock: Clock) -> None:
        self._statements = statements
        self._clock = clock

    def cancel(self, queue: str, timer_id: str) -> Verb[Change[bool]]:
        """See `Store.cancel`."""
        row = answer((yield self._ask("cancel", {"queue": queue, "timer_id": timer_id})))
        return Change(row["removed"])

    def cancel_all(
        self, queue: str, *, limit: int | None = None, newest: int | None = None
    ) -> Verb[Change[int]]:
        """See `Store.cancel_all`."""
        values = {"queue": queue, "limit": None if limit is None else max(limit, 0), "newest": newest}
        row = answer((yield self._ask("cancel_all", values)))
        return Change(row["removed"])

    def newest(self) -> Verb[int]:
        """The highest id there is now."""
        (row,) = yield Ask(self._statements["newest"], {})
        return int(row["newest"])

    def reschedule(self, queue: str, timer_id: str, due: Due) -> Verb[Change[bool]]:
        """See `Store.reschedule`."""
        values = {"queue": queue, "timer_id": timer_id, **due_values(due)}
        row = answer((yield self._ask("reschedule", values)))
        return Change(row["moved"])

    def _ask(self, name: str, values: Mapping[str, Any]) -> Ask:
        return Ask(self._statements[name], {**values, "now": self._clock.now()})
