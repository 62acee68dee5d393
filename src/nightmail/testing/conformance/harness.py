"""What the suite needs to drive a store. A new store writes one harness and nothing else."""

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
    """One empty database and the ways to access it. The fixture that creates it also cleans it up."""

    wakeups: ClassVar[bool] = True
    """Whether wake-ups arrive over this kind of connection. If not, tests about wake-ups are skipped."""

    def __init__(self) -> None:
        self.clock = ManualClock()

    @abstractmethod
    async def open(self, *, keep_delivered: bool = False, max_body_bytes: int = MAX_BODY_BYTES) -> FullStore:
        """A store over this database, migrated and open, on `self.clock`; each call is like another process.

        The test closes it.
        """

    def unopened(self) -> FullStore:
        """A store over this database, on `self.clock`, not opened: only where `blocking` is offered."""
        raise NotImplementedError

    @abstractmethod
    def transaction(self, *, repeatable_read: bool = False) -> AbstractAsyncContextManager[Any]:
        """A caller's own transaction, on a connection no store has seen, to be passed as `transaction`.

        Commits when the block ends. When the block raises, rolls back and re-raises (`RolledBack` too).
        """

    def blocking(self) -> AbstractContextManager[Blocking]:
        """Like `transaction`, for synchronous code: only where the store's capabilities say so."""
        raise NotImplementedError

    @abstractmethod
    async def write(self, transaction: Any, value: str) -> None:
        """Write a row of the caller's own data in this transaction."""

    @abstractmethod
    async def written(self) -> list[str]:
        """The caller's own committed rows, sorted."""

    @abstractmethod
    def outside_any_transaction(self) -> AbstractAsyncContextManager[Any]:
        """A raw connection of a kind the store accepts, but with no transaction begun."""
