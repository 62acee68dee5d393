"""What a message costs without a database: our own code, and nothing else."""

from __future__ import annotations

from nightmail import OutboxBroker
from nightmail.stores.memory import MemoryStore
from nightmail.testing.clock import ManualClock
from tests.counters.baseline import compare
from tests.counters.deliveries import delivered
from tests.counters.functions import Functions
from tests.counters.verbs import Place, costs


async def test_what_a_message_costs_in_memory_is_what_is_written_down() -> None:
    functions = Functions()
    async with OutboxBroker(MemoryStore(clock=ManualClock()), logger=None) as broker:
        found = await costs(Place(broker), functions)
    found |= await delivered(functions)

    compare("memory", "none", found)
