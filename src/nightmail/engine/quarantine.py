"""A message that may have killed its process is quarantined: it runs alone, so that it takes no others down with it.

A process that dies loses everything it has in flight, and each of those messages is one delivery closer to the dead
letters. From its third unexplained loss on a message is quarantined: it starts only when nothing else is in flight,
in its own worker and, as far as they become idle in time, in the other workers of this process.

What that costs the other workers is bounded. Until a quarantined message starts, they are kept from claiming for
moments only. A worker that does not become idle in time is not waited for again until it has been idle. And a
quarantined message that runs for long has the process to itself only at first.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final, Protocol

from nightmail.message import Delivery

QUARANTINED_FROM: Final = 3
PATIENCE_SECONDS: Final = 10.0
"""How long a quarantined message waits for others at most: one long handler must not keep it waiting forever."""
CLOSED_SECONDS: Final = 0.25
"""How long other workers claim nothing, to become idle: enough for short handlers, useless for long ones."""
OPEN_SECONDS: Final = 1.0
"""How long they may claim before that is tried again."""
ALONE_SECONDS: Final = 10.0
"""For how long a running quarantined message keeps other workers from claiming."""
# Polled: quarantine is rare, and a message leaves its worker in too many places to ring a bell in each.
_POLL_SECONDS: Final = 0.005


def is_quarantined(delivery: Delivery) -> bool:
    """Whether workers were lost with this message often enough to quarantine it."""
    return delivery.deliveries >= QUARANTINED_FROM


class Peer(Protocol):
    """A worker, as seen by the others of its process."""

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing is leased to it that a crash could lose."""
        ...

    @property
    def has_only_its_quarantined(self) -> bool:
        """Whether the quarantined message that it is about to start is all that is leased to it."""
        ...


class Quarantine:
    """Shared by the workers of one process: one quarantined message at a time, and no claims while it starts."""

    def __init__(self) -> None:
        self._workers: set[Peer] = set()
        self._waited_for: set[Peer] = set()
        """Those that did not become idle in time: they are not waited for again until they have been idle."""
        self._occupant: Peer | None = None
        self._free = asyncio.Event()
        self._free.set()
        self._open = asyncio.Event()
        self._open.set()
        self._opening: asyncio.TimerHandle | None = None

    def join(self, worker: Peer) -> None:
        """Register this worker."""
        self._workers.add(worker)

    def leave(self, worker: Peer) -> None:
        """It has stopped."""
        self._workers.discard(worker)
        self._waited_for.discard(worker)
        self.free(worker)

    @property
    def taken(self) -> bool:
        """Whether a quarantined message runs, or is about to."""
        return not self._free.is_set()

    @property
    def closed(self) -> bool:
        """Whether nothing may be claimed now."""
        return not self._open.is_set()

    async def wait_free(self) -> None:
        """Until no quarantined message runs."""
        while self.taken:
            await self._free.wait()

    async def wait_open(self) -> None:
        """Until claims are allowed."""
        while self.closed:
            await self._open.wait()

    async def take(self, worker: Peer) -> bool:
        """Reserve the process for `worker`'s quarantined message, once all else is idle; `False` if another has it.

        It is reserved until `free`. While it waits, the worker claims nothing, and the other workers little.
        """
        if self.taken:
            return False
        self._free.clear()
        self._occupant = worker
        try:
            await self._come_to_rest(time.monotonic() + PATIENCE_SECONDS)
        except BaseException:
            self.free(worker)
            raise
        self._open.clear()
        self._opening = asyncio.get_running_loop().call_later(ALONE_SECONDS, self._open.set)
        return True

    def free(self, worker: Peer) -> None:
        """Its quarantined message has ended, if it had the process."""
        if self._occupant is worker:
            self._occupant = None
            if self._opening is not None:
                self._opening.cancel()
                self._opening = None
            self._open.set()
            self._free.set()

    async def _come_to_rest(self, until: float) -> None:
        while True:
            self._open.clear()
            if await self._at_rest(min(time.monotonic() + CLOSED_SECONDS, until)):
                return
            if time.monotonic() >= until:
                self._waited_for.update(self._busy())
                return
            self._open.set()
            await self._at_rest(min(time.monotonic() + OPEN_SECONDS, until))

    async def _at_rest(self, until: float) -> bool:
        """Wait until all are idle, or until then; whether they are."""
        while self._busy():
            if time.monotonic() >= until:
                return False
            await asyncio.sleep(_POLL_SECONDS)
        return True

    def _busy(self) -> set[Peer]:
        """Those that have something in flight and are worth waiting for."""
        busy = {worker for worker in self._workers if not self._rests(worker)}
        self._waited_for &= busy
        return busy - self._waited_for

    def _rests(self, worker: Peer) -> bool:
        return worker.has_only_its_quarantined if worker is self._occupant else worker.is_at_rest
