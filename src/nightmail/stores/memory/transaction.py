"""A caller's own transaction over the memory store."""

from __future__ import annotations

import asyncio

from nightmail.stores.memory.changes import Changes
from nightmail.stores.memory.tables import Tables


class MemoryTransaction:
    """What `MemoryData.transaction()` gives, to be passed to a verb as `transaction`.

    It has nothing for its holder to call: it commits when its block ends, and rolls back when its block raises.
    """

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.changes = Changes(tables)
        self.owner = asyncio.current_task()
        self.open = True
