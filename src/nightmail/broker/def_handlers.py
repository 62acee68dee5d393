"""`def` handlers: each subscriber runs its own in threads of its own.

FastStream would run them on the threads that anyio has for everything in the process, 40 by default. It is given an
`async def` instead, which runs the handler where its worker says.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import math
import sys
from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any

import anyio
import anyio.to_thread
from faststream.exceptions import AckMessage

from nightmail.broker._upstream import CallModel, HandlerItem, declared, is_coroutine_callable
from nightmail.broker.counted import Counted
from nightmail.engine.current import current_slot
from nightmail.errors import NotAwaited
from nightmail.store import Blocking


def in_own_thread(call: Callable[..., Any]) -> Callable[..., Any]:
    """A handler as FastStream is to call it: as it is, unless it blocks."""
    if not blocks(call):
        return call

    function = inspect.unwrap(call)
    address = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")

    @wraps(call)
    async def called(*args: Any, **kwargs: Any) -> Any:
        function = partial(call, *args, **kwargs)
        slot = current_slot()
        try:
            # Shielded: anyio would cancel again at every step for as long as the thread runs.
            with anyio.CancelScope(shield=True):
                if slot is None or slot.threads is None:
                    returned = await anyio.to_thread.run_sync(function)
                elif slot.threads.isolated:
                    returned = await slot.threads.run_in_child(
                        slot, call_in_child, address, args, kwargs, prepare=partial(import_in_child, *address)
                    )
                else:
                    returned = await slot.threads.run(slot, partial(_tidily, function))
        except AckMessage as said:
            raise _blocking(said) from said.__cause__
        if isinstance(returned, list | tuple) and any(isinstance(each, AckMessage) for each in returned):
            return [_blocking(each) for each in returned]
        return _blocking(checked(returned))

    called.__nightmail_blocking__ = call  # type: ignore[attr-defined]
    return called


def _blocking(said: Any) -> Any:
    """An acknowledgement that names its session, which is one of synchronous code: it is used on a thread only."""
    if isinstance(said, AckMessage) and said.extra_options.get("session") is not None:
        return AckMessage(**{**said.extra_options, "session": Blocking(said.extra_options["session"])})
    return said


def _tidily(function: Callable[[], Any]) -> Any:
    """Call it as Django calls a view: connections belong to the thread, and one that is too old is closed."""
    django: Any = sys.modules.get("django.db")
    # Imported does not mean used: a library may have imported it in a program without Django settings.
    if django is None or not sys.modules["django.conf"].settings.configured:
        return function()
    django.close_old_connections()
    try:
        return function()
    finally:
        django.close_old_connections()


def import_in_child(module: str, name: str) -> None:
    """Find the handler of that name. This runs in a process of its own."""
    _found(module, name)


def call_in_child(address: tuple[str, str], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call the handler of that name. This runs in a process of its own."""
    return checked(_found(*address)(*args, **kwargs))


def _found(module: str, name: str) -> Any:
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return declared(found)


def blocks(call: Callable[..., Any]) -> bool:
    """Whether this is a plain `def`."""
    function: Any = call if inspect.isroutine(call) else getattr(call, "__call__", call)  # noqa: B004 - an object
    return not (
        is_coroutine_callable(call)
        or inspect.isasyncgenfunction(function)
        or inspect.isgeneratorfunction(function)
    )


def as_written(call: Callable[..., Any]) -> Callable[..., Any]:
    """The handler as its author may call it: a `def` is one."""
    written: Callable[..., Any] = getattr(call, "__nightmail_blocking__", call)
    return written


def checked(returned: Any) -> Any:
    """What a `def` handler returned, unless it is something that had to be awaited."""
    if isinstance(returned, Counted):
        return None
    if inspect.iscoroutine(returned):
        returned.close()
        raise NotAwaited(
            "the handler is a `def` and returned a coroutine, which nothing awaits: make it `async def`. "
            "The message is retried."
        )
    return returned


def shared_threads() -> int | None:
    """How many threads anyio has for everything in this process; `None` if there is no limit."""
    tokens = anyio.to_thread.current_default_thread_limiter().total_tokens
    return None if math.isinf(tokens) else int(tokens)


def blocking_dependencies(calls: Sequence[HandlerItem[Any]]) -> list[str]:
    """The synchronous dependencies of these handlers: they run on anyio's threads."""
    return sorted({name for call in calls if call.dependant for name in _blocking_in(call.dependant)})


def warn_of_shared_threads(names: Sequence[str], max_workers: int, log: Callable[[int, str], object]) -> None:
    """Warn that synchronous dependencies run on shared threads, where they may have to wait for one another."""
    threads = shared_threads()
    if names and threads is not None and max_workers > threads:
        log(
            logging.WARNING,
            f"max_workers is {max_workers}, but synchronous dependencies ({', '.join(names)}) run on anyio's threads, "
            f"{threads} for the whole process: make them `async def`, or raise "
            "anyio.to_thread.current_default_thread_limiter().total_tokens",
        )


def _blocking_in(model: Any) -> set[str]:
    found: set[str] = set()
    if not isinstance(model, CallModel):
        # FastAPI's, under faststream_fastapi, which looks context up in dependencies of its own: they end at once.
        for each in model.dependencies:
            if blocks(each.call) and not each.call.__module__.startswith("faststream_fastapi."):
                found.add(getattr(each.call, "__name__", type(each.call).__name__))
            found |= _blocking_in(each)
        return found
    for key in (*model.dependencies.values(), *model.extra_dependencies):
        dependency = model.dependency_provider.get_dependant(key)
        if not dependency.is_async:
            found.add(dependency.call_name)
        found |= _blocking_in(dependency)
    return found
