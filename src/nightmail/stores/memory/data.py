"""What several memory stores may share, as processes share a database, and whose turn it is to write."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager

from nightmail.errors import CannotJoin, NotInTransaction, OtherDatabase, StoreUnavailable
from nightmail.message import Delivery
from nightmail.outcome import Standing
from nightmail.stores.memory.changes import Changes
from nightmail.stores.memory.queue import Queue
from nightmail.stores.memory.rows import Delivered, Row
from nightmail.stores.memory.tables import Tables
from nightmail.stores.memory.transaction import MemoryTransaction


class MemoryData:
    """The messages of one or several memory stores, all on one event loop at a time.

    One transaction is open at a time, and who comes next waits, first come, first served. Only a caller's own
    transaction is ever seen open: a verb does all it does between two steps of the event loop. What needs no
    turn works around the open transaction: it sees the rows it locked as they were, and changes the others.
    """

    def __init__(self) -> None:
        self.tables = Tables()
        self._open: MemoryTransaction | None = None
        self._turn: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = None

    @property
    def delivered(self) -> Sequence[Delivered]:
        """What was handled, in order, by stores that keep it."""
        return self.tables.delivered

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[MemoryTransaction]:
        """A transaction: commits when the block ends, rolls back when it raises."""
        async with self.turn():
            transaction = self._open = MemoryTransaction(self.tables)
            try:
                yield transaction
            except BaseException:
                transaction.changes.roll_back()
                raise
            finally:
                transaction.open = False
                self._open = None
            transaction.changes.commit()

    @asynccontextmanager
    async def writing(self, transaction: object | None) -> AsyncIterator[Changes]:
        """Take part in the caller's transaction; or, without one, write in one of our own."""
        if transaction is None:
            async with self.transaction() as own:
                yield own.changes
        else:
            yield self.joined(transaction).changes

    def joined(self, transaction: object) -> MemoryTransaction:
        """The caller's transaction, if it can carry our writes."""
        if not isinstance(transaction, MemoryTransaction):
            raise CannotJoin(
                f"a {type(transaction).__name__} is not a transaction of the memory store:"
                " pass what `async with data.transaction()` gives"
            )
        if transaction.tables is not self.tables:
            raise OtherDatabase("this transaction belongs to other MemoryData than the store")
        if not transaction.open:
            raise NotInTransaction("this transaction has ended: use it within its `async with` block")
        return transaction

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait until nobody writes, and keep others from writing during the block."""
        if self._open is not None and self._open.owner is asyncio.current_task():
            raise StoreUnavailable(
                "this task has a transaction open and would wait for itself: pass it as the transaction"
            )
        async with self._lock():
            yield

    def leased(self, delivery: Delivery) -> Row | Standing:
        """The row of this delivery, to be changed without a turn; or why that cannot be."""
        queue = self.tables.queue(delivery.queue)
        locked = self._locked()
        row = locked.get((queue.name, delivery.id), queue.rows.get(delivery.id))
        if row is None or row.token != delivery.token:
            return Standing.LOST
        return Standing.BUSY if (queue.name, delivery.id) in locked else row

    def committed(self, queue: Queue) -> Iterator[Row]:
        """The rows of a queue without what the open transaction has done to them."""
        locked = self._locked()
        yield from (row for row in queue.rows.values() if (queue.name, row.id) not in locked)
        yield from (row for (name, _), row in locked.items() if row is not None and name == queue.name)

    def _locked(self) -> Mapping[tuple[str, int], Row | None]:
        return {} if self._open is None else self._open.changes.before

    def _lock(self) -> asyncio.Lock:
        # A lock belongs to the loop on which somebody first waited for it, but data may outlive its loop.
        loop = asyncio.get_running_loop()
        if self._turn is None or self._turn[0] is not loop:
            self._turn = (loop, asyncio.Lock())
        return self._turn[1]
