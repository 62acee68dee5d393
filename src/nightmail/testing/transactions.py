"""The memory store's data, written in whatever the code under test uses as its transaction.

A SQLAlchemy session or connection tells how its transaction ends: what was written in it is hidden until it commits,
and undone when it rolls back. Anything else, a fake for instance, cannot tell: writes take effect at once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager

from nightmail.store import Blocking
from nightmail.stores.memory import MemoryData, MemoryTransaction
from nightmail.stores.memory.changes import Changes
from nightmail.stores.memory.rows import Row
from nightmail.testing.endings import Ending, begun, ending_of, sync_session_of


class VirtualData(MemoryData):
    """Accepts any object as a transaction."""

    def __init__(self) -> None:
        super().__init__()
        self._enlisted: dict[int, MemoryTransaction] = {}
        """What was written in each open transaction, by its `id()`."""
        self._endings: dict[int, Ending] = {}
        """Those whose end can be observed. Kept alive, so that no other object gets the same `id()`."""

        self._lasting: set[int] = set()

    def close(self) -> None:
        """Stop listening for the ends of transactions."""
        for ending in self._endings.values():
            ending.close()
        self._endings.clear()

    @asynccontextmanager
    async def writing(self, transaction: object | None) -> AsyncIterator[Changes]:
        """Write in this transaction or, without one, at once."""
        if transaction is None:
            async with super().writing(None) as changes:
                yield changes
            return
        session = transaction.session if isinstance(transaction, Blocking) else transaction
        await begun(session)
        with self.step:
            try:
                yield self.joined(session).changes
            finally:
                self.conclude(session)

    def joined(self, transaction: object) -> MemoryTransaction:
        """What was written in this transaction."""
        heart = sync_session_of(transaction)
        key = id(heart)
        if key not in self._enlisted:
            self._enlisted[key] = MemoryTransaction(self.tables)
            if key not in self._endings:
                ending = ending_of(heart, lambda committed: self._ended(key, committed=committed))
                if ending is not None:
                    self._endings[key] = ending
        return self._enlisted[key]

    def conclude(self, transaction: object) -> None:
        """The write is done. A transaction whose end cannot be observed counts as committed."""
        key = id(sync_session_of(transaction))
        if key not in self._endings and key not in self._lasting:
            self._ended(key, committed=True)

    @contextmanager
    def lasting(self, transaction: object) -> Iterator[None]:
        """This transaction, whose end cannot be observed, commits when the block ends, or rolls back if it raises."""
        key = id(transaction)
        self._lasting.add(key)
        try:
            yield
            self._ended(key, committed=True)
        finally:
            self._ended(key, committed=False)
            self._lasting.discard(key)

    @contextmanager
    def committed_only(self) -> Iterator[None]:
        """Within the block, hide the rows that open transactions have written or locked."""
        hidden = [
            (queue, row)
            for name, id_ in self._locked()
            if (row := (queue := self.tables.queue(name)).rows.get(id_)) is not None
        ]
        for queue, row in hidden:
            queue.remove(row)
        try:
            yield
        finally:
            for queue, row in hidden:
                queue.add(row)

    def _locked(self) -> Mapping[tuple[str, int], Row | None]:
        if not self._enlisted:
            return super()._locked()
        locked = dict(super()._locked())
        for transaction in self._enlisted.values():
            locked.update(transaction.changes.before)
        return locked

    def _ended(self, key: int, *, committed: bool) -> None:
        with self.step:
            transaction = self._enlisted.pop(key, None)
            if transaction is None:
                return
            transaction.open = False
            if committed:
                transaction.changes.commit()
            else:
                transaction.changes.roll_back()
