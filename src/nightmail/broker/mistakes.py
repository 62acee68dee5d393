"""Warnings about mistakes that would otherwise go unnoticed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from nightmail.broker.subscriber import OutboxSubscriber

NEVER_STARTED: Final = (
    "connected, but never started: its handlers got no messages. `async with broker` only connects; "
    "`await broker.start()` in it, or FastStream(broker), delivers"
)


def shared_queues(subscribers: Iterable[OutboxSubscriber]) -> Iterator[str]:
    """Warnings for queues with several subscribers: users may expect each to get every message."""
    serving: defaultdict[tuple[str, bool], list[str]] = defaultdict(list)
    for subscriber in subscribers:
        if subscriber.calls:
            for queue in subscriber.queues:
                serving[queue, subscriber.takes_dead_letters].append(subscriber.specification.call_name)
    for (queue, _), names in serving.items():
        if len(names) > 1:
            yield (
                f"queue {queue} has {len(names)} subscribers ({', '.join(sorted(names))}): each message goes to one of "
                "them. Publish to a queue for each, or give one subscriber several handlers with filters"
            )
