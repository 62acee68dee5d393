"""Event loops on virtual time, several of them taking turns on one thread.

Each process of a simulation has two loops, as a real one has two threads: one for its worker, one for its keeper. The
store's server has a third kind. Nothing waits: when every loop is idle, time jumps to the next timer.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import warnings
from asyncio import events
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context
from random import Random
from typing import Any, Final, TypeVar, TypeVarTuple, cast

T = TypeVar("T")
Args = TypeVarTuple("Args")

MOST_STEPS: Final = 400_000
"""How many steps a history may take: more is a loop that never waits."""


class Spinning(Exception):
    """Something runs forever without letting time pass."""


class SimLoop(asyncio.BaseEventLoop):
    """An event loop that a `World` runs. Its clock has an offset of its own, and may run fast or slow."""

    def __init__(self, world: World, name: str, *, offset: float = 0.0, rate: float = 1.0) -> None:
        super().__init__()
        self.name = name
        self.frozen_until = 0.0
        self.moment = math.inf
        """When it has something to do, in the world's time; perhaps sooner than it really has."""
        self.is_dead = False
        self.dies_in: int | None = None
        """After how many more steps it dies, if it is to."""
        self.on_death: Callable[[], object] = lambda: None
        self._world = world
        self._offset = offset
        self._rate = rate
        # Strong references: a task that is garbage would run its `finally` blocks whenever the collector comes by.
        self._tasks: list[asyncio.Task[Any]] = []
        self.set_debug(False)
        # Of the base class, which has no types for them.
        self._ready_handles = cast("Any", self)._ready
        self._timers: list[asyncio.TimerHandle] = cast("Any", self)._scheduled

    def time(self) -> float:
        return self._offset + self._world.now * self._rate

    def create_task(self, coro: Coroutine[Any, Any, T], **options: Any) -> asyncio.Task[T]:  # type: ignore[override]  # its generator form is of the past
        task = super().create_task(coro, **options)
        self._tasks.append(task)
        return task

    def start(self, coro: Coroutine[Any, Any, object]) -> None:
        """Run this in a task that nothing waits for."""
        self._tasks.append(super().create_task(coro))

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self.is_dead:
            self._world.complaints.append(
                f"{self.name}: {context.get('message')} {context.get('exception')!r}"
            )

    def call_soon(
        self, callback: Callable[[*Args], object], *args: *Args, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready_handles.append(handle)
        self.moment = min(self.moment, max(self._world.now, self.frozen_until))
        return handle

    # There is one thread.
    call_soon_threadsafe = call_soon

    def call_at(
        self, when: float, callback: Callable[[*Args], object], *args: *Args, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, timer)
        self.moment = min(self.moment, self._moment_of(timer))
        return timer

    def freeze(self, until: float) -> None:
        """Nothing runs here before that moment of the world: its process is stopped, or its thread blocked."""
        self.frozen_until = until
        self.moment = max(self.moment, until)

    def turn(self) -> None:
        """Run what is ready now, as one iteration of an event loop does."""
        ready, timers, world = self._ready_handles, self._timers, self._world
        now = self.time()
        while timers and timers[0].when() <= now:
            ready.append(heapq.heappop(timers))
        asyncio._set_running_loop(self)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            world.steps += 1
            handle._run()
            if self.dies_in is not None:
                self.dies_in -= 1
                if self.dies_in <= 0:
                    self.on_death()
            if self.is_dead or self.frozen_until > world.now:
                break
        self._look_ahead()

    def _moment_of(self, timer: asyncio.TimerHandle) -> float:
        # A nanosecond later: rounding must not bring it a little early, or it might be set again for the same moment.
        return max((timer.when() - self._offset) / self._rate + 1e-9, self.frozen_until)

    def _look_ahead(self) -> None:
        timers = self._timers
        while timers and timers[0].cancelled():
            heapq.heappop(timers)
        if self._ready_handles:
            self.moment = max(self._world.now, self.frozen_until)
        elif timers:
            self.moment = self._moment_of(timers[0])
        else:
            self.moment = math.inf

    def die(self) -> None:
        """Nothing runs here any more; tasks stay as they are."""
        self.is_dead = True
        self._ready_handles.clear()
        self._timers.clear()

    def bury(self) -> None:
        """Free what is left, when the history is over and nothing it does counts any more."""
        self.die()
        self.close()
        asyncio._set_running_loop(self)
        try:
            for task in self._tasks:
                if not task.done():
                    cast("Any", task)._log_destroy_pending = False
                    # Code that awaits in a `finally` block cannot: it is told so by a RuntimeError.
                    with suppress(BaseException):
                        cast("Any", task.get_coro()).close()
        finally:
            asyncio._set_running_loop(None)
            self._tasks.clear()
            self._ready_handles.clear()
            self._timers.clear()


class World:
    """Virtual time and all loops in it. Which of several loops goes first, chance decides."""

    def __init__(self, chance: Random) -> None:
        self.now = 0.0
        self.steps = 0
        self.complaints: list[str] = []
        """What event loops would have logged: a task's exception that was never retrieved, for instance."""
        self._chance = chance
        self._loops: list[SimLoop] = []
        self._buried: list[SimLoop] = []

    @property
    def micros(self) -> int:
        """The store's clock, in microseconds from the beginning."""
        return round(self.now * 1_000_000)

    def loop(self, name: str, *, offset: float = 0.0, rate: float = 1.0) -> SimLoop:
        """A new event loop in this world."""
        loop = SimLoop(self, name, offset=offset, rate=rate)
        self._loops.append(loop)
        return loop

    def remove(self, loop: SimLoop) -> None:
        """This loop has died."""
        loop.die()
        if loop in self._loops:
            self._loops.remove(loop)
            self._buried.append(loop)

    def run(self, until: float, over: Callable[[], bool]) -> None:
        """Let time pass until then, or until it is `over`."""
        try:
            self._run(until, over)
        finally:
            asyncio._set_running_loop(None)

    def _run(self, until: float, over: Callable[[], bool]) -> None:
        while not over():
            # How many ties there are decides how often chance is asked: the same in each run of a seed.
            first: list[SimLoop] = []
            moment = until
            for loop in self._loops:
                if loop.moment < moment:
                    first = [loop]
                    moment = loop.moment
                elif loop.moment == moment:
                    first.append(loop)
            self.now = max(self.now, moment)
            if not first or self.now > until:
                return
            (first[0] if len(first) == 1 else self._chance.choice(first)).turn()
            if self.steps > MOST_STEPS:
                raise Spinning(f"{self.steps} steps by second {self.now:.1f}")

    def end(self) -> None:
        """Free everything."""
        with warnings.catch_warnings():
            # Code that is closed in the middle of things cannot await what it has just called.
            warnings.simplefilter("ignore", RuntimeWarning)
            for loop in (*self._loops, *self._buried):
                loop.bury()


def running_loop() -> SimLoop:
    """The loop of the code now running."""
    loop = events._get_running_loop()
    assert isinstance(loop, SimLoop)
    return loop
