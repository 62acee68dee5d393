"""What a scenario is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from faults.place import STORES, Place, fresh
from faults.stage import Stage

ASYNCHRONOUS: Final = (
    "nothing_lost",
    "nothing_vanishes",
    "no_phantom",
    "effects_once",
    "timer_ids",
    "one_lease",
    "fenced",
    "in_order",
    "counters",
    "runs_once",
    "right_outcome",
    "no_needless_duplicate",
    "duplicates_bounded",
)
"""What cannot be promised when a server comes back without some of what it acknowledged: it is counted."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A way to hit the product, and how often."""

    name: str
    about: str
    play: Callable[[Stage], Awaitable[None]]
    """Starts processes and injects faults; everything after the last fault is the same for all."""
    faults: int
    stores: tuple[str, ...] = STORES
    where: Callable[[str, Path], AbstractContextManager[Place]] = fresh
    """Makes the place that it needs, on one of these stores."""
    bulk: float = 1000.0
    """How many messages a second are published in batches, besides the others."""
    worker: dict[str, Any] = field(default_factory=dict)
    """What its workers are told."""
    publisher: dict[str, Any] = field(default_factory=dict)
    """What its publishers are told."""
    forgives: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Rules that cannot hold on a store: what they find is counted, and breaks no promise."""
