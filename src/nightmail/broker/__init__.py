"""The FastStream integration."""

from nightmail.broker.broker import OutboxBroker
from nightmail.broker.commands import OutboxResponse
from nightmail.broker.exceptions import PostponeMessage
from nightmail.broker.message import OutboxBatchMessage, OutboxMessage
from nightmail.broker.router import OutboxRoute, OutboxRoutePublisher, OutboxRouter
from nightmail.broker.sessions import open_session
from nightmail.broker.sync import SyncPublisher

__all__ = [
    "OutboxBatchMessage",
    "OutboxBroker",
    "OutboxMessage",
    "OutboxResponse",
    "OutboxRoute",
    "OutboxRoutePublisher",
    "OutboxRouter",
    "PostponeMessage",
    "SyncPublisher",
    "open_session",
]
