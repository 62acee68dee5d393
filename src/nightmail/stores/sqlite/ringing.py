"""Which writes wake workers."""

from __future__ import annotations

import json
from typing import Final

from nightmail.stores.shared.meta import NOTICE_HORIZON
from nightmail.stores.sql.verbs import Verb
from nightmail.stores.sqlite.queries import Queries
from nightmail.stores.sqlite.times import in_microseconds

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
