"""Long-lived tasks in which handlers run: a task for each message would cost twice as much as the engine itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, TypeAlias

from nightmail.engine.handler_timeouts import HandlerTimeouts
from nightmail.engine.in_flight import InFlight
from nightmail.engine.leases import Leases
from nightmail.engine.retry_loop import at_once
from nightmail.engine.settings import WorkerSettings
from nightmail.engine.slot import HandlerSlot, this_task
from nightmail.engine.threads import HandlerThreads

TURN_SECONDS: Final = 0.003
"""How long runners go on before they yield the event loop: handlers that await nothing never would."""
STEPS: Final = 4
"""How many turns others get then: a claim needs several to be sent, and several more to receive its answer."""

Handle: TypeAlias = Callable[[HandlerSlot, float], Awaitable[float]]
"""Runs the message or batch in this slot, started at the given moment; the moment it ended."""


async def _absorb_cancellation(task: asyncio.Task[None]) -> None:
    """A handler that cancelled its own task has ended; the next one is not cancelled."""
    while task.cancelling():
        task.uncancel()
    # A cancellation requested and not yet raised would still hit the next handler at its first await.
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(0)


class Runners:
    """At most `max_workers` at a time, each taking one message after the other while any waits."""

    def __init__(
        self,
        in_flight: InFlight,
        leases: Leases,
        handle: Handle,
        settings: WorkerSettings,
        *,
        batch: int,
        stopping: asyncio.Event,
        check: Callable[[], Awaitable[None]] = at_once,
        threads: HandlerThreads | None = None,
    ) -> None:
        self._in_flight = in_flight
        self._leases = leases
        self._handle = handle
        self._batch = batch
        self._most = settings.max_workers
        self._stopping = stopping
        self._check = check
        self._threads = threads
        self._timeouts = HandlerTimeouts(settings.handler_timeout.total_seconds(), in_flight.slots)
        self._tasks: set[asyncio.Task[None]] = set()
        self._resting = False

    def start(self) -> None:
        """Have a runner for each message or batch that waits, up to the limit."""
        for _ in range(min(-(-self._in_flight.waiting // self._batch), self._most - len(self._tasks))):
            runner = asyncio.create_task(self._run())
            self._tasks.add(runner)
            runner.add_done_callback(self._ended)
        self._timeouts.watch()

    def close(self) -> None:
        """Nothing will run any more."""
        self._timeouts.close()
        if self._threads is not None:
            self._threads.close()

    async def _run(self) -> None:
        if self._resting:
            self._tasks.discard(this_task())
            return
        in_flight, stopping = self._in_flight, self._stopping
        slot = HandlerSlot(this_task(), self._leases, stopping=stopping, threads=self._threads)
        in_flight.slots.append(slot)
        now = time.monotonic()
        turn_over = now + TURN_SECONDS
        try:
            # A stopping worker starts nothing: what a last claim brings goes back with the rest.
            while in_flight.waiting and not stopping.is_set():
                if now >= in_flight.stale_from:
                    await self._check()
                    now = time.monotonic()
                    continue
                in_flight.start(slot, now, self._batch)
                now = await self._handle(slot, now)
                if slot.task.cancelling() and not stopping.is_set():
                    await _absorb_cancellation(slot.task)
                if now >= turn_over:
                    if self._resting and now - slot.begun < TURN_SECONDS:
                        return
                    await self._rest()
                    now = time.monotonic()
                    turn_over = now + TURN_SECONDS
        finally:
            in_flight.slots.remove(slot)
            # Here, not in its done callback: what comes in between would wait for a runner that is gone.
            self._tasks.discard(slot.task)

    def _ended(self, runner: asyncio.Task[None]) -> None:
        self._tasks.discard(runner)  # Still there if cancelled before its first step.
        if not self._tasks and self._in_flight.waiting and not self._stopping.is_set():
            self.start()

    async def _rest(self) -> None:
        """Yield the event loop to others.

        Among runners whose handlers await nothing, one yields for all and the others end: their turns would add up,
        and everything else on the event loop would wait for the sum.
        """
        self._resting = True
        try:
            for _ in range(STEPS):
                await asyncio.sleep(0)
        finally:
            self._resting = False
        # In case the next handler does await something.
        asyncio.get_running_loop().call_soon(self._reinforce)

    def _reinforce(self) -> None:
        """Start more runners if all existing ones wait inside handlers."""
        if self._in_flight.handlers == len(self._tasks) and not self._stopping.is_set():
            self.start()
