"""Dead letters counted by queue, reason and fingerprint: for stores that cannot do so themselves, or not as fast."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from heapq import nlargest
from typing import Any, Final

from nightmail.records import DeadGroup, DeadSummary, fingerprint

PAGE: Final = 10_000
"""How many dead letters are read at a time."""
_ZEROS: Final = bytes.maketrans(b"123456789", b"0" * 9)
COUNT: Final = 0
FIRST: Final = 1
LAST: Final = 2
NEWEST: Final = 3


class DeadGroups:
    """Grows by dead letters, or by several that have the same error.

    Times are as the store keeps them until the end, and groups are lists: there may be hundreds of thousands to add.
    """

    def __init__(self, moment_of: Callable[[Any], datetime]) -> None:
        self._moment_of = moment_of
        self._groups: dict[tuple[str, str, str | None], list[Any]] = {}

    def add(
        self, queue: str, reason: str, error: str | None, count: int, first: Any, last: Any, newest: int
    ) -> None:
        """Add `count` dead letters with this error: when the first and the last of them died, and the highest id."""
        key = (queue, reason, None if error is None else fingerprint(error))
        group = self._groups.get(key)
        if group is None:
            self._groups[key] = [count, first, last, newest]
            return
        group[COUNT] += count
        if first < group[FIRST]:
            group[FIRST] = first
        if last > group[LAST]:
            group[LAST] = last
        if newest > group[NEWEST]:
            group[NEWEST] = newest

    def add_page(self, letters: Iterable[tuple[int, bytes, bytes, bytes | None, Any]]) -> None:
        """Add these: of each its id, its queue, its reason, the beginning of its error, and when it died.

        As bytes. Making a fingerprint takes longer than all the rest, and errors that differ only in digits have the
        same one: it is made once for all of them.
        """
        found: dict[tuple[bytes, bytes, bytes | None], list[Any]] = {}
        for id_, queue, reason, error, died in letters:
            key = (queue, reason, None if error is None else error.partition(b"\n")[0].translate(_ZEROS))
            group = found.get(key)
            if group is None:
                found[key] = [1, died, died, id_]
                continue
            group[COUNT] += 1
            if died < group[FIRST]:
                group[FIRST] = died
            if died > group[LAST]:
                group[LAST] = died
            if id_ > group[NEWEST]:
                group[NEWEST] = id_
        for (queue, reason, error), (count, first, last, newest) in found.items():
            why = None if error is None else _text(error)
            self.add(_text(queue), _text(reason), why, count, first, last, newest)

    def summary(self, limit: int) -> DeadSummary:
        """All of them counted, and the `limit` largest groups."""
        largest = nlargest(limit, self._groups.items(), key=lambda each: (each[1][COUNT], each[1][NEWEST]))
        return DeadSummary(
            sum(group[COUNT] for group in self._groups.values()),
            tuple(
                DeadGroup(
                    queue=queue,
                    reason=reason,
                    fingerprint=mark,
                    count=group[COUNT],
                    first_died_at=self._moment_of(group[FIRST]),
                    last_died_at=self._moment_of(group[LAST]),
                    newest=group[NEWEST],
                )
                for (queue, reason, mark), group in largest
            ),
        )


def _text(stored: bytes) -> str:
    return stored.decode("utf-8", "replace")
