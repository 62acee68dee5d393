"""All that is stored: the queues with their messages, the dead letters, the history, and the listeners."""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Iterator
from itertools import count
from weakref import WeakKeyDictionary

from nightmail.bell import Bells
from nightmail.stores.memory.controls import Controls
from nightmail.stores.memory.fair_lock import running_loop
from nightmail.stores.memory.letters import Letter
from nightmail.stores.memory.queue import Queue
from nightmail.stores.memory.rows import Delivered


class Tables:
    """What a database would hold. Nothing here knows about transactions."""

    def __init__(self) -> None:
        self.queues: dict[str, Queue] = {}
        self.delivered: list[Delivered] = []
        self.controls = Controls()
        self.message_ids = count(1)
        self.letter_ids = count(1)
        # Weak: a store without references no longer listens, closed or not.
        self.listeners: WeakKeyDictionary[Bells, AbstractEventLoop | None] = WeakKeyDictionary()
        """What to wake, each with the event loop it listens on."""

    def queue(self, name: str) -> Queue:
        """The queue of this name, new if there is none."""
        queue = self.queues.get(name)
        if queue is None:
            queue = self.queues[name] = Queue(name)
        return queue

    def letters(self) -> Iterator[Letter]:
        """The dead letters of every queue."""
        return (letter for queue in self.queues.values() for letter in queue.letters.by_id.values())

    def ring(self, queue: str) -> None:
        """Wake the listeners of this queue, in every store over these tables."""
        here = running_loop()
        for bells, loop in list(self.listeners.items()):
            if loop is None or loop is here:
                bells.ring(queue)
            elif not loop.is_closed():
                # A bell belongs to its event loop: rung from another thread, it would not wake its waiter.
                loop.call_soon_threadsafe(bells.ring, queue)
