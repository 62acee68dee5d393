"""Which queues a worker may have."""

from __future__ import annotations

from collections.abc import Sequence

from nightmail.message import check_queue


def check_queues(queues: Sequence[str]) -> tuple[str, ...]:
    """The queues of one worker; raises if they are not valid."""
    if isinstance(queues, str):
        raise TypeError("queues must be a list of names, not one str")
    if not queues:
        raise ValueError("at least one queue is needed")
    for queue in queues:
        check_queue(queue)
    if len(set(queues)) != len(queues):
        raise ValueError(f"a queue is named twice: {', '.join(queues)}")
    return tuple(queues)
