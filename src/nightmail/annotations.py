"""Annotations for handler parameters: the class, and the word for FastStream that it is to be looked up.

As in FastStream's own brokers, an annotation has the name of its class, and to a type checker they are one type. At run
time `OutboxMessage` is the annotation wherever it is public, here and in `nightmail`: only `isinstance` needs the
class, which is in `nightmail.broker.message`. `OutboxBroker` is called, so in `nightmail` it is the class, and the
annotation only here. A handler that asks for a class is told at the start what to import.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from faststream.params import NoCast

from nightmail.broker import _upstream
from nightmail.broker import broker as _broker
from nightmail.broker import message as _message
from nightmail.broker.applications import ForSessions
from nightmail.broker.sessions import open_session, open_sync_session

__all__ = [
    "ContextRepo",
    "Logger",
    "NoCast",
    "OutboxBatchMessage",
    "OutboxBroker",
    "OutboxMessage",
    "OutboxSession",
    "SyncOutboxSession",
]


class _AsyncContext(_upstream.Context):
    """FastStream's context lookup without its thread hop: it sends every synchronous lookup to a thread."""

    async def use(self, /, **kwargs: Any) -> Any:  # type: ignore[override]
        return super().use(**kwargs)


class _HandlersSession(_upstream.Context, ForSessions):
    """The session of the delivery now being handled, opened when a handler asks for it."""

    async def use(self, /, **kwargs: Any) -> Any:  # type: ignore[override]
        kwargs[self.param_name] = await open_session()
        return kwargs


class _SyncHandlersSession(_upstream.Context, ForSessions):
    """The same for a `def` handler."""

    async def use(self, /, **kwargs: Any) -> Any:  # type: ignore[override]
        kwargs[self.param_name] = await open_sync_session()
        return kwargs


OutboxMessage: TypeAlias = Annotated[_message.OutboxMessage, _AsyncContext("message")]
OutboxBatchMessage: TypeAlias = Annotated[_message.OutboxBatchMessage, _AsyncContext("message")]
OutboxBroker: TypeAlias = Annotated[_broker.OutboxBroker, _AsyncContext("broker")]
Logger: TypeAlias = Annotated[logging.Logger, _AsyncContext("logger")]
ContextRepo: TypeAlias = Annotated[_upstream.ContextRepo, _AsyncContext("context")]

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession
    from sqlalchemy.orm import Session

    OutboxSession: TypeAlias = Annotated[AsyncSession, _HandlersSession()]
    """A session of the broker's `session_factory`, committed together with the acknowledgement of the message."""
    SyncOutboxSession: TypeAlias = Annotated[Session, _SyncHandlersSession()]
    """The same for `def` handlers: a session of the broker's `sync_session_factory`."""
else:
    # SQLAlchemy is not needed by those who do not use it, and this module must be importable without it.
    OutboxSession = Annotated[Any, _HandlersSession()]
    SyncOutboxSession = Annotated[Any, _SyncHandlersSession()]
