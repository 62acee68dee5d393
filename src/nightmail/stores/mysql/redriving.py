"""Moves dead letters back to the messages: locked, copied and removed in one transaction, in two round trips."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from nightmail.clock import Clock
from nightmail.errors import StoreUnavailable
from nightmail.records import DeadLetter
from nightmail.stores.mysql.errors import is_duplicate
from nightmail.stores.mysql.link import Link
from nightmail.stores.mysql.moments import now
from nightmail.stores.mysql.rows import text
from nightmail.stores.mysql.text import Sql, Value, filled, several
from nightmail.stores.shared.provenance import redriven_headers
from nightmail.stores.sql.statements import Statement

TRIES: Final = 10
"""How often a redrive is tried again because a timer id was taken while it ran."""


@dataclass(frozen=True, slots=True)
class Redriven:
    """What a redrive moved: the ids of the messages, and the queues they are in."""

    ids: list[int]
    queues: set[str]


@dataclass(frozen=True, slots=True)
class _Locked:
    """A dead letter that no other session can move now, as the message it will be."""

    letter: DeadLetter
    queue: bytes
    priority: int
    timer_id: bytes | None
    ordering_key: bytes | None


class Redriving:
    """The statements of redrive."""

    def __init__(self, statements: Mapping[str, Statement], clock: Clock) -> None:
        self._statements = statements
        self._clock = clock

    async def redrive(
        self, link: Link, letters: Sequence[DeadLetter], *, to: str | None, keep_timer_ids: bool
    ) -> Redriven:
        """See `Inspection.redrive`."""
        for _ in range(TRIES):
            try:
                return await self._move(link, letters, None if to is None else to.encode(), keep_timer_ids)
            except Exception as error:
                if not is_duplicate(error):
                    raise
            await link.ask("rollback")
        raise StoreUnavailable("others took the letters' timer ids each time: try again")

    async def _move(
        self, link: Link, letters: Sequence[DeadLetter], to: bytes | None, keep_timer_ids: bool
    ) -> Redriven:
        moment = now(self._clock)
        locked = await self._lock(link, letters, to, moment, keep_timer_ids)
        if not locked:
            await link.ask("rollback")
            return Redriven([], set())
        begun = link.dialect.begun
        revive = [self._revive(each, moment, begun) for each in locked]
        ids = json.dumps([each.letter.id for each in locked])
        remove = self._filled("remove_letters", {"ids": ids, "begun": begun})
        *revived, _, _ = await link.ask(*revive, remove, "commit")
        return Redriven([answer.last_id for answer in revived], {text(each.queue) for each in locked})

    async def _lock(
        self, link: Link, letters: Sequence[DeadLetter], to: bytes | None, moment: Sql, keep_timer_ids: bool
    ) -> list[_Locked]:
        """Those of these dead letters that can be moved, locked, in the order in which they move."""
        by_id = {letter.id: letter for letter in letters}
        values: dict[str, Value] = {"ids": several(sorted(by_id)), "to": to, "now": moment}
        lock = link.dialect.skips_locked + self._filled("lock_letters", values)
        # Irrelevant if the timer ids are dropped.
        ask = ["begin", lock, self._filled("named_already", values)] if keep_timer_ids else ["begin", lock]
        _, found, *taken = await link.ask(*ask)
        stay = {row[0] for answer in taken for row in answer.rows}
        there: dict[int, _Locked] = {}
        for id_, queue, priority, timer_id, ordering_key in found.rows:
            if id_ not in stay:
                goes_to = queue if to is None else to
                name = timer_id if keep_timer_ids else None
                there[id_] = _Locked(by_id[id_], goes_to, priority, name, ordering_key)
        return list(_last_of_each_name([there[id_] for id_ in by_id if id_ in there]))

    def _revive(self, each: _Locked, moment: Sql, begun: Sql) -> Sql:
        values: dict[str, Value] = {
            "id": each.letter.id,
            "queue": each.queue,
            "priority": each.priority,
            "timer_id": each.timer_id,
            "ordering_key": each.ordering_key,
            "headers": redriven_headers(each.letter),
            "now": moment,
            "begun": begun,
        }
        return self._filled("revive", values)

    def _filled(self, name: str, values: Mapping[str, Value]) -> Sql:
        return filled(self._statements[name], values)


def _last_of_each_name(letters: Sequence[_Locked]) -> Iterator[_Locked]:
    """Those without a timer id, and the last of those that share one."""
    last = {(each.queue, each.timer_id): each for each in letters}
    for each in letters:
        if each.timer_id is None or last[each.queue, each.timer_id] is each:
            yield each
