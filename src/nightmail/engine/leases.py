"""The leases of what is in flight, and the coroutine that renews them.

The worker adds a lease when it claims and drops it when it has settled; the keeper, which real stores run on a
thread of its own, renews what is there. The two share nothing but `Leases`.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import timedelta
from typing import Final
from uuid import UUID

from nightmail.message import Delivery
from nightmail.outcome import WriteResult
from nightmail.store import RENEW_AGAIN_SECONDS, Extend

_BATCH: Final = 1000
SOONEST_SECONDS: Final = 0.02
"""How soon to retry a lease that could not be renewed: after a sixtieth of it, but no sooner than this."""


class Leases:
    """The leases of one worker, shared with its keeper's thread.

    A lease is identified by its delivery: the same message may be in flight again under a newer lease.
    """

    def __init__(self) -> None:
        self._until: dict[Delivery, float] = {}
        """Until when each is certain to hold, by our own monotonic clock."""
        self.unconfirmed: tuple[UUID, float] | None = None
        """The token of a claim that has had no answer, and until when what it may have taken is leased."""
        self.lost = 0
        """How many of them were taken over."""
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

    def keep_only(self, deliveries: Iterable[Delivery]) -> int:
        """Renew only these; how many of them are still in flight."""
        with self._lock:
            self._until = {each: self._until[each] for each in deliveries if each in self._until}
            return len(self._until)

    def renewed(self, delivery: Delivery, until: float) -> None:
        """This one holds until then, if it is still in flight."""
        with self._lock:
            if delivery in self._until:
                self._until[delivery] = until

    def others_than(self, deliveries: Iterable[Delivery]) -> int:
        """How many others than these are in flight."""
        with self._lock:
            return len(self._until.keys() - set(deliveries))

    def surely_holds(self, delivery: Delivery, now: float) -> bool:
        """Whether no other worker can have taken this message over yet."""
        return now < self._until.get(delivery, now)  # A single read needs no lock.

    def surely_held(self, deliveries: Sequence[Delivery], now: float) -> list[Delivery]:
        """Those of these of which that is so."""
        return [delivery for delivery in deliveries if now < self._until.get(delivery, now)]

    def ending_before(self, moment: float) -> list[Delivery]:
        """What must be renewed to outlive that moment."""
        with self._lock:
            return [delivery for delivery, until in self._until.items() if until < moment]

    def __len__(self) -> int:
        return len(self._until)


class Keeper:
    """Renews each lease when a quarter of it is gone, until cancelled; reports lost leases, stops and failures.

    With a look after every sixth of a lease, seven twelfths of each lease are left at any moment: a process may be
    paused for so long and lose nothing. A renewal that fails or is `BUSY` is retried soon, at least thirty-five times
    before the lease ends.
    """

    def __init__(
        self,
        leases: Leases,
        lease: timedelta,
        *,
        lost: Callable[[Delivery], object],
        failed: Callable[[Exception, timedelta], object],
        stop: Callable[[Delivery], object] | None = None,
        now: Callable[[], float] | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._leases = leases
        self._lease = lease
        self._lost = lost
        self._failed = failed
        self._stop = stop or _ignore
        self._now = now or time.monotonic
        self._sleep = sleep
        self._crowded_until = float("-inf")
        """For a lease after a renewal in which all were `BUSY`: others write so much that it must begin earlier."""
        self._lingers = False

    def linger(self, deliveries: Iterable[Delivery]) -> bool:
        """Renew only these from now on, and end when none of them is in flight any more; whether any is.

        They belong to threads that outlive their worker, which gets no more reports.
        """
        if not self._leases.keep_only(deliveries):
            return False
        self._lost = self._failed = self._stop = _ignore
        self._lingers = True
        return True

    async def keep(self, extend: Extend) -> None:
        """Look six times per lease, and again soon after a renewal that failed or was `BUSY`."""
        usual = self._lease.total_seconds() / 6
        soon = min(max(self._lease.total_seconds() / 60, SOONEST_SECONDS), RENEW_AGAIN_SECONDS, usual)
        pause, failing = usual, False
        while not self._lingers or len(self._leases):
            await self._sleep(pause)
            try:
                pause = usual if await self.renew(extend) else soon
                failing = False
            except Exception as error:  # noqa: BLE001 - whatever it is, giving up would lose every lease in flight
                pause = soon
                if not failing:  # Reported once: it is retried so often that it would flood the log.
                    self._failed(error, timedelta(seconds=soon))
                failing = True

    async def renew(self, extend: Extend) -> bool:
        """Renew what has less than three quarters of its lease left, or five sixths if all were `BUSY` a while ago.

        Whether all of it could be renewed, or is known to be lost.
        """
        begun, lease = self._now(), self._lease.total_seconds()
        least = 5 / 6 if begun < self._crowded_until else 3 / 4
        ending = self._leases.ending_before(begun + lease * least)
        busy = 0
        for batch in _batches(ending):
            sent = self._now()
            results = await extend(batch, self._lease)
            for delivery, result in zip(batch, results, strict=True):
                self._note(delivery, result, sent)
            busy += sum(result is WriteResult.BUSY for result in results)
        # One locked row says nothing about the others. When all are locked, it may be the whole database.
        if 0 < busy == len(ending):
            self._crowded_until = begun + lease
        return not busy

    def _note(self, delivery: Delivery, result: WriteResult, sent: float) -> None:
        if result is WriteResult.WRITTEN or result is WriteResult.STOP:
            self._leases.renewed(delivery, sent + self._lease.total_seconds())
            if result is WriteResult.STOP:
                self._stop(delivery)
        elif result is WriteResult.LOST:
            self._leases.drop([delivery])
            self._lost(delivery)
        # Busy: an open transaction has locked the row, perhaps the handler's own ack, and then the lock protects it.
        # But where one writer locks the whole database nothing protects it: retry soon.


def _batches(deliveries: list[Delivery]) -> Iterable[Sequence[Delivery]]:
    return (deliveries[start : start + _BATCH] for start in range(0, len(deliveries), _BATCH))


def _ignore(*_what: object) -> None:
    """The worker that took these reports has stopped."""
