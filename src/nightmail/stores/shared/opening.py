"""What a store opens belongs to one process and one event loop.

A forked child has copies of its parent's connections: whatever it sends over them mixes with what the parent sends,
and closing or garbage-collecting them may end the parent's. So the child keeps them and never touches them.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from nightmail.errors import NotOpen, WrongEventLoop, WrongProcess

Runtime = TypeVar("Runtime")

_inherited: Final[list[object]] = []
"""What the parent process opened. Never closed here, not even by the garbage collector."""


class Origin:
    """The process in which something was created."""

    def __init__(self) -> None:
        self._process = os.getpid()

    @property
    def is_here(self) -> bool:
        """Whether it was created in this process, and not in the one this was forked from."""
        return self._process == os.getpid()

    def refuse_elsewhere(self) -> None:
        """Raise `WrongProcess` in a forked child."""
        if not self.is_here:
            raise WrongProcess


class Opening(Generic[Runtime]):
    """What exists while a store is open, and the process and event loop that may use it."""

    def __init__(self, make: Callable[[], Runtime]) -> None:
        """`make` opens; it is called on the event loop that will use its result, and does not block."""
        self._make = make
        self._opened: Runtime | None = None
        self._origin = Origin()
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def now(self) -> Runtime | None:
        """What is open, whichever process or event loop opened it."""
        return self._opened

    def open(self) -> None:
        """Open, unless already open here. What a parent process or a closed event loop opened is left alone."""
        if self._opened is not None and self._origin.is_here and not self._loop_has_ended():
            self._refuse_on_another_loop()
            return
        self._leave()
        self._opened = self._make()
        self._origin = Origin()
        self._loop = _running_loop()

    def here(self) -> Runtime:
        """What is open, for use in this process and on this event loop."""
        if self._opened is None:
            raise NotOpen
        self._origin.refuse_elsewhere()
        if self._loop is not None and self._loop is _running_loop():
            return self._opened
        if self._loop_has_ended():
            # As after `asyncio.run`: the connections ended with their event loop.
            self.open()
        self._refuse_on_another_loop()
        return self._opened

    def end(self) -> Runtime | None:
        """What to close, returned once: nothing from a parent process or a closed event loop."""
        if self._opened is not None and self._origin.is_here and not self._loop_has_ended():
            self._refuse_on_another_loop()
            opened, self._opened = self._opened, None
            return opened
        self._leave()
        return None

    def _leave(self) -> None:
        if self._opened is not None and not self._origin.is_here:
            _inherited.append(self._opened)
        self._opened = None

    def _loop_has_ended(self) -> bool:
        return self._loop is not None and self._loop.is_closed()

    def _refuse_on_another_loop(self) -> None:
        running = _running_loop()
        if running is not None and self._loop is not None and running is not self._loop:
            raise WrongEventLoop


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
