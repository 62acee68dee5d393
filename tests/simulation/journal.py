"""The journal of a history: what happened, in order. The checker reads along."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from tests.simulation.events import Event
from tests.simulation.loop import World


class Journal:
    """Writes events down and tells the checker of each at once."""

    def __init__(self, world: World, check: Callable[[Event], object]) -> None:
        self.events: list[Event] = []
        self.faults: Counter[str] = Counter()
        """How often each kind of fault was injected."""
        self.is_calm = False
        self._world = world
        self._check = check

    @property
    def at(self) -> int:
        """The store's clock, in microseconds."""
        return self._world.micros

    @property
    def now(self) -> float:
        """The same in seconds."""
        return self._world.now

    def note(self, event: Event) -> None:
        """This happened."""
        self.events.append(event)
        self._check(event)

    def text(self) -> str:
        """All of it, one line each."""
        return "\n".join(map(str, self.events))
