"""Long-lived tasks in which handlers run: a task for each message would cost twice what the engine does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, TypeAlias

from nightmail.attempt import this_task
from nightmail.hand import Hand
from nightmail.keeping import Leases
from nightmail.overtime import Overtime
from nightmail.run import Run
from nightmail.settings import WorkerSettings
from nightmail.threads import HandlerThreads

TURN_SECONDS: Final = 0.003
"""How long runners go on before they let others have their turn: handlers that await nothing never would."""
STEPS: Final = 4
"""How many turns others get then: a claim needs several until it is sent, and again until its answer is there."""

Handle: TypeAlias = Callable[[Hand, Run, float], Awaitable[float]]
"""Runs the next message or batch in hand, which begins at that moment; when it has ended."""


async def _absorb_cancellation(task: asyncio.Task[None]) -> None:
    """A handler that cancelled its own task has ended; the next one is not cancelled."""
    while task.cancelling():
        task.uncancel()
    # One that was asked for and not yet thrown would still hit the next handler at its first await.
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(0)


class Runners:
    """At most `max_workers` at a time, each taking one message after the other while any waits."""

    def __init__(
        self,
        hand: Hand,
        leases: Leases,
        handle: Handle,
        settings: WorkerSettings,
        *,
        batch: int,
        stopping: asyncio.Event,
        threads: HandlerThreads | None = None,
    ) -> None:
        self._hand = hand
        self._leases = leases
        self._handle = handle
        self._batch = batch
        self._most = settings.max_workers
        self._stopping = stopping
        self._threads = threads
        self._overtime = Overtime(settings.handler_timeout.total_seconds(), hand.runs)
        self._tasks: set[asyncio.Task[None]] = set()
        self._resting = False

    def start(self) -> None:
        """Have a runner for each message or batch that waits, up to the limit."""
        for _ in range(min(-(-self._hand.waiting // self._batch), self._most - len(self._tasks))):
            runner = asyncio.create_task(self._run())
            self._tasks.add(runner)
            runner.add_done_callback(self._ended)
        self._overtime.watch()

    def close(self) -> None:
        """Nothing will run any more."""
        self._overtime.close()
        if self._threads is not None:
            self._threads.close()

    async def _run(self) -> None:
        if self._resting:
            self._tasks.discard(this_task())
            return
        hand, stopping = self._hand, self._stopping
        run = Run(this_task(), self._leases, stopping=stopping, threads=self._threads)
        hand.runs.append(run)
        now = time.monotonic()
        turn_over = now + TURN_SECONDS
        try:
            # A stopping worker starts nothing: what a last claim brings goes back with the rest.
            while hand.waiting and not stopping.is_set():
                now = await self._handle(hand, run, now)
                if run.task.cancelling() and not stopping.is_set():
                    await _absorb_cancellation(run.task)
                if now >= turn_over:
                    if self._resting and now - run.begun < TURN_SECONDS:
                        return
                    await self._rest()
                    now = time.monotonic()
                    turn_over = now + TURN_SECONDS
        finally:
            hand.runs.remove(run)
            # Here, and not when its callback is called: what comes in between would wait for a runner that is gone.
            self._tasks.discard(run.task)

    def _ended(self, runner: asyncio.Task[None]) -> None:
        self._tasks.discard(runner)  # One that was cancelled before its first step is still there.
        if not self._tasks and self._hand.waiting and not self._stopping.is_set():
            self.start()

    async def _rest(self) -> None:
        """Let others have their turn.

        Of runners whose handlers await nothing one does it for all, and the others leave: their turns would add up,
        and everything else on the event loop would wait for the sum.
        """
        self._resting = True
        try:
            for _ in range(STEPS):
                await asyncio.sleep(0)
        finally:
            self._resting = False
        # In case that the next handler does await something.
        asyncio.get_running_loop().call_soon(self._reinforce)

    def _reinforce(self) -> None:
        """Start further runners if all there are wait inside of handlers."""
        if self._hand.handlers == len(self._tasks) and not self._stopping.is_set():
            self.start()
