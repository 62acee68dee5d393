"""Leases in hand, and the coroutine that renews them.

The worker adds a lease when it claims and drops it when it has settled; the keeper, which real stores run on a
thread of its own, renews what is there. Both sides meet only in `Leases`.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Final

from nightmail.message import Delivery
from nightmail.outcome import Standing
from nightmail.store import Extend

_BATCH: Final = 1000


class Leases:
    """The leases of one worker, shared with its keeper's thread.

    A lease is known by its delivery: the same message may be in hand again under a newer one, which is another.
    """

    def __init__(self) -> None:
        self._until: dict[Delivery, float] = {}
        """Until when each surely holds, by our own monotonic clock."""
        self._lock = threading.Lock()

    def add(self, deliveries: Iterable[Delivery], until: float) -> None:
        """These were leased until then."""
        with self._lock:
            self._until.update(dict.fromkeys(deliveries, until))

    def drop(self, deliveries: Iterable[Delivery]) -> None:
        """Renew these no more."""
        with self._lock:
            for delivery in deliveries:
                self._until.pop(delivery, None)

    def renewed(self, delivery: Delivery, until: float) -> None:
        """This one holds until then, if it is still in hand."""
        with self._lock:
            if delivery in self._until:
                self._until[delivery] = until

    def surely_holds(self, delivery: Delivery, now: float) -> bool:
        """Whether nobody can have taken this message over yet."""
        return now < self._until.get(delivery, now)  # One look needs no lock.

    def ending_before(self, moment: float) -> list[Delivery]:
        """What must be renewed to outlive that moment."""
        with self._lock:
            return [delivery for delivery, until in self._until.items() if until < moment]

    def __len__(self) -> int:
        return len(self._until)


class Keeper:
    """Renews each lease when a third of it is gone, until cancelled; tells of those that were lost, and of failures."""

    def __init__(
        self,
        leases: Leases,
        lease: timedelta,
        *,
        lost: Callable[[Delivery], object],
        failed: Callable[[Exception, timedelta], object],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._leases = leases
        self._lease = lease
        self._lost = lost
        self._failed = failed
        self._now = now

    async def keep(self, extend: Extend) -> None:
        """Look six times per lease: a renewal that fails has three more chances before the lease ends."""
        pause = self._lease / 6
        while True:
            await asyncio.sleep(pause.total_seconds())
            try:
                await self.renew(extend)
            except Exception as error:  # noqa: BLE001 - whatever it is, giving up would lose every lease in hand
                self._failed(error, pause)

    async def renew(self, extend: Extend) -> None:
        """Renew what has less than two thirds of its lease left."""
        ending = self._leases.ending_before(self._now() + self._lease.total_seconds() * 2 / 3)
        for batch in _batches(ending):
            sent = self._now()
            standings = await extend(batch, self._lease)
            for delivery, standing in zip(batch, standings, strict=True):
                self._note(delivery, standing, sent)

    def _note(self, delivery: Delivery, standing: Standing, sent: float) -> None:
        if standing is Standing.HELD:
            self._leases.renewed(delivery, sent + self._lease.total_seconds())
        elif standing is Standing.LOST:
            self._leases.drop([delivery])
            self._lost(delivery)
        # Busy: somebody's transaction has the row locked, perhaps the handler's own ack. The lock protects it.


def _batches(deliveries: list[Delivery]) -> Iterable[Sequence[Delivery]]:
    return (deliveries[start : start + _BATCH] for start in range(0, len(deliveries), _BATCH))
