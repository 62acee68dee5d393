"""What the pauses of its queues mean for a claim."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from nightmail.stores.sql.controls import WHOLE_QUEUE


@dataclass(frozen=True, slots=True)
class Paused:
    """What is paused at the moment of a claim: mostly nothing."""

    queues: frozenset[str] = frozenset()
    """Nothing is claimed of these."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """The paused ordering keys of each queue that has any, as JSON."""
    to_probe: tuple[str, ...] = ()
    """Queues of which one message may be taken: an automatic pause is past its `until`, and nothing else holds them."""
    left_over: bool = False
    """Whether there are pauses that are over."""
    next_end: int | None = None
    """When the next of these pauses ends or lets a probe through."""

    @classmethod
    def at(cls, now: int, pauses: Iterable[tuple[str, str, int, int | None]], queues: Sequence[str]) -> Self:
        """By the pauses of these queues: the queue, the ordering key, whether it is automatic, and its end."""
        held: set[str] = set()
        probed: set[str] = set()
        keys: dict[str, list[str]] = {}
        ends: list[int] = []
        left_over = False
        for queue, key, automatic, until in pauses:
            if until is None or until > now:
                if until is not None:
                    ends.append(until)
                if key == WHOLE_QUEUE:
                    held.add(queue)
                else:
                    keys.setdefault(queue, []).append(key)
            elif automatic:
                probed.add(queue)
            else:
                left_over = True
        return cls(
            frozenset(held),
            {queue: json.dumps(listed) for queue, listed in keys.items()},
            tuple(queue for queue in queues if queue in probed - held),
            left_over,
            min(ends, default=None),
        )

    def open(self, queues: Sequence[str]) -> Sequence[str]:
        """Those of these queues of which something may be taken."""
        return [queue for queue in queues if queue not in self.queues] if self.queues else queues

    def next_look(self, moment: int | None) -> int | None:
        """When it is worth looking again, if that moment is the next at which something becomes available."""
        return min((each for each in (moment, self.next_end) if each is not None), default=None)


NOTHING_PAUSED = Paused()
