"""What a runner is handling: one delivery, or one batch of them, after the other, in one task."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from nightmail.engine.leases import Leases
from nightmail.engine.result import Result
from nightmail.message import Delivery

if TYPE_CHECKING:
    from nightmail.engine.threads import HandlerThreads, ThreadCall

_TURNS: Final = 5


@dataclass(slots=True, eq=False)
class HandlerSlot:
    """A runner's handler slot. Lives as long as its task; its contents change with every message."""

    task: asyncio.Task[Any]
    leases: Leases
    """The leases of its worker."""
    results: dict[Delivery, Result] = field(default_factory=dict)
    """What it runs now, one delivery or a batch, each with its result."""
    begun: float = 0.0
    """When its handler started, by the monotonic clock."""
    overdue: bool = False
    """Cancelled for running too long."""
    stopped: dict[Delivery, str] = field(default_factory=dict)
    """What of it an operator wants stopped, and who: cancelled for that."""
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    """Whether its worker is stopping."""
    threads: HandlerThreads | None = None
    """Where its worker runs blocking code."""
    call: ThreadCall[Any] | None = None
    """The call that runs there now, if any."""
    left_behind: bool = False
    """Its worker has stopped, and its thread still runs: its messages may be neither settled nor handed back."""

    async def was_interrupted(self) -> bool:
        """Whether we cancelled its handler: it timed out, was stopped, or its worker is stopping."""
        if self.overdue or self.stopped:
            return True
        if not self.task.cancelling():
            return False
        # When `asyncio.run` ends it cancels all tasks at once: this one may be cancelled before its worker is.
        for _ in range(_TURNS):
            if self.stopping.is_set():
                break
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0)
        return self.stopping.is_set()

    def stop(self, delivery: Delivery, by: str) -> None:
        """End its handler, because `by` wants this message stopped."""
        if not self.stopped and not self.overdue:
            self.task.cancel()
        self.stopped[delivery] = by

    def acked_in_transaction(self, deliveries: Iterable[Delivery], *, locked: bool) -> None:
        """These are acknowledged in the handler's transaction, which keeps them `locked`, or does not."""
        acked = list(deliveries)
        for delivery in acked:
            if (result := self.results.get(delivery)) is not None:
                result.acked_in_transaction = True
        if locked:
            # A renewal would meet those locks, or make the commit fail where a row may not have changed since.
            self.leases.drop(acked)


def this_task() -> asyncio.Task[Any]:
    """The task that runs this code."""
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - a coroutine runs in a task
    return task
