"""Virtual time: from one moment at which something happens to the next, with workers at rest in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from operator import itemgetter
from typing import Final

from nightmail.engine.worker import Worker
from nightmail.testing.clock import ManualClock
from nightmail.testing.store import Place, VirtualStore

_NOTHING: Final = timedelta(0)


@dataclass(frozen=True, slots=True, eq=False)
class Party:
    """A worker that takes part, and where it looks for messages."""

    worker: Worker
    store: VirtualStore
    queues: tuple[str, ...]
    place: Place
    name: str = ""
    """Of two parties that could take the same message, the first by name does."""
    at_once: int = 1
    """How many messages it takes at a time. One, or one batch: the order is then the same every time."""

    def ready(self) -> tuple[datetime, int] | None:
        """Since when the first of what it could take now is due, and its id."""
        return self.store.ready(self.queues, self.place)

    def next_moment(self) -> datetime | None:
        """When there will next be something for it."""
        return self.store.next_moment(self.queues, self.place)

    async def run_until_idle(self, more: Callable[[], bool]) -> None:
        """Take and handle everything that is there, and again when there is `more`."""
        with self.store.serving(self.at_once, more):
            await self.worker.run_until_idle()


class Timeline:
    """Runs workers at the moments of a clock, one after the other: whose message has been due longest goes first."""

    def __init__(self, clock: ManualClock, parties: Callable[[], Iterable[Party]]) -> None:
        self.errors: list[Exception] = []
        """What handlers raised, in order."""
        self._clock = clock
        self._parties = parties
        self._turn = asyncio.Lock()

    @property
    def is_running_here(self) -> bool:
        """Whether this is code of a handler, or of a task it started, while the workers run."""
        return self in _running.get() and self._turn.locked()

    def note(self, error: Exception) -> None:
        """A handler raised this."""
        if not any(error is known for known in self.errors[-10:]):
            self.errors.append(error)

    async def run(self) -> list[Exception]:
        """Handle all that is due now, and what becomes due by that; what handlers raised meanwhile."""
        async with self._alone():
            before = len(self.errors)
            await self._come_to_rest(self._clock.now())
            return self.errors[before:]

    async def advance(self, by: timedelta) -> list[Exception]:
        """Let so much time pass, and handle what is due at its own moment; what handlers raised meanwhile."""
        if by < _NOTHING:
            raise ValueError(f"time only moves forward, not by {by}")
        async with self._alone():
            before, target = len(self.errors), self._clock.now() + by
            await self._come_to_rest(target)
            self._clock.move_to(target)
            return self.errors[before:]

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        if self.is_running_here:
            raise RuntimeError(
                "a handler cannot move the time or run the others: they wait until it has returned"
            )
        async with self._turn:
            token = _running.set(_running.get() | {self})
            try:
                yield
            finally:
                _running.reset(token)

    async def _come_to_rest(self, target: datetime) -> None:
        """Let workers run, each in its turn, until nothing is left to do up to that moment."""
        while (party := self._first()) is not None or self._passed(target):
            if party is not None:
                await party.run_until_idle(partial(self._is_next, party, target))

    def _is_next(self, party: Party, target: datetime) -> bool:
        """Whether this one, which has nothing left to do now, is the next to have something. Asking lets time pass."""
        if party.worker.in_hand:
            return False  # It is its handler that asks, which took a message by hand: no time passes while one runs.
        first = self._first()
        while first is None and self._passed(target):
            first = self._first()
        return first is party

    def _passed(self, target: datetime) -> bool:
        """Let time pass to the next moment at which something happens, if that is not after the target."""
        now = self._clock.now()
        moments = (party.next_moment() for party in self._parties())
        moment = min((each for each in moments if each is not None and each > now), default=None)
        if moment is None or moment > target:
            return False
        self._clock.move_to(moment)
        return True

    def _first(self) -> Party | None:
        waiting = [
            (since, party.name, party) for party in self._parties() if (since := party.ready()) is not None
        ]
        return min(waiting, key=itemgetter(0, 1))[2] if waiting else None


_running: Final[ContextVar[frozenset[Timeline]]] = ContextVar("nightmail_timelines", default=frozenset())
