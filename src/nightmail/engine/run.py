"""One run of a worker, from its start until it has drained: what its parts have in common.

    Claiming ──▶ InFlight ──▶ Runners, Handling ──▶ Finished ──▶ Settling
                    ╰──────── handed back ──────────────╯

Each delivery on its way is in `leases`, whose keeper renews them on a thread of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from nightmail.engine.finished import Finished
from nightmail.engine.in_flight import InFlight
from nightmail.engine.lateness import Lateness
from nightmail.engine.leases import Leases
from nightmail.engine.next_look import Alarm
from nightmail.engine.pace import Pace
from nightmail.engine.prefetch import Prefetch
from nightmail.engine.retry_loop import RetryLoop
from nightmail.engine.settings import WorkerSettings
from nightmail.engine.shutdown import Stopping
from nightmail.message import Delivery
from nightmail.observe import Observer
from nightmail.outcome import Outcome, Release
from nightmail.store import Settlement, Source


class Run:
    """What a worker has on its way, and what is known of it."""

    def __init__(
        self,
        store: Source,
        queues: tuple[str, ...],
        settings: WorkerSettings,
        observer: Observer,
        *,
        batch: int,
        unchecked_seconds: float,
    ) -> None:
        """`unchecked_seconds` is for how long what waits counts as not paused."""
        self.store: Final = store
        self.queues: Final = queues
        self.settings: Final = settings
        self.observer: Final = observer
        self.batch: Final = batch
        """How many messages a handler takes."""
        self.in_flight: Final = InFlight(unchecked_seconds)
        self.leases: Final = Leases()
        self.finished: Final = Finished()
        self.probes: Final[set[Delivery]] = set()
        """What was given out as a probe of a paused queue and has not ended."""
        self.prefetch: Final = Prefetch(batch)
        self.lateness: Final = Lateness()
        self.pace: Final = Pace()
        self.alarm: Final = Alarm()
        """When to look for messages again."""
        self.room_grown: Final = asyncio.Event()
        """Set when there may be room for more."""
        self.stopping: Final = Stopping(settings.graceful_timeout)
        self.drained: Final = asyncio.Event()
        """Set when everything is written, or no longer waited for."""
        self.retry_loop: Final = RetryLoop(
            observer, stopping=self.stopping.asked, after_failure=self.alarm.at_once
        )

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing is in flight, and no claim under way that could change that."""
        # What a handler has acknowledged itself has no lease here any more, but may still run.
        return not len(self.leases) and self.in_flight.is_empty and self.leases.unconfirmed is None

    def hand_back(self, deliveries: Iterable[Delivery]) -> None:
        """These will not start here: another worker may have them."""
        for delivery in deliveries:
            self.end_unstarted(delivery, Release())

    def end_unstarted(self, delivery: Delivery, outcome: Outcome) -> None:
        """This one ends without its handler."""
        self.probes.discard(delivery)
        self.finished.put(Settlement(delivery, outcome))
