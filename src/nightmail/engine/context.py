"""Runs a coroutine in its own context, inside a task that has another.

Runners take one message after the other in the same task. Without this, a context variable that one handler sets (the
correlation id of its log lines, for instance) would still be set for the next.
"""

from __future__ import annotations

from collections.abc import Awaitable, Generator
from contextvars import Context
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class InContext(Generic[T]):
    """Awaits `work` in `context`: what is set there stays there."""

    __slots__ = ("_context", "_work")

    def __init__(self, context: Context, work: Awaitable[T]) -> None:
        self._context = context
        self._work = work

    def __await__(self) -> Generator[Any, Any, T]:
        run, steps = self._context.run, self._work.__await__()
        try:
            waiting = run(steps.send, None)
            while True:
                try:
                    sent = yield waiting
                except GeneratorExit:
                    run(steps.close)
                    raise
                except BaseException as error:  # noqa: BLE001 - whatever it is, it is meant for the coroutine
                    waiting = run(steps.throw, error)
                else:
                    waiting = run(steps.send, sent)
        except StopIteration as end:
            result: T = end.value
            return result
