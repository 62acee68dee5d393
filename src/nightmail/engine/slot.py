"""What a runner is at: one delivery, or one batch of them, after the other, in one task."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from nightmail.engine.leases import Leases
from nightmail.message import Delivery

if TYPE_CHECKING:
    from nightmail.engine.threads import HandlerThreads, ThreadCall

_TURNS: Final = 5


@dataclass(slots=True, eq=False)
class HandlerSlot:
    """A runner's place. Lives as long as its task; what it holds changes with every message."""

    task: asyncio.Task[Any]
    leases: Leases
    """Those of its worker."""
    delivery: Delivery | None = None
    """What it runs now; of a batch, the first."""
    batch: Sequence[Delivery] = ()
    """All of it, where handlers take batches."""
    promised: set[Delivery] = field(default_factory=set)
    """What the handler has acknowledged in a transaction of its own: whether that commits, we are not told."""
    begun: float = 0.0
    """When that began, by the monotonic clock."""
    overdue: bool = False
    """Cancelled for running too long."""
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    """Whether its worker stops."""
    threads: HandlerThreads | None = None
    """Where its worker runs what blocks."""
    call: ThreadCall[Any] | None = None
    """What runs there now, if anything."""
    left_behind: bool = False
    """Its worker has stopped, and a thread of this still runs: nothing of it may be written or given away."""

    @property
    def deliveries(self) -> Sequence[Delivery]:
        """All that it runs now."""
        return self.batch or (() if self.delivery is None else (self.delivery,))

    async def was_interrupted(self) -> bool:
        """Whether its handler was cancelled by us: its time was up, or its worker stops."""
        if self.overdue:
            return True
        if not self.task.cancelling():
            return False
        # When `asyncio.run` ends it cancels all tasks at once: this one may hear of it before its worker does.
        for _ in range(_TURNS):
            if self.stopping.is_set():
                break
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0)
        return self.stopping.is_set()

    def promise(self, deliveries: Iterable[Delivery], *, locked: bool) -> None:
        """These are acknowledged in the handler's transaction, which keeps them `locked`, or does not."""
        self.promised.update(deliveries)
        if locked:
            # A renewal would meet those locks, or make the commit fail where a row may not have changed since.
            self.leases.drop(self.promised)
