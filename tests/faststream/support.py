"""What these tests share: what handlers were called with, and waiting for it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.broker.support import PATIENCE


class Calls:
    """Notes what it is called with, and lets a test wait until that has happened so many times."""

    def __init__(self) -> None:
        self.made: list[Any] = []
        self._news = asyncio.Event()

    def __call__(self, *what: Any) -> None:
        self.made.append(what[0] if len(what) == 1 else what)
        self._news.set()

    async def handler(self, body: Any) -> None:
        """A handler that does nothing else."""
        self(body)

    async def times(self, count: int) -> list[Any]:
        """All calls, once there are so many."""
        async with asyncio.timeout(PATIENCE):
            while len(self.made) < count:
                self._news.clear()
                await self._news.wait()
        return self.made


on_every_store = pytest.mark.parametrize("store", ["sqlite", "postgres", "mysql", "redis"])
"""For what stands for its area: the broker is the same on every store, so not everything need run everywhere."""
