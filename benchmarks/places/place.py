"""What a scenario asks of the place in which it runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """What the figures of a store are held against; `None` where nothing is promised."""

    share: float
    """Of FastStream's own rate, in per cent."""
    times: float | None = None
    """What FastStream alone takes, that a message may take in all."""
    batch_share: float | None
    """Of a loop by hand, in per cent, that handlers of batches reach."""
    round_trips: float | None
    """A message, under load."""
    pick_up_ms: float | None
    lateness_ms: float
    idle_queries: float | None = None
    """A second, with nothing to do."""


class Place(ABC):
    """An empty store, and what its server can tell of itself."""

    name: str
    bounds: Bounds

    def __init__(self, url: str) -> None:
        self.url = url

    async def round_trips(self) -> int | None:
        """How many requests the server has answered so far; `None` where there is no server to ask."""
        return None

    async def connections(self) -> int | None:
        """How many connections of ours the server has; `None` where there is no server to ask."""
        return None

    @asynccontextmanager
    async def transactions(self) -> AsyncIterator[Any]:
        """An SQLAlchemy engine of the caller's own; `None` where publishing joins no transaction of SQL."""
        yield None

    @abstractmethod
    async def raw_rate(self, count: int) -> float:
        """Messages a second through a loop written by hand on the same server: claim a batch, handle, delete it."""
