"""Who is to be woken by what, and the two times that all processes of a database agree on."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Final

from nightmail.stores.sqlite.moments import in_microseconds
from nightmail.stores.sqlite.steps import Queries, Steps

LOOK_INTERVAL: Final = timedelta(seconds=5)
"""The longest an idle worker goes without looking."""
NOTICE_HORIZON: Final = timedelta(seconds=60)
"""How soon a message must be due for a write to wake anybody: later ones are found by looking in time."""

_HORIZON: Final = in_microseconds(NOTICE_HORIZON)
NOBODY: Final[frozenset[str]] = frozenset()


def if_soon(queue: str, due_at: int, now: int) -> frozenset[str]:
    """The queue, if something in it is due within the horizon."""
    return frozenset((queue,)) if due_at - now < _HORIZON else NOBODY


def ring(sql: Queries, queues: frozenset[str]) -> Steps[frozenset[str]]:
    """Note for listeners in other processes that these queues have something.

    They see a new message by its id, so a publish does without this.
    """
    if queues:
        yield sql("ring", queues=json.dumps(sorted(queues)))
    return queues
