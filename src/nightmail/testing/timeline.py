"""Virtual time: jumps from one event to the next, with all workers idle in between."""

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
    """Of two parties that could claim the same message, the first by name does."""
    at_once: int = 1
    """How many messages it claims at a time. One, or one batch: so the order is always the same."""

    def ready(self) -> tuple[datetime, int] | None:
        """The due time and id of the first message that it could claim now."""
        return self.store.ready(self.queues, self.place)

    def next_moment(self) -> datetime | None:
        """When there is next something for it."""
        return self.store.next_moment(self.queues, self.place)

    async def run_until_idle(self, more: Callable[[], bool]) -> None:
        """Claim and handle everything that is available, and again while there is `more`."""
        with self.store.serving(self.at_once, more):
            await self.worker.run_until_idle()


class Timeline:
    """Runs workers one after the other on a moved clock: the one whose message has been due longest goes first."""

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
        """Handle everything that is due now or becomes due meanwhile; what handlers raised."""
        async with self._alone():
            before = len(self.errors)
            await self._come_to_rest(self._clock.now())
            return self.errors[before:]

    async def advance(self, by: timedelta) -> list[Exception]:
        """Let this much time pass, handling each message at its due time; what handlers raised."""
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
        """Let workers run, in turn, until nothing is left to do up to the target."""
        while (party := self._first()) is not None or self._passed(target):
            if party is not None:
                await party.run_until_idle(partial(self._is_next, party, target))

    def _is_next(self, party: Party, target: datetime) -> bool:
        """Whether this party, which is idle now, is the next to have something to do. Asking lets time pass."""
        if party.worker.in_hand:
            return False  # A handler asks, claiming a message by hand: no time passes while it runs.
        first = self._first()
        while first is None and self._passed(target):
            first = self._first()
        return first is party

    def _passed(self, target: datetime) -> bool:
        """Let time pass until the next event, if that is not after the target."""
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
