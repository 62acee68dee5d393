"""`run="process"`: what a handler must be like to run in a process of its own."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final, get_type_hints

from faststream.exceptions import SetupError

from nightmail.broker._upstream import Context
from nightmail.broker.def_handlers import blocks
from nightmail.broker.handlers import Handlers, check_handler

_OURS: Final = frozenset({"message", "broker", "logger", "context", "handler_"})
"""What lives in the context of this process alone."""


class ProcessHandlers(Handlers):
    """The handlers of a subscriber with `run="process"`."""

    def check(self, handler: Callable[..., Any]) -> None:
        """Refuse what cannot be one, or cannot run in another process."""
        check_handler(handler)
        check_process_handler(handler)


def check_process_handler(handler: Callable[..., Any]) -> None:
    """Refuse what cannot run in another process, where it is registered."""
    name = getattr(handler, "__qualname__", None)
    if not blocks(handler):
        raise SetupError(f'{name} is an `async def`: run="process" is for `def` handlers')
    if name is None or "<" in name or not getattr(handler, "__module__", None):
        raise SetupError(
            f'{name or handler!r} cannot be imported by name: run="process" needs a function at the top of its module'
        )
    try:
        hints = get_type_hints(handler, include_extras=True)
    except Exception:  # noqa: BLE001 - a name that is not defined yet cannot be checked
        hints = {}
    for parameter, told in inspect.signature(handler).parameters.items():
        asked = (told.default, *getattr(hints.get(parameter), "__metadata__", ()))
        if any(map(_lives_here, asked)):
            raise SetupError(
                f'{name} asks for {parameter!r}, which lives in this process: a handler with run="process" gets '
                "what its message says, and returns what is to be published"
            )


def _lives_here(asked: object) -> bool:
    return isinstance(asked, Context) and (
        asked.name in _OURS or type(asked).__module__ == "nightmail.annotations"
    )
