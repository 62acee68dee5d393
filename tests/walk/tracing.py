"""Follows one message through our code with `sys.setprofile`.

A function of ours *carries* the message if it is on the stack when the message reaches a station (a statement or script
is sent, or the user's handler is called), from the first that has the message in hand; if it is a verb that asks for
that; or if it returns a delivery, an outcome or what is written for it. It passes the message on, or decides its fate.
A task continues the stack that created it. Everything else (loops, checks, encoding and decoding, properties,
observers) only helps.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from inspect import CO_GENERATOR
from itertools import dropwhile, islice
from pathlib import Path
from types import CellType, CodeType, FrameType, FunctionType
from typing import Any, Final

import asyncpg
from faststream.message import StreamMessage
from faststream.response import PublishCommand

import nightmail
from nightmail.broker.received import Received
from nightmail.engine.slot import HandlerSlot
from nightmail.message import Delivery, Message
from nightmail.outcome import OUTCOMES
from nightmail.store import Claimed, Settlement
from nightmail.stores.sql.verbs import Ask

_OURS: Final = str(Path(nightmail.__file__).parent)
PAYLOAD: Final = "the message that is followed"
_DECISIONS: Final = (Delivery, Claimed, Settlement, *OUTCOMES)
_IN_HAND: Final = (Message, StreamMessage, PublishCommand, Received, HandlerSlot, asyncpg.Record, *_DECISIONS)
"""What stands for the message on its way."""
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
            self._creators[id(coroutine)] = self._in_hand(frame.f_back)
        elif event == "call" and (code is self._handler or _sends(frame)):
            for each in self._in_hand(frame.f_back):
                self._add(each)
        elif event == "return" and _is_ours(code) and (_asks(code, arg) or _returns(code, arg)):
            self._add(code)

    def _in_hand(self, frame: FrameType | None) -> list[CodeType]:
        """Our functions on the stack from the first that has the message, with those that created the task."""
        stack: list[FrameType] = []
        while frame is not None and frame is not self._root:
            if _is_ours(frame.f_code):
                stack.insert(0, frame)
            frame = frame.f_back
        task = asyncio.current_task()
        created = self._creators.get(id(task.get_coro()), []) if task is not None and frame is None else []
        if created:
            return [*created, *(each.f_code for each in stack)]
        return [each.f_code for each in dropwhile(_lacks_it, stack)]

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


def _holds(value: Any, depth: int = 6) -> bool:
    """Whether the message is here: as itself, as a row or a reply, in a container, or in a call to be made."""
    if isinstance(value, _IN_HAND):
        return True
    if depth == 0:
        return False
    found: Iterable[Any] = ()
    match value:
        case list() | tuple() | set():
            found = islice(value, 20)
        case dict():
            found = islice(value.values(), 20)
        case partial():
            found = (*value.args, *value.keywords.values())
        case FunctionType():
            found = [_content(cell) for cell in value.__closure__ or ()]
        case bytes() | str():
            return PAYLOAD in value if isinstance(value, str) else PAYLOAD.encode() in value
    return any(_holds(each, depth - 1) for each in found)


def _lacks_it(frame: FrameType) -> bool:
    return not _holds(list(frame.f_locals.values()))


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None  # Not assigned yet.


def _module(code: CodeType) -> str:
    path = Path(code.co_filename).relative_to(_OURS).with_suffix("")
    return ".".join(path.parts)
