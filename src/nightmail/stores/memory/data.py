"""What several memory stores may share, as processes share a database, and the lock for writing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence, Set
from contextlib import asynccontextmanager, contextmanager
from threading import RLock
from typing import Final, TypeVar

from nightmail.errors import CannotJoin, NotInTransaction, OtherDatabase, StoreUnavailable
from nightmail.message import Delivery
from nightmail.outcome import WriteResult
from nightmail.store import Blocking
from nightmail.stores.memory.changes import Changes
from nightmail.stores.memory.fair_lock import FairLock
from nightmail.stores.memory.letters import Letter
from nightmail.stores.memory.queue import Queue
from nightmail.stores.memory.rows import Delivered, Row
from nightmail.stores.memory.tables import Tables
from nightmail.stores.memory.transaction import (
    MemoryTransaction,
    OpenTransaction,
    SyncMemoryTransaction,
    current_runner,
)
from nightmail.stores.sql.callers_objects import asynchronous, synchronous

_Transaction = TypeVar("_Transaction", bound=OpenTransaction)
_NO_LETTERS: Final[Set[int]] = frozenset()


class MemoryData:
    """The messages of one or several memory stores, all on one event loop at a time.

    One transaction is open at a time, and others wait, first come, first served. Only a caller's own transaction
    is ever seen open: a verb does all its work between two steps of the event loop. What needs no turn works
    around the open transaction: it sees locked rows as they were, and changes the others.

    Synchronous code may write from threads of its own. So whatever looks at the data or changes it, with a turn or
    without, does so in a `step`; nothing waits for anything during one.
    """

    def __init__(self) -> None:
        self.tables = Tables()
        self.step = RLock()
        self._open: OpenTransaction | None = None
        self._lock = FairLock()

    @property
    def delivered(self) -> Sequence[Delivered]:
        """Delivered messages, in order, from stores that keep them."""
        return self.tables.delivered

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[MemoryTransaction]:
        """A transaction: commits when the block ends, rolls back when it raises."""
        self._refuse_to_wait_for_itself()
        await self._lock.acquire()
        try:
            with self._opened(MemoryTransaction(self.tables)) as transaction:
                yield transaction
        finally:
            self._lock.release()

    @contextmanager
    def sync_transaction(self) -> Iterator[SyncMemoryTransaction]:
        """A transaction of synchronous code. On the thread of an event loop it cannot wait, and needs the turn free."""
        self._refuse_to_wait_for_itself()
        self._lock.acquire_blocking()
        try:
            with self._opened(SyncMemoryTransaction(self.tables)) as transaction:
                yield transaction
        finally:
            self._lock.release()

    @asynccontextmanager
    async def writing(self, transaction: object | None) -> AsyncIterator[Changes]:
        """Join the caller's transaction; or, without one, open our own. The block is a step."""
        if transaction is None:
            async with self.transaction() as own:
                with self.step:
                    yield own.changes
        else:
            with self.step:
                yield self.either_joined(transaction).changes

    def either_joined(self, transaction: object) -> OpenTransaction:
        """The caller's transaction, synchronous or not."""
        if isinstance(transaction, Blocking):
            return self._joined_blocking(transaction.session)
        return self.joined(transaction)

    def joined(self, transaction: object) -> MemoryTransaction:
        """The caller's transaction, if it can carry our writes."""
        if isinstance(transaction, SyncMemoryTransaction):
            raise synchronous(transaction)
        if not isinstance(transaction, MemoryTransaction):
            raise CannotJoin(
                f"a {type(transaction).__name__} is not a transaction of the memory store:"
                " pass what `async with data.transaction()` gives"
            )
        return self._usable(transaction)

    def _joined_blocking(self, session: object) -> SyncMemoryTransaction:
        if isinstance(session, MemoryTransaction):
            raise asynchronous(session)
        if not isinstance(session, SyncMemoryTransaction):
            raise CannotJoin(
                f"a {type(session).__name__} is not a transaction of the memory store:"
                " pass what `with data.sync_transaction()` gives"
            )
        return self._usable(session)

    def _usable(self, transaction: _Transaction) -> _Transaction:
        if transaction.tables is not self.tables:
            raise OtherDatabase("this transaction belongs to other MemoryData than the store")
        if not transaction.open:
            raise NotInTransaction("this transaction has ended: use it within its `with` block")
        return transaction

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait until no transaction is open, and keep others out during the block, which is a step."""
        self._refuse_to_wait_for_itself()
        await self._lock.acquire()
        try:
            with self.step:
                yield
        finally:
            self._lock.release()

    def leased(self, delivery: Delivery) -> Row | WriteResult:
        """The row of this delivery, to be changed without a turn; or the write result that says why not."""
        queue = self.tables.queue(delivery.queue)
        locked = self._locked()
        row = locked.get((queue.name, delivery.id), queue.rows.get(delivery.id))
        if row is None or row.token != delivery.token:
            return WriteResult.LOST
        return WriteResult.BUSY if (queue.name, delivery.id) in locked else row

    def leased_letter(self, delivery: Delivery) -> Letter | WriteResult:
        """The same for a dead letter."""
        letter = self.tables.queue(delivery.queue).letters.by_id.get(delivery.id)
        if letter is None or letter.token != delivery.token:
            return WriteResult.LOST
        locked = _NO_LETTERS if self._open is None else self._open.changes.locked_letters
        return WriteResult.BUSY if letter.id in locked else letter

    def committed(self, queue: Queue) -> Iterator[Row]:
        """The rows of a queue, without the open transaction's changes."""
        locked = self._locked()
        yield from (row for row in queue.rows.values() if (queue.name, row.id) not in locked)
        yield from (row for (name, _), row in locked.items() if row is not None and name == queue.name)

    def is_locked(self, row: Row) -> bool:
        """Whether an open transaction has locked this row."""
        return (row.queue, row.id) in self._locked()

    @contextmanager
    def _opened(self, transaction: _Transaction) -> Iterator[_Transaction]:
        self._open = transaction
        try:
            yield transaction
        except BaseException:
            with self.step:
                self._end(transaction)
                transaction.changes.roll_back()
            raise
        with self.step:
            self._end(transaction)
            transaction.changes.commit()

    def _end(self, transaction: OpenTransaction) -> None:
        transaction.open = False
        self._open = None

    def _locked(self) -> Mapping[tuple[str, int], Row | None]:
        return {} if self._open is None else self._open.changes.before

    def _refuse_to_wait_for_itself(self) -> None:
        transaction = self._open
        if transaction is not None and transaction.owner == current_runner():
            raise StoreUnavailable(
                "this task has a transaction open and would wait for itself: pass it as the transaction"
            )
