"""A body that other software wrote, and that is larger than what the store was told to read."""

from __future__ import annotations

import tracemalloc
from typing import Final

from nightmail.outcome import Reason
from nightmail.records import DeadFilter
from nightmail.store import FullStore
from nightmail.testing.conformance.build import bodies, claim_all

BYTES: Final = 25_000_000
HUGE: Final = f"update nightmail_messages set body = repeat('x', {BYTES}){{}} where octet_length(body) = 4"
"""Makes the message `huge` so. The server makes the bytes; between the braces stands what a store casts them to."""


async def check_that_it_is_never_in_memory(store: FullStore) -> None:
    """It becomes a dead letter, and its neighbour is claimed: `small`."""
    # What a first claim leaves in memory is no concern here.
    assert bodies(await claim_all(store, "none")) == []
    tracemalloc.start()
    try:
        claimed = await claim_all(store)
        _, while_claiming = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        (letter,) = await store.dead(DeadFilter())
        _, while_reading = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert bodies(claimed) == [b"small"]
    assert (letter.reason, len(letter.body)) == (Reason.TOO_LARGE, BYTES)
    assert while_claiming < 2_000_000
    # Memory that the driver takes is seen: here it is meant to be read.
    assert while_reading > BYTES
