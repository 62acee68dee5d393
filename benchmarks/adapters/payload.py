"""The message that every system sends: a small typed order."""

from __future__ import annotations

import json
from typing import Any, Final

from pydantic import BaseModel


class Order(BaseModel):
    """What a typed handler asks for. `total` is when it was sent or falls due: a handler then knows how late it is."""

    id: int
    customer: str
    total: float
    lines: list[int]


def order(number: int = 7, at: float = 12.5) -> dict[str, Any]:
    """The body of one message."""
    return {"id": number, "customer": "a customer of ours", "total": at, "lines": [1, 2, 3]}


BODY: Final[dict[str, Any]] = order()
ENCODED: Final = json.dumps(BODY).encode()
