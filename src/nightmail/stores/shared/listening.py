"""Bells that a task of their own rings, for what other processes write."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod

from nightmail.bell import Bell, Bells


class ListeningBells(Bells, ABC):
    """The bells of a store. It begins to listen, or to poll, when the first one is hung."""

    def __init__(self) -> None:
        super().__init__()
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def hang(self, bell: Bell) -> None:
        """Ring this bell too from now on."""
        super().hang(bell)
        if self._task is None and not self._closed:
            self._task = asyncio.create_task(self._listen())

    async def close(self) -> None:
        """Stop listening for good. Bells that still hang no longer ring."""
        self._closed = True
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    @abstractmethod
    async def _listen(self) -> None:
        """Ring the bells, until cancelled."""
