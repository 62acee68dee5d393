"""What a claim asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final
from uuid import UUID

from nightmail.store import Claimed

NOTHING: Final = Claimed((), None)
"""What a claim gets that asks for nothing."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a claim asks for: each queue once, and at least one message."""

    queues: tuple[str, ...]
    limit: int
    lease: timedelta
    token: UUID
    max_bytes: int


def wanted_of(
    queues: Sequence[str], *, limit: int, lease: timedelta, token: UUID, max_bytes: int
) -> Wanted | None:
    """What the arguments of `Store.claim` ask for; `None`: nothing."""
    if not queues or limit <= 0:
        return None
    return Wanted(tuple(dict.fromkeys(queues)), limit, lease, token, max_bytes)
