"""What handlers may ask for by type."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from nightmail.broker import broker as _broker
from nightmail.broker import message as _message
from nightmail.broker._upstream import Context


class _AsyncContext(Context):
    """FastStream's context lookup without its thread hop: it sends every synchronous lookup to a thread."""

    async def use(self, /, **kwargs: Any) -> Any:  # type: ignore[override]
        return super().use(**kwargs)


OutboxMessage: TypeAlias = Annotated[_message.OutboxMessage, _AsyncContext("message")]
OutboxBroker: TypeAlias = Annotated[_broker.OutboxBroker, _AsyncContext("broker")]
