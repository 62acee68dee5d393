"""What a handler that asks for one of our classes by its name should have imported.

FastStream would take the class for a part of the message, and every message would fail; told of it, it refuses to
start, and names the import.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from nightmail.broker._upstream import UnderlyingDriverAnnotation


def what_to_import() -> Mapping[Any, UnderlyingDriverAnnotation]:
    """For each of our classes, its annotation."""
    # These need the broker, which needs this module.
    from nightmail import annotations
    from nightmail.broker.broker import OutboxBroker
    from nightmail.broker.message import OutboxBatchMessage, OutboxMessage

    return MappingProxyType(
        {
            OutboxBroker: _named("OutboxBroker", annotations.OutboxBroker),
            OutboxMessage: _named("OutboxMessage", annotations.OutboxMessage),
            OutboxBatchMessage: _named("OutboxBatchMessage", annotations.OutboxBatchMessage),
        }
    )


def _named(name: str, hint: Any) -> UnderlyingDriverAnnotation:
    return UnderlyingDriverAnnotation(type_hint=hint, module="nightmail.annotations", name=name)
