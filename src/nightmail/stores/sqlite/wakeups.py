"""Which writes wake workers, and the two intervals that all processes of a database agree on."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Final

from nightmail.stores.sql.verbs import Verb
from nightmail.stores.sqlite.queries import Queries
from nightmail.stores.sqlite.times import in_microseconds

LOOK_INTERVAL: Final = timedelta(seconds=5)
"""The longest an idle worker goes without looking."""
NOTICE_HORIZON: Final = timedelta(seconds=60)
"""A write wakes workers only if the message is due within this time: later ones are found by polling."""

_HORIZON: Final = in_microseconds(NOTICE_HORIZON)
NO_QUEUES: Final[frozenset[str]] = frozenset()


def if_soon(queue: str, due_at: int, now: int) -> frozenset[str]:
    """The queue, if something in it is due within the horizon."""
    return frozenset((queue,)) if due_at - now < _HORIZON else NO_QUEUES


def ring(sql: Queries, queues: frozenset[str]) -> Verb[frozenset[str]]:
    """Tell listeners in other processes that these queues have something.

    They notice a new message by its id, so a publish does not need this.
    """
    if queues:
        yield sql("ring", queues=json.dumps(sorted(queues)))
    return queues
