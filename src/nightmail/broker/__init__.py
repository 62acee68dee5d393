"""The FastStream integration."""

from nightmail.broker.broker import OutboxBroker
from nightmail.broker.message import OutboxMessage
from nightmail.broker.router import OutboxRouter

__all__ = ["OutboxBroker", "OutboxMessage", "OutboxRouter"]
