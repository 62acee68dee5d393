"""What a scenario needs from the place in which it runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """The bounds for the figures of a store; `None` where nothing is promised."""

    share: float
    """Per cent of FastStream's own rate."""
    times: float | None = None
    """Upper bound for a message in total, in multiples of what FastStream alone takes."""
    batch_share: float | None
    """Per cent of a hand-written loop's rate that batch handlers reach."""
    round_trips: float | None
    """Per message, under load."""
    pick_up_ms: float | None
    lateness_ms: float
    idle_queries: float | None = None
    """Per second, when idle."""


class Place(ABC):
    """An empty store, and what its server reports about itself."""

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
        """A SQLAlchemy engine of the caller's own; `None` where publishing joins no SQL transaction."""
        yield None

    @abstractmethod
    async def raw_rate(self, count: int) -> float:
        """Messages a second through a hand-written loop on the same server: claim a batch, handle, delete it."""
