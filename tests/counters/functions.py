"""How many functions run: the same on every machine and under any load, with and without coverage.

`functions` are those of ours that begin; `calls out` are those of others, built-in ones too, that ours call. Coroutines
count when they begin and not when they go on: how often one waits depends on the pieces in which an answer comes. So
a future that a driver in C makes to wait for the next piece does not count either.
Comprehensions do not count: from Python 3.12 on they are no functions. A block begins and ends when the threads of a
store have nothing left to do: so what one does after its answer always counts.
"""

from __future__ import annotations

import dis
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from types import CodeType, FrameType
from typing import Any, Final

import nightmail

_OURS: Final = str(Path(nightmail.__file__).parent)
_TESTS: Final = str(Path(__file__).parents[1])
_COMPREHENSIONS: Final = ("<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>")
_STORES_THREAD: Final = "nightmail-sqlite-"
_WAITS: Final = "create_future"
_PATIENCE: Final = 30.0


class Functions:
    """Counts on this thread, and on those of a store that begin in `on_threads_too`."""

    def __init__(self) -> None:
        self.functions: Counter[str] = Counter()
        """How often each of ours began, by module and name."""
        self.calls_out = 0
        self._counting = False
        self._at_rest: dict[int, bool] = {}
        """Of each thread: whether it waits for work."""

    @contextmanager
    def on_threads_too(self) -> Iterator[None]:
        """The threads of a store that begin in this block are counted too."""
        threading.setprofile(self._begin_thread)
        try:
            yield
        finally:
            threading.setprofile(None)

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count what runs in this block."""
        self._wait_for_threads()
        self.functions.clear()
        self.calls_out = 0
        self._counting = True
        sys.setprofile(self._profile)
        try:
            yield
        finally:
            sys.setprofile(None)
            self._wait_for_threads()
            self._counting = False

    @property
    def found(self) -> dict[str, float]:
        """What was counted."""
        return {"functions": self.functions.total(), "calls out": self.calls_out}

    def _wait_for_threads(self) -> None:
        until = time.monotonic() + _PATIENCE
        while not all(self._at_rest.values()):
            assert time.monotonic() < until
            time.sleep(0.0005)

    def _begin_thread(self, frame: FrameType, event: str, arg: Any) -> None:
        ours = threading.current_thread().name.startswith(_STORES_THREAD)
        sys.setprofile(self._profile_thread if ours else None)

    def _profile_thread(self, frame: FrameType, event: str, arg: Any) -> None:
        self._profile(frame, event, arg)
        waits = event == "c_call" and isinstance(getattr(arg, "__self__", None), SimpleQueue)
        self._at_rest[threading.get_ident()] = waits and arg.__name__ == "get"

    def _profile(self, frame: FrameType, event: str, arg: Any) -> None:
        if not self._counting:
            return
        code = frame.f_code
        if event == "c_call":
            # The last one only ends the counting.
            self.calls_out += _is_ours(code) and arg is not sys.setprofile
        elif event == "call" and frame.f_lasti <= _beginning(code):
            if not _is_ours(code):
                self.calls_out += _is_called_by_us(frame)
            elif code.co_name not in _COMPREHENSIONS:
                self.functions[f"{Path(code.co_filename).stem}.{code.co_qualname}"] += 1


@cache
def _is_ours(code: CodeType) -> bool:
    return code.co_filename.startswith(_OURS)


def _is_called_by_us(frame: FrameType) -> bool:
    caller = frame.f_back
    if caller is None or not _is_ours(caller.f_code):
        return False
    name = frame.f_code.co_name
    waits = name == _WAITS and name not in caller.f_code.co_names
    # A meter of ours may be called in the middle of it.
    return not waits and not frame.f_code.co_filename.startswith(_TESTS)


@cache
def _beginning(code: CodeType) -> int:
    """Where a function is when it has begun: behind this, it goes on."""
    return next((each.offset for each in dis.get_instructions(code) if each.opname == "RESUME"), 0)
