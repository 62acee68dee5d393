"""Threads in which the `def` handlers of one worker run, one for each of its `max_workers`.

A thread cannot be cancelled. So its caller waits until it has ended, whatever happens meanwhile, and its message stays
in flight for as long: given to another worker, it would run twice at once. A cancelled handler is asked to end, in
three steps:

    cancelled ──▶ `stopping` is set ──0.5 s──▶ HandlerTimeout is raised in the thread ──0.5 s──▶ reported as overdue

The threads are daemons: one that never ends does not keep its process from ending.
"""

from __future__ import annotations

import asyncio
import ctypes
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import copy_context
from queue import SimpleQueue
from typing import Any, Final, Generic, TypeVar

from nightmail.engine.processes import Children
from nightmail.engine.slot import HandlerSlot
from nightmail.errors import HandlerTimeout

T = TypeVar("T")

PATIENCE_SECONDS: Final = 0.5
"""How long a handler that was asked to end is left to itself, before each further step."""


START_SECONDS: Final = 60.0
"""How long a child process may take to start and to import its handler."""


class HandlerThreads:
    """At most `size` threads, started when first needed. Belongs to one event loop."""

    def __init__(
        self, size: int, name: str, *, overdue: Callable[[HandlerSlot], object], isolated: bool = False
    ) -> None:
        """`overdue` is called for what did not end although `HandlerTimeout` was raised in its thread."""
        self.isolated = isolated
        """Whether blocking handlers run in a child process, while their thread waits for it."""
        self._children = Children()
        self._size = size
        self._name = name
        self._overdue = overdue
        self._started = 0
        self._idle: list[_Thread] = []
        self._freed = asyncio.Event()
        self._closed = False

    async def run(
        self, slot: HandlerSlot, function: Callable[[], T], *, interrupt: Callable[[], object] | None = None
    ) -> T:
        """What `function` returns or raises, once its thread has finished it: cancelling only asks it to end.

        It has a copy of the caller's context variables. If it ends because it was asked to, `CancelledError` is raised.
        With `interrupt` that is how it is made to end, at once.
        """
        call = ThreadCall(function, slot, self._overdue, interrupt)
        while (thread := self._take()) is None:
            self._freed.clear()
            await self._freed.wait()
        slot.call = call
        thread.submit(call, lambda: self._free(thread))
        try:
            await call.wait()
            return call.result()
        finally:
            if call.is_over:
                slot.call = None

    async def run_in_child(
        self,
        slot: HandlerSlot,
        function: Callable[..., Any],
        *args: Any,
        prepare: Callable[[], object],
        **kwargs: Any,
    ) -> Any:
        """The same in a child process, which is killed when it is cancelled. `HandlerDied` if the child dies.

        A new child calls `prepare` first. That, and its start, do not count against the handler's time.
        """
        child = self._children.take()

        def call() -> Any:
            if not child.is_alive:
                slot.begun = time.monotonic() + START_SECONDS
                child.call(prepare)
                slot.begun = time.monotonic()
            return child.call(function, *args, **kwargs)

        try:
            return await self.run(slot, call, interrupt=child.kill)
        finally:
            if self._closed:
                child.kill()
            else:
                self._children.give_back(child)

    def close(self) -> None:
        """Nothing will run here any more; a busy thread ends after its call."""
        self._closed = True
        self._children.close()
        for thread in self._idle:
            thread.end()
        self._idle.clear()

    def _take(self) -> _Thread | None:
        if self._idle:
            return self._idle.pop()
        if self._started >= self._size:
            return None
        self._started += 1
        return _Thread(f"{self._name} {self._started}")

    def _free(self, thread: _Thread) -> None:
        if self._closed:
            thread.end()
        else:
            self._idle.append(thread)
            self._freed.set()


