"""The message that every scenario sends: a small typed order."""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel


class Order(BaseModel):
    """What the handler asks for."""

    id: int
    customer: str
    total: float
    lines: list[int]


BODY: Final[dict[str, Any]] = {"id": 7, "customer": "a customer of ours", "total": 12.5, "lines": [1, 2, 3]}
