"""What a handler must look like, checked where it is registered."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from faststream.exceptions import SetupError

from nightmail.broker._upstream import CallsCollection, HandlerItem
from nightmail.broker.received import Received, ReceivedBatch

_THEIR_LINE: Final = 6
"""How many calls above `check_handler` the line with the decorator is."""


class Handlers(CallsCollection[Received | ReceivedBatch]):
    """The handlers of a subscriber."""

    def add_call(self, call: HandlerItem[Received | ReceivedBatch]) -> None:
        """One more, if it can be one."""
        self.check(call.handler._declared_call)
        super().add_call(call)

    def check(self, handler: Callable[..., Any]) -> None:
        """Refuse what cannot be one."""
        check_handler(handler)


def check_handler(handler: Callable[..., Any]) -> None:
    """Refuse what would never run, and warn of what ignores its messages."""
    function = _function_of(handler)
    name = getattr(function, "__qualname__", repr(handler))
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise SetupError(
            f"{name} is a generator: calling it runs nothing, so its messages would be lost. "
            "Return a value instead of yielding it, and publish others with broker.publish()"
        )
    if _takes_nothing(handler):
        warnings.warn(
            f"{name} takes no parameters, so what its messages say is dropped: "
            "take the body, or `_: Any` to say that it is not needed",
            stacklevel=_THEIR_LINE,
        )


def _function_of(handler: Callable[..., Any]) -> Any:
    unwrapped = inspect.unwrap(handler)
    while isinstance(unwrapped, partial):
        unwrapped = unwrapped.func
    if not inspect.isroutine(unwrapped):
        return getattr(type(unwrapped), "__call__", unwrapped)  # noqa: B004 - a callable object's own function
    return unwrapped


def _takes_nothing(handler: Callable[..., Any]) -> bool:
    try:
        return not inspect.signature(handler).parameters
    except (TypeError, ValueError):  # Written in C, or hidden.
        return False
