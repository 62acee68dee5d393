"""Which old tables are meant, what they contain, and what has moved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class OldTables:
    """Where they are: `table`, or `schema.table`."""

    messages: str = "outbox"
    dead: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueCensus:
    """What a queue of the old table contains."""

    waiting: int
    """Not held: they would be moved."""
    taken: int
    """How many of these have a timer id that is taken here: they would stay."""
    leased: int
    """Held by an old worker."""


@dataclass(frozen=True, slots=True)
class Census:
    """What the old tables contain."""

    queues: Mapping[str, QueueCensus]
    dead: int

    @property
    def rows(self) -> int:
        """All of them, held or not."""
        return sum(queue.waiting + queue.leased for queue in self.queues.values()) + self.dead


@dataclass(frozen=True, slots=True)
class Stuck:
    """A row that stays where it is until an operator decides about it."""

    id: int
    queue: str
    why: str


@dataclass(frozen=True, slots=True)
class Moved:
    """What has moved so far, and what was found that cannot."""

    messages: int = 0
    dead: int = 0
    stuck: tuple[Stuck, ...] = ()

    def __add__(self, other: Moved) -> Moved:
        return Moved(self.messages + other.messages, self.dead + other.dead, self.stuck + other.stuck)
