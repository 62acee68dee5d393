"""The handler's part of a loop written by hand: what it costs to decode, check and handle, with nothing around it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final

from benchmarks.payload import BODY, Order

BATCH: Final = 500
ENCODED: Final = json.dumps(BODY).encode()


async def handle_all(bodies: Iterable[bytes]) -> None:
    """Check each body and hand it to a handler that does nothing."""
    for body in bodies:
        await _take(Order.model_validate_json(body))


async def _take(order: Order) -> None: ...
