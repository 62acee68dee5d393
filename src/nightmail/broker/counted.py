"""What a decision returns: it may be awaited, and need not be.

A handler may forget an `await`, and a `def` handler has none. A decision is noted where it is made, so that neither
changes what becomes of the message; only what needs the store has to be awaited, and says so if it was not.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import warnings
from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import Any, Final, ParamSpec, TypeVar

from nightmail.broker.received import Received
from nightmail.engine.processes import is_child
from nightmail.engine.threads import current_call
from nightmail.errors import NotAwaited

_OFFERED_BY_SYNC_PUBLISHER: Final = frozenset(
    {"publish", "publish_batch", "cancel_timer", "reschedule_timer"}
)

P = ParamSpec("P")
T = TypeVar("T")


class Given(Coroutine[Any, Any, None]):
    """What the methods of a message return.

    A class of its own, though a coroutine: a type checker would complain about every call in a `def` handler.
    """

    __slots__ = ()


class Counted(Given):
    """Done already: awaiting it does nothing."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, Any, None]:
        """See `Awaitable`."""
        return
        yield

    def send(self, _value: Any) -> Any:
        """See `Coroutine`: it has ended."""
        raise StopIteration

    def throw(self, error: Any, value: Any = None, traceback: Any = None, /) -> Any:
        """See `Coroutine`: nothing here could catch it."""
        raise error if value is None else value

    def close(self) -> None:
        """See `Coroutine`."""


COUNTED: Final = Counted()


class Asked(Given):
    """What asks the store, and must be awaited."""

    __slots__ = ("_running", "_work")

    def __init__(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._work = work
        self._running: Coroutine[Any, Any, None] | None = None

    def __await__(self) -> Generator[Any, Any, None]:
        """See `Awaitable`."""
        return self._begun().__await__()

    def send(self, value: Any) -> Any:
        """See `Coroutine`."""
        return self._begun().send(value)

    def throw(self, error: Any, value: Any = None, traceback: Any = None, /) -> Any:
        """See `Coroutine`."""
        return self._begun().throw(error if value is None else value)

    def close(self) -> None:
        """See `Coroutine`."""
        if self._running is not None:
            self._running.close()

    def __del__(self) -> None:
        """Warn as Python does of a coroutine."""
        if self._running is None:
            self._warn()

    def _warn(self) -> None:
        warnings.warn(
            "a method of a message that asks the store was not awaited", RuntimeWarning, stacklevel=3
        )

    def _begun(self) -> Coroutine[Any, Any, None]:
        if self._running is None:
            self._running = self._work()
        return self._running


class Owed(Asked):
    """An acknowledgement in the handler's own transaction. Until it is awaited, its messages have failed."""

    __slots__ = ("_items",)

    def __init__(self, items: Sequence[Received], work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        super().__init__(work)
        self._items = items
        missing = NotAwaited(
            "ack(session=...) was called and not awaited, so the message was not acknowledged: "
            "write `await msg.ack(session=...)`. It is retried."
        )
        for item in items:
            item.result.refuse(missing)

    def _warn(self) -> None:
        """The failure says more."""

    def _begun(self) -> Coroutine[Any, Any, None]:
        if self._running is None:
            for item in self._items:
                item.result.error = None
        return super()._begun()


def must_be_awaited(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """The same, but refused at the call in a `def` handler: what it returns could not be awaited there."""

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        name = function.__name__
        if current_call() is not None:
            instead = "use SyncPublisher(broker) there, or " if name in _OFFERED_BY_SYNC_PUBLISHER else ""
            raise NotAwaited(
                f"{name}() must be awaited, which a `def` handler cannot do, so nothing was done: "
                f"{instead}make the handler `async def`"
            )
        if is_child() and is_synchronous_here():
            raise NotAwaited(
                f"{name}() must be awaited, which a `def` handler cannot do, so nothing was done: in a process of its "
                "own a handler returns what is to be published"
            )
        return function(*args, **kwargs)

    _mark_as_coroutine_function(called)
    return called


def _mark_as_coroutine_function(function: Any) -> None:
    """For mocks and the like, which check for it."""
    mark = getattr(inspect, "markcoroutinefunction", None)
    if mark is not None:
        mark(function)
    else:
        function._is_coroutine = getattr(asyncio.coroutines, "_is_coroutine", None)


def is_synchronous_here() -> bool:
    """Whether no event loop runs in this thread, so that nothing can be awaited."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return True
    return False
