"""Moves dead letters back to the messages: locked, copied and removed in one transaction, in two round trips."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from nightmail.clock import Clock
from nightmail.errors import StoreUnavailable
from nightmail.records import DeadLetter
from nightmail.stores.mysql.errors import is_duplicate
from nightmail.stores.mysql.requests import SERVER, Server
from nightmail.stores.mysql.rows import text
from nightmail.stores.mysql.text import Queries, Sql, several
from nightmail.stores.mysql.times import now
from nightmail.stores.shared.provenance import redriven_headers
from nightmail.stores.sql.verbs import Change, Verb

TRIES: Final = 10
"""How often a redrive is tried again because a timer id was taken while it ran."""


@dataclass(frozen=True, slots=True)
class _Locked:
    """A dead letter that no other session can move now, as the message it will be."""

    letter: DeadLetter
    queue: bytes
    priority: int
    timer_id: bytes | None
    ordering_key: bytes | None


class Redriving:
    """The verb redrive."""

    def __init__(self, sql: Queries, clock: Clock) -> None:
        self._sql = sql
        self._clock = clock

    def redrive(
        self, letters: Sequence[DeadLetter], *, to: str | None, keep_timer_ids: bool
    ) -> Verb[Change[list[int]]]:
        """See `Inspection.redrive`."""
        for _ in range(TRIES):
            try:
                return (yield from self._move(letters, None if to is None else to.encode(), keep_timer_ids))
            except Exception as error:
                if not is_duplicate(error):
                    raise
            yield "rollback"
        raise StoreUnavailable("others took the letters' timer ids each time: try again")

    def _move(
        self, letters: Sequence[DeadLetter], to: bytes | None, keep_timer_ids: bool
    ) -> Verb[Change[list[int]]]:
        server: Server = yield SERVER
        moment, begun = now(self._clock), server.dialect.begun
        locked = yield from self._lock(letters, to, moment, server.dialect.skips_locked, keep_timer_ids)
        if not locked:
            yield "rollback"
            return Change([])
        inserts = [self._insert(each, moment, begun) for each in locked]
        ids = json.dumps([each.letter.id for each in locked])
        *stored, _, _ = yield *inserts, self._sql("remove_letters", ids=ids, begun=begun), "commit"
        return Change([answer.last_id for answer in stored], frozenset(text(each.queue) for each in locked))

    def _lock(
        self,
        letters: Sequence[DeadLetter],
        to: bytes | None,
        moment: Sql,
        skips_locked: Sql,
        keep_timer_ids: bool,
    ) -> Verb[list[_Locked]]:
        """Those of these dead letters that can be moved, locked, in the order in which they move."""
        by_id = {letter.id: letter for letter in letters}
        ids = several(sorted(by_id))
        packet = ["begin", skips_locked + self._sql("lock_letters", ids=ids, now=moment)]
        if keep_timer_ids:
            packet.append(self._sql("owned_already", ids=ids, to=to))
        _, found, *taken = yield tuple(packet)
        stay = {row[0] for answer in taken for row in answer.rows}
        there: dict[int, _Locked] = {}
        for id_, queue, priority, timer_id, ordering_key in found.rows:
            if id_ not in stay:
                goes_to = queue if to is None else to
                kept = timer_id if keep_timer_ids else None
                there[id_] = _Locked(by_id[id_], goes_to, priority, kept, ordering_key)
        return list(_last_of_each_timer_id([there[id_] for id_ in by_id if id_ in there]))

    def _insert(self, each: _Locked, moment: Sql, begun: Sql) -> Sql:
        return self._sql(
            "redrive",
            id=each.letter.id,
            queue=each.queue,
            priority=each.priority,
            timer_id=each.timer_id,
            ordering_key=each.ordering_key,
            headers=redriven_headers(each.letter),
            now=moment,
            begun=begun,
        )


def _last_of_each_timer_id(letters: Sequence[_Locked]) -> Iterator[_Locked]:
    """Those without a timer id, and the last of those that share one."""
    last = {(each.queue, each.timer_id): each for each in letters}
    for each in letters:
        if each.timer_id is None or last[each.queue, each.timer_id] is each:
            yield each
