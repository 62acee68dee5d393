"""Messages in this process's memory: for tests, for trying things out, and for what may die with the process."""

from nightmail.stores.memory.data import MemoryData
from nightmail.stores.memory.rows import Delivered
from nightmail.stores.memory.store import MemoryStore
from nightmail.stores.memory.transaction import MemoryTransaction, SyncMemoryTransaction

__all__ = ["Delivered", "MemoryData", "MemoryStore", "MemoryTransaction", "SyncMemoryTransaction"]
