"""Follows one message through our code with `sys.setprofile`.

A function of ours *carries* the message if it is on the stack when a statement or script is sent or the user's handler
is called; if it is a verb that asks for that; or if it returns a message, a delivery, an outcome or what is written for
it. It passes the message on, or decides its fate. A task continues the stack that created it. Everything else (checks,
encoding and decoding, properties, observers) only helps.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import CO_GENERATOR
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import greenlet  # type: ignore[import-untyped]  # It brings no types.

import nightmail
from nightmail.message import Delivery, Message
from nightmail.outcome import OUTCOMES
from nightmail.store import Claimed, Settlement
from nightmail.stores.sql.verbs import Ask

_OURS: Final = str(Path(nightmail.__file__).parent)
_DECISIONS: Final = (Message, Delivery, Claimed, Settlement, *OUTCOMES)
_SENDS: Final = {
    ("asyncpg", "fetch"),
    ("asyncpg", "execute"),
    ("sqlalchemy", "exec_driver_sql"),
    ("redis", "send_packed_command"),
}
"""Drivers, and their functions that send."""
_COMPREHENSIONS: Final = ("<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>")


class Walk:
    """The functions of ours that carried the message, in the order in which they were first reached."""

    def __init__(self, handler: Callable[..., Any] | None, root: FrameType) -> None:
        self.carrying: list[str] = []
        self._handler = None if handler is None else handler.__code__
        self._root = root
        self._creators: dict[int, list[CodeType]] = {}
        """What was on the stack when a task was created, by the id of its coroutine."""
        self._coroutines: list[object] = []

    def profile(self, frame: FrameType, event: str, arg: Any) -> None:
        """For `sys.setprofile`."""
        code = frame.f_code
        if event == "call" and code.co_name in ("create_task", "ensure_future") and _is_ours(_caller(frame)):
            coroutine = frame.f_locals.get("coro", frame.f_locals.get("coro_or_future"))
            self._coroutines.append(coroutine)  # Kept alive: an id is reused.
            self._creators[id(coroutine)] = self._stack(frame.f_back)
        elif event == "call" and (code is self._handler or _sends(frame)):
            for each in self._stack(frame.f_back):
                self._add(each)
        elif event == "return" and _is_ours(code) and (_asks(code, arg) or _returns(code, arg)):
            self._add(code)

    def _stack(self, frame: FrameType | None) -> list[CodeType]:
        """Our functions on the stack, the outermost first, after those that created the task."""
        stack: list[CodeType] = []
        # SQLAlchemy runs what we give it in a greenlet: its stack goes on where its parent waits.
        parent = greenlet.getcurrent().parent
        while frame is not None and frame is not self._root:
            if _is_ours(frame.f_code):
                stack.insert(0, frame.f_code)
            frame = frame.f_back
            if frame is None and parent is not None:
                frame, parent = parent.gr_frame, parent.parent
        task = asyncio.current_task()
        if task is None or frame is not None:
            return stack
        return [*self._creators.get(id(task.get_coro()), ()), *stack]

    def _add(self, code: CodeType) -> None:
        name = f"{_module(code)}.{code.co_qualname.replace('.<locals>', '')}"
        if name not in self.carrying:
            self.carrying.append(name)


@contextmanager
def walked(handler: Callable[..., Any] | None = None) -> Iterator[Walk]:
    """Follow what happens in this block, on this thread."""
    # The caller's frame: this one, and the context manager's, are in between.
    walk = Walk(handler, sys._getframe(2))
    sys.setprofile(walk.profile)
    try:
        yield walk
    finally:
        sys.setprofile(None)


def _caller(frame: FrameType) -> CodeType | None:
    return None if frame.f_back is None else frame.f_back.f_code


def _sends(frame: FrameType) -> bool:
    name = frame.f_code.co_name
    return _is_ours(_caller(frame)) and any(
        name == function and f"/{driver}/" in frame.f_code.co_filename for driver, function in _SENDS
    )


def _is_ours(code: CodeType | None) -> bool:
    # A comprehension is part of the function around it.
    return code is not None and code.co_filename.startswith(_OURS) and code.co_name not in _COMPREHENSIONS


def _is_property(code: CodeType) -> bool:
    found: Any = importlib.import_module(f"nightmail.{_module(code)}")
    for part in code.co_qualname.split("."):
        found = getattr(found, part, None)
    return isinstance(found, property)


def _asks(code: CodeType, value: Any) -> bool:
    """Whether a verb of a store yields a request: it is not on the stack while that is sent."""
    return bool(code.co_flags & CO_GENERATOR) and (
        isinstance(value, Ask) or type(value).__module__.endswith(".requests")
    )


def _returns(code: CodeType, value: Any) -> bool:
    first = value[0] if isinstance(value, list | tuple) and value else value
    return isinstance(first, _DECISIONS) and not _is_property(code)


def _module(code: CodeType) -> str:
    path = Path(code.co_filename).relative_to(_OURS).with_suffix("")
    return ".".join(path.parts)
