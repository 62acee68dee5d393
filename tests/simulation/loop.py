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
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context, copy_context
from random import Random
from typing import Any, Final, TypeVar, TypeVarTuple, cast

T = TypeVar("T")
Args = TypeVarTuple("Args")

MOST_STEPS: Final = 400_000
"""How many steps a history may take: more is a loop that never waits."""


class Spinning(Exception):
    """Something runs forever without letting time pass."""


class Step:
    """A call to be made. What `asyncio.Handle` does, without what a simulation never asks of it: half the time."""

    __slots__ = ("args", "callback", "context", "is_cancelled")

    def __init__(
        self, callback: Callable[..., object], args: tuple[Any, ...], context: Context | None
    ) -> None:
        self.callback = callback
        self.args = args
        self.context = copy_context() if context is None else context
        self.is_cancelled = False

    def cancel(self) -> None:
        """Do not make it."""
        self.is_cancelled = True
        self.callback, self.args = _nothing, ()

    def cancelled(self) -> bool:
        """Whether it will not be made."""
        return self.is_cancelled


class Timer(Step):
    """The same, at a moment of its loop's clock."""

    __slots__ = ("moment",)

    def __init__(
        self, moment: float, callback: Callable[..., object], args: tuple[Any, ...], context: Context | None
    ) -> None:
        super().__init__(callback, args, context)
        self.moment = moment

    def when(self) -> float:
        """That moment."""
        return self.moment

    def __lt__(self, other: Timer) -> bool:
        return self.moment < other.moment


def _nothing() -> None:
    """What is called instead of what was cancelled."""


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
        self._steps: deque[Step] = deque()
        self._timers: list[Timer] = []

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

    def call_soon(  # type: ignore[override]  # A step is all that is asked of a handle here.
        self, callback: Callable[[*Args], object], *args: *Args, context: Context | None = None
    ) -> Step:
        step = Step(callback, args, context)
        self._steps.append(step)
        world_now, frozen = self._world.now, self.frozen_until
        moment = frozen if frozen > world_now else world_now
        if moment < self.moment:
            self.moment = moment
        return step

    # There is one thread.
    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[[*Args], object], *args: *Args, context: Context | None = None
    ) -> Timer:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[[*Args], object], *args: *Args, context: Context | None = None
    ) -> Timer:
        timer = Timer(when, callback, args, context)
        heapq.heappush(self._timers, timer)
        moment = self._moment_of(timer)
        if moment < self.moment:
            self.moment = moment
        return timer

    def freeze(self, until: float) -> None:
        """Nothing runs here before that moment of the world: its process is stopped, or its thread blocked."""
        self.frozen_until = until
        self.moment = max(self.moment, until)

    def turn(self) -> None:
        """Run what is ready now, as one iteration of an event loop does."""
        steps, timers, world = self._steps, self._timers, self._world
        now = self.time()
        while timers and timers[0].moment <= now:
            steps.append(heapq.heappop(timers))
        asyncio._set_running_loop(self)
        for _ in range(len(steps)):
            step = steps.popleft()
            if step.is_cancelled:
                continue
            world.steps += 1
            try:
                step.context.run(step.callback, *step.args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:  # noqa: BLE001 - as an event loop does
                self.call_exception_handler({"message": f"in {step.callback!r}:", "exception": error})
            if self.dies_in is not None:
                self.dies_in -= 1
                if self.dies_in <= 0:
                    self.on_death()
            if self.is_dead or self.frozen_until > world.now:
                break
        self._look_ahead()

    def _moment_of(self, timer: Timer) -> float:
        # A nanosecond later: rounding must not bring it a little early, or it might be set again for the same moment.
        moment = (timer.moment - self._offset) / self._rate + 1e-9
        return moment if moment > self.frozen_until else self.frozen_until

    def _look_ahead(self) -> None:
        timers = self._timers
        while timers and timers[0].is_cancelled:
            heapq.heappop(timers)
        if self._steps:
            self.moment = max(self._world.now, self.frozen_until)
        elif timers:
            self.moment = self._moment_of(timers[0])
        else:
            self.moment = math.inf

    def die(self) -> None:
        """Nothing runs here any more; tasks stay as they are."""
        self.is_dead = True
        self._steps.clear()
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
            self._steps.clear()
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
