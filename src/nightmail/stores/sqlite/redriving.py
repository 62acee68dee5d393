"""Redriving: dead letters become messages again."""

from __future__ import annotations

import json
from collections.abc import Sequence

from nightmail.records import DeadLetter
from nightmail.stores.shared.provenance import redriven_headers
from nightmail.stores.sql.verbs import Change, Verb
from nightmail.stores.sqlite.queries import Queries
from nightmail.stores.sqlite.times import StoreTime


class Redriving:
    """The verb `redrive`.

    A dead letter is removed only once it is stored as a message, and both happen or neither: a timer id that is taken
    must not lose a dead letter.
    """

    def __init__(self, sql: Queries, time: StoreTime) -> None:
        self._sql = sql
        self._time = time

    def redrive(
        self, letters: Sequence[DeadLetter], *, to: str | None, keep_timer_ids: bool
    ) -> Verb[Change[list[int]]]:
        """Move those of these dead letters that can be moved. Returns the ids of the new messages, in order."""
        now = self._time.stamp()
        given = {letter.id: letter for letter in letters}
        queues = yield from self._movable(list(given), to=to, keep_timer_ids=keep_timer_ids, now=now)
        if not queues:
            return Change([])
        moving = [(id_, redriven_headers(letter)) for id_, letter in given.items() if id_ in queues]
        stored = yield self._sql(
            "redrive", letters=json.dumps(moving), to=to, keep_timer_ids=keep_timer_ids, now=now
        )
        yield self._sql("remove_dead", ids=json.dumps([id_ for id_, _ in moving]))
        return Change(sorted(id_ for (id_,) in stored), frozenset(queues.values()))

    def _movable(
        self, ids: Sequence[int], *, to: str | None, keep_timer_ids: bool, now: int
    ) -> Verb[dict[int, str]]:
        """The dead letters that can be moved, and their target queues. Of those that share a timer id only the last."""
        found = {row[0]: row for row in (yield self._sql("movable", ids=json.dumps(ids), to=to, now=now))}
        movable: dict[object, tuple[int, str]] = {}
        for id_, queue, timer_id, owned in (found[id_] for id_ in ids if id_ in found):
            if not keep_timer_ids or timer_id is None:
                movable[id_] = (id_, queue)
            elif not owned:
                movable[queue, timer_id] = (id_, queue)
        return dict(movable.values())
