"""Which messages a claim takes, from which queue first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from itertools import count
from operator import attrgetter
from uuid import UUID

from nightmail.stores.memory.admission import Admission
from nightmail.stores.memory.queue import Queue
from nightmail.stores.memory.rows import Row
from nightmail.stores.shared.fairness import FairShare


class Claiming:
    """The claims of one store: the rotation among queues, and among the priorities of each."""

    def __init__(self) -> None:
        self._share = FairShare()
        self._claims = count(1)
        self._served: Counter[str] = Counter()

    def claim(
        self,
        queues: Iterable[Queue],
        *,
        limit: int,
        admission: Admission,
        token: UUID,
        until: datetime,
        now: datetime,
    ) -> list[Row]:
        """Lease up to `limit` available messages of these queues, as far as their size allows."""
        claim = next(self._claims)
        rows: list[Row] = []
        # The queue least recently claimed from comes first.
        for queue in sorted(queues, key=lambda queue: self._served[queue.name]):
            room = limit - len(rows)
            oldest = self._share.reserved(queue.name, room)
            taken = list(
                queue.claim(room, oldest=oldest, admission=admission, token=token, until=until, now=now)
            )
            if taken:
                rows += (
                    taken
                    if len(taken) == room or admission.budget.spent
                    else self._in_order(queue.name, taken)
                )
                self._share.claimed(queue.name, len(taken))
                self._served[queue.name] = claim
        return rows

    def _in_order(self, queue: str, taken: list[Row]) -> list[Row]:
        """What was claimed, in order: the share of the oldest is a fraction of those claimed, not of the limit."""
        by_age = sorted(taken, key=attrgetter("due_at", "id"))
        share = self._share.reserved(queue, len(taken))
        return by_age[:share] + sorted(by_age[share:], key=attrgetter("priority"), reverse=True)
