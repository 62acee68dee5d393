"""The two times that all processes of a database agree on, and who is to be woken by them."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from nightmail.stores.sqlite.moments import in_microseconds

LOOK_INTERVAL: Final = timedelta(seconds=5)
"""The longest an idle worker goes without looking."""
NOTICE_HORIZON: Final = timedelta(seconds=60)
"""How soon a message must be due for a write to wake anybody: later ones are found by looking in time."""

_HORIZON: Final = in_microseconds(NOTICE_HORIZON)
NOBODY: Final[frozenset[str]] = frozenset()


def ring_if_soon(queue: str, due_at: int, now: int) -> frozenset[str]:
    """The queue, if something in it is due within the horizon."""
    return frozenset((queue,)) if due_at - now < _HORIZON else NOBODY
