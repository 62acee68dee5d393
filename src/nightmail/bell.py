"""Wake-ups: a hint that a queue may have something. Looking again is the guarantee."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import TracebackType
from typing import Self


class Bell:
    """Rings when one of its queues may have something due; remembers a ring until it is cleared.

    Clear it *before* looking, never after: a ring during the look then still cuts the next wait short.
    """

    def __init__(self, tower: Bells, queues: Iterable[str]) -> None:
        self.queues = frozenset(queues)
        self._tower = tower
        self._rung = asyncio.Event()

    def ring(self) -> None:
        """Wake the waiter, now or at its next wait."""
        self._rung.set()

    def clear(self) -> None:
        """Forget earlier rings."""
        self._rung.clear()

    async def wait(self, timeout: float | None) -> bool:
        """Wait until rung (`True`) or until `timeout` seconds have passed (`False`)."""
        try:
            async with asyncio.timeout(timeout):
                return await self._rung.wait()
        except TimeoutError:
            return False

    def __enter__(self) -> Self:
        self._tower.hang(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._tower.take_down(self)


class Bells:
    """All bells of one store in one process."""

    def __init__(self) -> None:
        self._bells: list[Bell] = []

    def bell(self, *queues: str) -> Bell:
        """A bell for these queues; it hangs while used as a context manager."""
        return Bell(self, queues)

    @property
    def empty(self) -> bool:
        """Whether nothing listens."""
        return not self._bells

    def hang(self, bell: Bell) -> None:
        """From now on this bell rings too."""
        self._bells.append(bell)

    def take_down(self, bell: Bell) -> None:
        """This bell rings no more."""
        self._bells.remove(bell)

    def ring(self, queue: str) -> None:
        """Ring for one queue."""
        for bell in self._bells:
            if queue in bell.queues:
                bell.ring()

    def ring_all(self) -> None:
        """Ring for every queue: after a reconnect anything may have been missed."""
        for bell in self._bells:
            bell.ring()
