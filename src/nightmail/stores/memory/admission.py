"""What a claim may take: bytes up to its budget, and no body that is too large."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nightmail.limits import ByteBudget
from nightmail.stores.memory.rows import Row


@dataclass(frozen=True, slots=True)
class Admission:
    """The limits of one claim."""

    budget: ByteBudget
    max_body_bytes: int
    bury: Callable[[Row], None]

    def bury_if_too_large(self, row: Row) -> bool:
        """Give this row up if its body is too large; returns whether it did."""
        if len(row.body) <= self.max_body_bytes:
            return False
        self.bury(row)
        return True
