"""What a runner is at: one delivery, or one batch of them, after the other, in one task."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from nightmail.keeping import Leases
from nightmail.message import Delivery


@dataclass(slots=True, eq=False)
class Run:
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

    def promise(self, deliveries: Iterable[Delivery], *, locked: bool) -> None:
        """These are acknowledged in the handler's transaction, which keeps them `locked`, or does not."""
        self.promised.update(deliveries)
        if locked:
            # A renewal would meet those locks, or make the commit fail where a row may not have changed since.
            self.leases.drop(self.promised)
