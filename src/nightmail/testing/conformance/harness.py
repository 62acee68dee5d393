"""What the suite needs to know about a store to drive it. A new store writes one of these and nothing else."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, ClassVar

from nightmail.limits import MAX_BODY_BYTES
from nightmail.store import Blocking, FullStore
from nightmail.testing.clock import ManualClock


class RolledBack(Exception):
    """Raised by a test inside `Harness.transaction` to have it rolled back."""


class Harness(ABC):
    """One empty database, and the ways into it. The fixture that makes it also cleans it up."""

    wakeups: ClassVar[bool] = True
    """Whether wake-ups arrive on this way to the store. If not, tests about what rings a bell are skipped."""

    def __init__(self) -> None:
        self.clock = ManualClock()

    @abstractmethod
    async def open(self, *, keep_delivered: bool = False, max_body_bytes: int = MAX_BODY_BYTES) -> FullStore:
        """A store over this database, migrated and open, on `self.clock`; each call is like another process.

        The test closes it.
        """

    def unopened(self) -> FullStore:
        """A store over this database, on `self.clock`, that nobody has opened: where `blocking` is offered."""
        raise NotImplementedError

    @abstractmethod
    def transaction(self, *, repeatable_read: bool = False) -> AbstractAsyncContextManager[Any]:
        """A caller's own transaction, on a connection no store has seen, to be passed as `transaction`.

        Commits when the block ends. When the block raises it rolls back and raises on (also `RolledBack`).
        """

    def blocking(self) -> AbstractContextManager[Blocking]:
        """The same for synchronous code: only where the store's capabilities say so."""
        raise NotImplementedError

    @abstractmethod
    async def write(self, transaction: Any, value: str) -> None:
        """Write a row of the caller's own data in this transaction."""

    @abstractmethod
    async def written(self) -> list[str]:
        """The caller's own committed rows, sorted."""

    @abstractmethod
    def outside_any_transaction(self) -> AbstractAsyncContextManager[Any]:
        """A raw connection of a kind the store accepts, but on which no transaction was begun."""
