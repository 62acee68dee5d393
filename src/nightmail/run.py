"""What a runner is at: one delivery after the other, in one task."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from nightmail.message import Delivery


@dataclass(slots=True, eq=False)
class Run:
    """A runner's place. Lives as long as its task; what it holds changes with every message."""

    task: asyncio.Task[Any]
    delivery: Delivery | None = None
    """What it runs now."""
    begun: float = 0.0
    """When that began, by the monotonic clock."""
    overdue: bool = False
    """Cancelled for running too long."""
