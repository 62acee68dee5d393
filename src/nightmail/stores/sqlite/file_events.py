"""Tells when a file is written to. Linux does (inotify); elsewhere, or where it refuses, there is `None` instead.

Python has no module for it, so this calls the C library. The file itself is never opened: closing it would drop every
lock that this process has on it.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Final

_MODIFIED: Final = 0x2
"""IN_MODIFY: written to, or cut off."""
_LARGEST_READ: Final = 4096


class FileEvents:
    """Calls back on the event loop after a file was written to, not more often than every so many seconds."""

    def __init__(self, descriptor: int, written: Callable[[], None], *, rest_seconds: float) -> None:
        """Raises `NotImplementedError` on an event loop that cannot wait for it."""
        self._descriptor = descriptor
        self._written = written
        self._rest_seconds = rest_seconds
        self._loop = asyncio.get_running_loop()
        self._resting: asyncio.TimerHandle | None = None
        self._loop.add_reader(descriptor, self._read)

    def close(self) -> None:
        """Call back no more."""
        if self._resting is not None:
            self._resting.cancel()
        if not self._loop.is_closed():
            self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)

    def _read(self) -> None:
        # What is left is read after the rest: it stays readable.
        with suppress(BlockingIOError):
            os.read(self._descriptor, _LARGEST_READ)
        # A transaction is many writes, and our own are among them.
        self._loop.remove_reader(self._descriptor)
        self._resting = self._loop.call_later(
            self._rest_seconds, self._loop.add_reader, self._descriptor, self._read
        )
        self._written()


def watch(path: str, written: Callable[[], None], *, rest_seconds: float) -> FileEvents | None:
    """Watch this file until closed; `None` where that cannot be had."""
    descriptor = _descriptor(path)
    if descriptor is None:
        return None
    try:
        return FileEvents(descriptor, written, rest_seconds=rest_seconds)
    except NotImplementedError:
        os.close(descriptor)
        return None


def _descriptor(path: str) -> int | None:
    if sys.platform != "linux":
        return None
    try:
        c_library = ctypes.CDLL(None)
        descriptor = int(c_library.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
    except (OSError, AttributeError):
        return None
    if descriptor < 0:
        # A user may have 128 of them, unless the system is told otherwise.
        return None
    if c_library.inotify_add_watch(descriptor, os.fsencode(path), _MODIFIED) < 0:
        os.close(descriptor)
        return None
    return descriptor
