"""All that is stored: the queues with their messages, the dead letters, the history, and who is to be woken."""

from __future__ import annotations

from itertools import count
from weakref import WeakSet

from nightmail.bell import BellTower
from nightmail.records import DeadLetter
from nightmail.stores.memory.queue import Queue
from nightmail.stores.memory.rows import Delivered


class Tables:
    """What a database would hold. Nothing here knows of transactions."""

    def __init__(self) -> None:
        self.queues: dict[str, Queue] = {}
        self.dead: dict[int, DeadLetter] = {}
        self.delivered: list[Delivered] = []
        self.message_ids = count(1)
        self.letter_ids = count(1)
        # Weak: a store that nobody has any more listens to nothing, closed or not.
        self.towers: WeakSet[BellTower] = WeakSet()

    def queue(self, name: str) -> Queue:
        """The queue of this name, new if there is none."""
        queue = self.queues.get(name)
        if queue is None:
            queue = self.queues[name] = Queue(name)
        return queue

    def ring(self, queue: str) -> None:
        """Wake whoever listens to this queue, in every store over these tables."""
        for tower in self.towers:
            tower.ring(queue)
