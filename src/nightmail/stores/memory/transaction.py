"""A caller's own transaction over the memory store."""

from __future__ import annotations

import asyncio
from threading import get_ident

from nightmail.stores.memory.changes import Changes
from nightmail.stores.memory.fair_lock import running_loop
from nightmail.stores.memory.tables import Tables


def current_runner() -> object:
    """The current task; without an event loop, the thread."""
    return get_ident() if running_loop() is None else asyncio.current_task()


class OpenTransaction:
    """The transaction that has the turn, until its block ends."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.changes = Changes(tables)
        self.owner = current_runner()
        self.open = True


class MemoryTransaction(OpenTransaction):
    """What `MemoryData.transaction()` gives, to be passed to a verb as `transaction`.

    It has nothing for its holder to call: it commits when its block ends, and rolls back when its block raises.
    """


class SyncMemoryTransaction(OpenTransaction):
    """What `MemoryData.sync_transaction()` gives: the same for synchronous code, to be passed as `Blocking`."""
