"""The lines of ordering keys: what is parked, and what is unparked. The rules are in claim.sql."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeAlias

from nightmail.stores.mysql.look import BEHIND_A_PARKED_ROW, Look
from nightmail.stores.mysql.requests import Answer
from nightmail.stores.mysql.text import ALWAYS, Queries, Sql, several, union
from nightmail.stores.sql.verbs import Verb

MOST_FOLLOWERS: Final = 5000
"""How many waiting rows of lines a claim scans before it parks them and leaves the rest to the next claim."""

CROWD: Final = 10
"""Up to this many rows of one line are scanned rather than parked: parking is a write, too."""

Key: TypeAlias = tuple[bytes, bytes]
"""A queue and an ordering key."""


class Lines:
    """The statements that park and unpark rows."""

    def __init__(self, sql: Queries) -> None:
        self._sql = sql

    # -------------------------------------------------------------------------------------- a claim

    def after(self, keys: Mapping[int, Key]) -> list[Sql]:
        """The query that says, once these rows are locked, in which of their lines others are parked."""
        return [self._sql("before_parked", ids=list(keys))] if keys else []

    def bring_back_after(
        self, look: Look, keys: Mapping[int, Key], answers: Sequence[Answer]
    ) -> Verb[set[int]]:
        """Note what to unpark; returns the ids of rows that cannot be taken, because the rows after them are locked.

        A row that is parked later is parked behind another row of its line: these are locked.
        """
        before_parked = {row[0]: keys[row[0]] for answer in answers for row in answer.rows}
        if not before_parked:
            return set()
        found = yield self._each("next_in_line", before_parked), self._each("any_in_line", before_parked)
        locked, waiting = ({row[0]: row[1] for row in answer.rows} for answer in found)
        look.back.update(locked.values())
        return waiting.keys() - locked.keys()

    def park(self, look: Look) -> Verb[int]:
        """Lock the followers that this look scanned, except one per key; returns how many are to be parked."""
        followers, look.followers = look.followers, []
        by_key: defaultdict[Key | None, list[int]] = defaultdict(list)
        for each in followers:
            by_key[each.key].append(each.id)
        # One that holds its key stands here only because the key is paused: it is never parked.
        by_key.pop(None, None)
        crowded = [id_ for ids in by_key.values() if len(ids) > CROWD for id_ in ids]
        stuck = {each.key for each in followers if each.standing == BEHIND_A_PARKED_ROW}
        hidden = {place: key for place, key in enumerate(stuck) if key is not None}
        questions = [self._sql("lock_followers", ids=several(crowded))] if crowded else []
        questions += [self._each("next_in_line", hidden)] if hidden else []
        if not questions:
            return 0
        answers = yield from look.ask(*questions)
        if hidden:
            back = [row[1] for row in answers.pop().rows]
            look.back.update(back)
            look.again = look.again or bool(back)
        return self._choose(look, answers[0]) if crowded else 0

    def writes(self, look: Look, begun: Sql) -> list[Sql]:
        """The statements that park and unpark what was locked."""
        named = (("unpark", look.back), ("anchor", look.anchors), ("park", look.parked - look.back))
        return [self._sql(name, ids=sorted(ids), begun=begun) for name, ids in named if ids]

    def _choose(self, look: Look, locked: Answer) -> int:
        waiting: defaultdict[Key, list[int]] = defaultdict(list)
        for id_, queue, ordering_key in locked.rows:
            waiting[queue, ordering_key].append(id_)
        parked = 0
        for ids in waiting.values():
            # The lowest id stays: it will be the first in line.
            anchor, *rest = sorted(ids)
            if rest:
                look.anchors.add(anchor)
                look.parked.update(rest)
                parked += len(rest)
        return parked

    # ----------------------------------------------------------------------------------- other operations

    def bring_back(self, keys: Iterable[Key]) -> Verb[None]:
        """Unpark the next in each of these lines: a waiting row of each was locked, and is removed or moved."""
        wanted = dict(enumerate(dict.fromkeys(keys)))
        if not wanted:
            return
        found = {row[0]: row[1] for row in (yield self._each("next_in_line", wanted)).rows}
        left = {place: key for place, key in wanted.items() if place not in found}
        if left:
            # Either none is parked there, or others have locked them all: then wait for them.
            waited_for: Answer = yield self._each("any_in_line", left, locking=True)
            found |= {row[0]: row[1] for row in waited_for.rows}
        if found:
            yield self._sql("unpark", ids=sorted(found.values()), begun=ALWAYS)

    def _each(self, name: str, keys: Mapping[int, Key], *, locking: bool = False) -> Sql:
        branches = []
        for place, (queue, ordering_key) in keys.items():
            branch = self._sql(name, place=place, queue=queue, ordering_key=ordering_key)
            branches.append(Sql(f"{branch[:-1]} for update)") if locking else branch)
        return union(branches)
