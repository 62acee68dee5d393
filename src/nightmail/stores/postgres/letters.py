"""Dead letters for dead letter handlers: claims and outcomes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from operator import attrgetter
from typing import Any, Final
from uuid import UUID

from nightmail.message import DeadDelivery
from nightmail.outcome import Done
from nightmail.store import Claimed, Settlement
from nightmail.stores.postgres import rows
from nightmail.stores.postgres.claiming import MOST_BYTES, NOTHING, PASSED_OVER
from nightmail.stores.postgres.connect import Connection
from nightmail.stores.postgres.lane import Lane
from nightmail.stores.postgres.leases import Names, UnderLease
from nightmail.stores.postgres.moments import duration
from nightmail.stores.postgres.settling import brought_back

_AGE: Final = attrgetter("due_at", "id")


class Letters(UnderLease):
    """Dead letters: claimed, then deleted, brought back or given up."""

    names = Names(
        "dead letter", "lock_letters", "still_held_letters", "extend_letters", "hold_letters", "ack_letters"
    )

    async def claim(
        self,
        lane: Lane,
        queues: Sequence[str],
        *,
        limit: int,
        max_bytes: int,
        lease: timedelta,
        token: UUID,
    ) -> Claimed:
        """See `Store.claim_dead`."""
        wanted = list(dict.fromkeys(queues))
        if not wanted or limit <= 0:
            return NOTHING
        values = {
            "now": self._clock.now(),
            "wanted": wanted,
            "queues": wanted + wanted,
            "behind": [False] * len(wanted) + [True] * len(wanted),
            "limit": limit,
            "max_bytes": min(max_bytes, MOST_BYTES),
            "lease": duration(lease),
            "token": token,
        }
        found = await lane.run(lambda connection: self._fetch(connection, "claim_dead", values))
        next_in: timedelta | None = found[0]["next_in"]
        if found[0]["id"] is None:
            return Claimed((), next_in)
        taken = _oldest_first(found, token)
        if found[0]["full"]:
            return Claimed(taken, None, full=True)
        # The statement does not see its own leases.
        return Claimed(taken, lease if next_in is None else min(next_in, lease))

    async def recall(self, lane: Lane, queues: Sequence[str], token: UUID) -> int:
        """See `Store.recall_dead`."""
        values = {
            "queues": list(dict.fromkeys(queues)),
            "token": token,
            "most": PASSED_OVER,
        }
        (row,) = await lane.run(lambda connection: self._fetch(connection, "recall_dead", values))
        many: int = row["many"]
        return many

    async def _write(self, connection: Connection, batch: Sequence[Settlement]) -> set[int]:
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
        return set((await self._fetch(connection, "settle_letters", values))[0]["ids"])


def _oldest_first(found: Sequence[Any], token: UUID) -> list[DeadDelivery]:
    return sorted((rows.dead_delivery(row, token) for row in found), key=_AGE)
