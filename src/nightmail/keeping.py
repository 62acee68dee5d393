"""Leases in hand, and the coroutine that renews them.

The worker adds a lease when it claims and drops it when it has settled; the keeper, which real stores run on a
thread of its own, renews what is there. Both sides meet only in `Leases`.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from nightmail.message import Delivery
from nightmail.outcome import Standing
from nightmail.store import Extend

_BATCH: Final = 1000


@dataclass(slots=True, eq=False)
class Held:
    """A lease in hand and, on our own monotonic clock, the moment until which it surely holds."""

    delivery: Delivery
    until: float


class Leases:
    """The leases of one worker, shared with its keeper's thread."""

    def __init__(self) -> None:
        self._held: dict[int, Held] = {}
        self._lock = threading.Lock()

    def add(self, deliveries: Iterable[Delivery], until: float) -> None:
        """These were leased until then."""
        with self._lock:
            for delivery in deliveries:
                self._held[delivery.id] = Held(delivery, until)

    def drop(self, delivery: Delivery) -> None:
        """Renew this one no more."""
        with self._lock:
            held = self._held.get(delivery.id)
            # The same message may be in hand again under a newer lease: that one stays.
            if held is not None and held.delivery is delivery:
                del self._held[delivery.id]

    def surely_holds(self, delivery: Delivery, now: float) -> bool:
        """Whether nobody can have taken this message over yet."""
        held = self._held.get(delivery.id)  # One look needs no lock.
        return held is not None and held.delivery is delivery and now < held.until

    def ending_before(self, moment: float) -> list[Held]:
        """What must be renewed to outlive that moment."""
        with self._lock:
            return [held for held in self._held.values() if held.until < moment]

    def __len__(self) -> int:
        return len(self._held)


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
            standings = await extend([held.delivery for held in batch], self._lease)
            for held, standing in zip(batch, standings, strict=True):
                self._note(held, standing, sent)

    def _note(self, held: Held, standing: Standing, sent: float) -> None:
        if standing is Standing.HELD:
            held.until = sent + self._lease.total_seconds()
        elif standing is Standing.LOST:
            self._leases.drop(held.delivery)
            self._lost(held.delivery)
        # Busy: somebody's transaction has the row locked, perhaps the handler's own ack. The lock protects it.


def _batches(held: list[Held]) -> Iterable[Sequence[Held]]:
    return (held[start : start + _BATCH] for start in range(0, len(held), _BATCH))
