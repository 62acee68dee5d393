"""Deletes old rows, on the store's own connection: found, locked and deleted in three round trips."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from nightmail.clock import Clock
from nightmail.records import DeadFilter, Swept
from nightmail.stores.mysql.inspecting import chosen
from nightmail.stores.mysql.link import Link
from nightmail.stores.mysql.moments import microseconds, now
from nightmail.stores.mysql.text import Sql, Value, filled, several
from nightmail.stores.mysql.timers import in_hexadecimal
from nightmail.stores.sql.statements import Statement


class Sweeping:
    """The statements of purge and sweep."""

    def __init__(self, statements: Mapping[str, Statement], clock: Clock) -> None:
        self._statements = statements
        self._clock = clock

    async def purge(self, link: Link, which: DeadFilter, *, limit: int) -> int:
        """See `Inspection.purge`."""
        moment = now(self._clock)
        values: dict[str, Value] = {
            **chosen(self._statements, which, moment),
            "now": moment,
            "limit": max(limit, 0),
        }
        (found,) = await link.ask(self._filled("purgeable", values))
        if not found.rows:
            return 0
        _, locked = await link.ask("begin", self._lock(link, "lock_letters", _ids(found.rows), moment))
        await link.ask(*self._removal(link, "remove_letters", locked.rows), "commit")
        return len(locked.rows)

    async def sweep(self, link: Link, *, older_than: timedelta, limit: int) -> Swept:
        """See `Inspection.sweep`."""
        moment = now(self._clock)
        values: dict[str, Value] = {
            "now": moment,
            "older_than": microseconds(older_than),
            "limit": max(limit, 0),
        }
        delivered, dead = await link.ask(
            self._filled("old_deliveries", values), self._filled("old_letters", values)
        )
        _, delivered, dead, windows = await link.ask(
            "begin",
            self._lock(link, "lock_deliveries", _ids(delivered.rows), moment),
            self._lock(link, "lock_letters", _ids(dead.rows), moment),
            link.dialect.skips_locked + self._filled("lock_ended_windows", values),
        )
        await link.ask(
            *self._removal(link, "remove_deliveries", delivered.rows),
            *self._removal(link, "remove_letters", dead.rows),
            *self._closing(link, windows.rows),
            "commit",
        )
        return Swept(len(delivered.rows), len(dead.rows), len(windows.rows))

    def _lock(self, link: Link, name: str, ids: list[int], moment: Sql) -> str:
        return link.dialect.skips_locked + self._filled(name, {"ids": several(ids), "now": moment})

    def _removal(self, link: Link, name: str, locked: Sequence[Sequence[Any]]) -> list[Sql]:
        values: dict[str, Value] = {"ids": json.dumps(_ids(locked)), "begun": link.dialect.begun}
        return [self._filled(name, values)] if locked else []

    def _closing(self, link: Link, locked: Sequence[Sequence[Any]]) -> list[Sql]:
        names = in_hexadecimal((queue, timer_id) for queue, timer_id in locked)
        values: dict[str, Value] = {"names": names, "begun": link.dialect.begun}
        return [self._filled("close_windows", values)] if locked else []

    def _filled(self, name: str, values: Mapping[str, Value]) -> Sql:
        return filled(self._statements[name], values)


def _ids(found: Sequence[Sequence[Any]]) -> list[int]:
    return sorted(row[0] for row in found)
