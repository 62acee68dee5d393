"""What was counted. Plain numbers: exporters read them on demand, at no cost per message."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, TypeAlias

from nightmail.outcome import Reason

Observe: TypeAlias = Callable[[float], None]
"""Takes one value of a distribution."""

MOST_QUEUES: Final = 1000
"""How many queues get their own numbers; further ones are counted together, as `OTHER`."""
OTHER: Final = "other"


class Kind(StrEnum):
    """What was delivered."""

    MESSAGE = "message"
    DEAD_LETTER = "dead_letter"


class Ending(StrEnum):
    """How a delivery ended, unless it was lost."""

    DONE = "done"
    ACKED_IN_TRANSACTION = "acked_in_transaction"
    RETRIED = "retried"
    POSTPONED = "postponed"
    DEAD = "dead"
    RELEASED = "released"
    SUPERSEDED = "superseded"
    UNCERTAIN = "uncertain"


@dataclass(slots=True, eq=False)
class Deliveries:
    """The outcomes of the deliveries of one queue, of one kind."""

    queue: str
    kind: Kind
    late: Observe
    """Takes how late each was started."""
    ran: Observe
    """Takes how long each handler ran."""
    claimed: int = 0
    in_flight: int = 0
    failures: int = 0
    lost_leases: int = 0
    overdue: int = 0
    # From zero, not from the first event: that one would not show as an increase.
    endings: dict[Ending, int] = field(default_factory=lambda: dict.fromkeys(Ending, 0))
    reasons: dict[str, int] = field(default_factory=lambda: dict.fromkeys((*Reason, OTHER), 0))
    """Why messages died, and how many of each."""
    store_ahead: float = float("-inf")
    """The store's clock minus our monotonic clock: an estimate that is never too high."""
    learned_at: float = float("-inf")
    """When that was estimated, by our clock."""


class Distribution:
    """How many values fell up to each of these bounds, and their sum."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def __call__(self, value: float) -> None:
        """Take this value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value