class ThreadCall(Generic[T]):
    """One call of a function in a thread."""

    def __init__(
        self,
        function: Callable[[], T],
        slot: HandlerSlot,
        overdue: Callable[[HandlerSlot], object],
        interrupt: Callable[[], object] | None,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.stopping = False
        """Whether the function was asked to end."""
        self.is_over = False
        """Whether the thread has finished it. Set by the thread, before it notifies the event loop."""
        self._run = slot
        self._overdue = overdue
        self._kill = interrupt
        self._function = function
        self._context = copy_context()
        self._value: T
        self._error: BaseException | None = None
        self._waiter: asyncio.Future[None] = self.loop.create_future()
        self._is_known_over = False
        self._is_reported = False
        self._cancelled: asyncio.CancelledError | None = None
        self._next_step: asyncio.TimerHandle | None = None
        self._ident = 0
        self._raising = False
        self._raised = False
        self._when_over: Callable[[], object] | None = None
        self._afterwards: list[Callable[[], object]] = []

    # ── on the event loop ──────────────────────────────────────────────────────────────────────────────────

    async def wait(self) -> None:
        """Until the thread has finished it, or its worker has left it behind."""
        try:
            while not self._is_known_over:
                try:
                    await self._waiter
                except asyncio.CancelledError as cancelled:
                    if self._run.left_behind:
                        raise
                    self._waiter = self.loop.create_future()
                    if self._cancelled is None:
                        self._cancelled = cancelled
                        self._ask_to_end()
        finally:
            if self._next_step is not None:
                self._next_step.cancel()

    def result(self) -> T:
        """What the function returned or raised; `CancelledError` if it ended because it was asked to."""
        error, self._error = self._error, None
        if error is None:
            return self._value
        if self._cancelled is not None and (self._kill is not None or _is_ours(error)):
            raise self._cancelled from error
        if not isinstance(error, HandlerTimeout | StopIteration):
            raise error
        # Neither may be raised inside a coroutine.
        raise RuntimeError(f"the handler raised {type(error).__name__} by itself") from error

    def leave_behind(self, when_over: Callable[[], object]) -> None:
        """Nothing waits for it any more. Call `when_over` when the thread has finished it, on that thread."""
        self._when_over = when_over
        if self.is_over:
            when_over()
        if not self._is_reported:
            self._report()

    def afterwards(self, work: Callable[[], object]) -> bool:
        """Have the thread do this once it has finished, before it notifies the event loop; whether it still can."""
        self._afterwards.append(work)
        # The thread sets `is_over`, then looks for work; we add work, then read `is_over`: one of the two does it.
        return not self.is_over or self._next_to_do() is None

    def _next_to_do(self) -> Callable[[], object] | None:
        try:
            return self._afterwards.pop()
        except IndexError:
            return None

    def _ask_to_end(self) -> None:
        self.stopping = True
        if self._kill is None:
            self._next_step = self.loop.call_later(PATIENCE_SECONDS, self._interrupt)
        else:
            self._kill()
            self._next_step = self.loop.call_later(PATIENCE_SECONDS, self._report)

    def _interrupt(self) -> None:
        self._raise_in_thread()
        self._next_step = self.loop.call_later(PATIENCE_SECONDS, self._report)

    def _report(self) -> None:
        self._next_step = None
        self._is_reported = True
        self._overdue(self._run)

    def _raise_in_thread(self) -> None:
        # The thread marks its begin, and later its end, before it checks whether we are raising; we do it the other way
        # round. So one of the two notices the other, and the exception never reaches another call.
        self._raising = True
        if self._ident and not self.is_over and not _stalls_when_raising():
            _raise_in(self._ident, HandlerTimeout)
        self._raised = True

    def _note_end(self) -> None:
        self._is_known_over = True
        if not self._waiter.done():
            self._waiter.set_result(None)

    # ── in the thread ──────────────────────────────────────────────────────────────────────────────────────

    def carry_out(self, free: Callable[[], object]) -> bool:
        """Call the function, and notify the event loop, which calls `free` first; whether there is still a loop."""
        self._ident = threading.get_ident()
        _here.call = self
        ended = False
        try:
            try:
                if self._raising:
                    raise HandlerTimeout
                self._value = self._context.run(self._function)
                ended = True
            except BaseException as error:  # noqa: BLE001 - whatever it is, it is for the caller
                self._error = error
                ended = True
            self._come_to_rest()
        except HandlerTimeout as late:
            # It is raised once, between any two bytecodes, so perhaps in our own code.
            if not ended:
                self._error = late
            self._come_to_rest()
        _here.call = None
        while (work := self._next_to_do()) is not None:
            with suppress(Exception):
                work()
        if self._when_over is not None:
            self._when_over()
        try:
            self.loop.call_soon_threadsafe(self._conclude, free)
        except RuntimeError:
            return False  # The event loop is closed.
        return True

    def _conclude(self, free: Callable[[], object]) -> None:
        free()
        self._note_end()

    def _come_to_rest(self) -> None:
        """From here on nothing is raised in this thread."""
        self.is_over = True
        if self._raising:
            while not self._raised:
                time.sleep(0.001)  # No lock: one that is interrupted while it is taken may stay taken.
            # It may be still pending. Clearing it would leave the interpreter checking for it forever, in every thread;
            # so it is replaced by one that is caught here.
            with suppress(HandlerTimeout):
                _raise_in(self._ident, HandlerTimeout)
                while True:
                    time.sleep(0)

    def on_loop(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """What this coroutine gives on the event loop, while the thread waits."""
        return asyncio.run_coroutine_threadsafe(_made_there(work), self.loop).result()


def _raise_in(ident: int, error: type[BaseException]) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(error))


def _stalls_when_raising() -> bool:
    """Whether this thread would block until the other one has noticed, even one that waits for a server.

    So it is with a debugger or a coverage tool on Python 3.11: a traced function cannot begin while an exception for
    another thread is pending.
    """
    return sys.version_info < (3, 12) and sys.gettrace() is not None


class _Thread:
    """A thread that makes one call after the other."""

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[tuple[ThreadCall[Any], Callable[[], object]] | None] = SimpleQueue()
        threading.Thread(target=self._serve, name=name, daemon=True).start()

    def submit(self, call: ThreadCall[Any], free: Callable[[], object]) -> None:
        self._calls.put((call, free))

    def end(self) -> None:
        self._calls.put(None)

    def _serve(self) -> None:
        while (task := self._calls.get()) is not None:
            call, free = task
            if not call.carry_out(free):
                return
            del task, call, free  # Or an idle thread would keep the last message.


class _Here(threading.local):
    call: ThreadCall[Any] | None = None


_here: Final = _Here()


def current_call() -> ThreadCall[Any] | None:
    """The call that this thread is making, if it is a worker's thread; `None` on an event loop."""
    return _here.call


async def _made_there(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    return await work()


def _is_ours(error: BaseException) -> bool:
    """Whether this came of the `HandlerTimeout` that was raised in the thread, or by `check`."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        if isinstance(link, HandlerTimeout):
            return True
        seen.add(id(link))
        link = link.__cause__ or link.__context__
    return False
