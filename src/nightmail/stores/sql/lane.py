"""One connection for one kind of work, on which verbs are carried out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, Protocol, TypeVar

from nightmail.errors import StoreUnavailable
from nightmail.stores.shared import lane
from nightmail.stores.sql.verbs import MakeVerb, carry_out

T = TypeVar("T")

SHORTEST_PAUSE: Final = 0.02
LONGEST_PAUSE: Final = 0.5


class Locked(StoreUnavailable):
    """A message or its timer id is locked by another open transaction, for longer than we wait. Try again."""


class Role(Protocol):
    """What a connection is for."""

    @property
    def statement_seconds(self) -> int:
        """After this the server cancels a statement."""
        ...

    @property
    def patience(self) -> float:
        """Seconds after which we stop waiting for an answer: the network or the server must be gone."""
        ...


class Link(lane.Link, Protocol):
    """One of our connections."""

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open on it."""
        ...

    async def send(self, request: Any) -> Any:
        """Carry out one request of a verb."""
        ...


L = TypeVar("L", bound=Link)


class Lane(lane.Lane[L]):
    """One connection, used by one caller at a time."""

    def __init__(self, role: Role) -> None:
        super().__init__()
        self._role = role

    def carry_out(
        self, make: MakeVerb[T], *, lost: type[StoreUnavailable] = StoreUnavailable, patient: bool = False
    ) -> Coroutine[Any, Any, T]:
        """Carry out a verb. `patient`: retry while a row is locked, and let other callers go first."""
        run = self.run_patiently if patient else self.run
        return run(lambda link: carry_out(make(), link.send), lost=lost)

    async def run_patiently(
        self,
        work: Callable[[L], Awaitable[T]],
        *,
        lost: type[StoreUnavailable] = StoreUnavailable,
        here: bool = False,
    ) -> T:
        """Like `run`, or `run_here`, retrying while a row is locked, and letting other callers go first."""
        run = self.run_here if here else self.run
        pause = SHORTEST_PAUSE
        deadline = asyncio.get_running_loop().time() + self._role.statement_seconds
        while True:
            try:
                return await run(work, lost=lost)
            except Locked:
                if asyncio.get_running_loop().time() > deadline:
                    raise
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    def _patience(self, work: Callable[[L], Awaitable[Any]]) -> float:
        return self._role.patience

    def _check_finished(self, link: L, lost: type[StoreUnavailable]) -> None:
        if link.in_transaction:
            # Should never happen: the work looks done, but is not committed.
            self._drop()
            raise lost("a transaction was left open on the store's connection: what it wrote is undone")
