"""Applications that call handlers in their own way, as faststream_fastapi does.

It looks for what a handler asks for in the application's own context, where FastStream puts nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin, get_type_hints

from faststream.exceptions import SetupError
from faststream.middlewares import BaseMiddleware

if TYPE_CHECKING:
    from faststream.message import StreamMessage

    from nightmail.broker._upstream import ContextRepo


class ForSessions:
    """Marks a session annotation: it is opened on demand, which a context cannot do."""


class Shown:
    """Makes middlewares that put a message, and what else a handler may ask for, into these contexts too."""

    __slots__ = ("_contexts",)

    def __init__(self, contexts: Sequence[ContextRepo]) -> None:
        self._contexts = contexts

    def __call__(self, msg: Any | None, /, *, context: ContextRepo) -> BaseMiddleware:
        """The middleware of one message."""
        return _ShownMiddleware(msg, contexts=self._contexts, context=context)


class _ShownMiddleware(BaseMiddleware):
    __slots__ = ("_contexts",)

    def __init__(self, msg: Any | None, /, *, contexts: Sequence[ContextRepo], context: ContextRepo) -> None:
        super().__init__(msg, context=context)
        self._contexts = contexts

    async def consume_scope(self, call_next: Callable[[Any], Awaitable[Any]], msg: StreamMessage[Any]) -> Any:
        with ExitStack() as stack:
            for each in self._contexts:
                stack.enter_context(each.scope("message", msg))
                for name in ("broker", "logger", "handler_"):
                    stack.enter_context(each.scope(name, self.context.get_local(name)))
            return await call_next(msg)


def refuse_sessions(handler: Callable[..., Any]) -> None:
    """Refuse a handler that asks for `OutboxSession` where it would get a placeholder."""
    hints: dict[str, Any] = {}
    with suppress(Exception):  # A name that cannot be resolved is an error of the call.
        hints = get_type_hints(handler, include_extras=True)
    for name, hint in hints.items():
        if get_origin(hint) is Annotated and any(isinstance(each, ForSessions) for each in get_args(hint)):
            raise SetupError(
                f"{handler.__name__} asks for OutboxSession as {name!r}, which FastAPI cannot give: "
                "use Annotated[AsyncSession, Depends(open_session)], from nightmail.broker"
            )
