"""Dead letters for dead letter handlers: claims and outcomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from operator import attrgetter
from typing import Final

from nightmail.clock import Clock
from nightmail.limits import MAX_STORED_HEADERS_BYTES
from nightmail.outcome import Done
from nightmail.store import Claimed, Settlement
from nightmail.stores.postgres import rows
from nightmail.stores.postgres.leases import UnderLease
from nightmail.stores.postgres.settling import brought_back
from nightmail.stores.postgres.times import MOST_BYTES, duration
from nightmail.stores.shared.wanted import Wanted
from nightmail.stores.sql.statements import Statement
from nightmail.stores.sql.verbs import Ask, Verb

_AGE: Final = attrgetter("due_at", "id")


class Letters(UnderLease):
    """Dead letters: claimed, then deleted, brought back or given up."""

    what = "dead letter"
    suffix = "_dead"

    def __init__(self, statements: Mapping[str, Statement], clock: Clock, *, max_body_bytes: int) -> None:
        super().__init__(statements, clock)
        self._max_body_bytes = max_body_bytes

    def claim(self, wanted: Wanted) -> Verb[Claimed]:
        """See `Store.claim_dead`."""
        queues = list(wanted.queues)
        values = {
            "now": self._clock.now(),
            "wanted": queues,
            "queues": queues + queues,
            "behind": [False] * len(queues) + [True] * len(queues),
            "limit": wanted.limit,
            "max_bytes": min(wanted.max_bytes, MOST_BYTES),
            "max_body_bytes": self._max_body_bytes,
            "max_header_bytes": MAX_STORED_HEADERS_BYTES,
            "lease": duration(wanted.lease),
            "token": wanted.token,
        }
        found = yield self._ask("claim", values)
        next_in: timedelta | None = found[0]["next_in"]
        if found[0]["id"] is None:
            return Claimed((), next_in, full=found[0]["full"])
        # The longest due first.
        taken = sorted((rows.dead_delivery(row, wanted.token) for row in found), key=_AGE)
        if found[0]["full"]:
            return Claimed(taken, None, full=True)
        # The statement does not see its own leases.
        return Claimed(taken, wanted.lease if next_in is None else min(next_in, wanted.lease))

    def _ending(self, batch: Sequence[Settlement]) -> Ask:
        ordered = sorted(batch, key=lambda settlement: settlement.delivery.id)
        gone = [settlement for settlement in ordered if isinstance(settlement.outcome, Done)]
        values = {
            "now": self._clock.now(),
            "ids": [settlement.delivery.id for settlement in gone],
            "tokens": [settlement.delivery.token for settlement in gone],
            **brought_back(
                [settlement for settlement in ordered if not isinstance(settlement.outcome, Done)]
            ),
        }
        return self._ask("settle", values)
