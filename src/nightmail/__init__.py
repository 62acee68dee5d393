"""Durable messages, delivered when they are due, from the database you already have."""

from nightmail._version import __version__
from nightmail.attempt import Batched
from nightmail.broker import (
    OutboxBroker,
    OutboxResponse,
    OutboxRoute,
    OutboxRoutePublisher,
    OutboxRouter,
    PostponeMessage,
    SyncPublisher,
)
from nightmail.cleaner import Cleaner
from nightmail.dead_letters import DeadLetters
from nightmail.errors import LeaseLost, NightmailError, StoreUnavailable, TimerExists
from nightmail.message import Delivery, Message
from nightmail.outcome import Dead, Done, Outcome, Postpone, Release, Retry
from nightmail.relay import Relay
from nightmail.retry import ConstantRetry, ExponentialRetry, LinearRetry, NoRetry
from nightmail.settings import WorkerSettings
from nightmail.store import Store
from nightmail.stores import open_store
from nightmail.worker import Worker

__all__ = [
    "Batched",
    "Cleaner",
    "ConstantRetry",
    "Dead",
    "DeadLetters",
    "Delivery",
    "Done",
    "ExponentialRetry",
    "LeaseLost",
    "LinearRetry",
    "Message",
    "NightmailError",
    "NoRetry",
    "OutboxBroker",
    "OutboxResponse",
    "OutboxRoute",
    "OutboxRoutePublisher",
    "OutboxRouter",
    "Outcome",
    "Postpone",
    "PostponeMessage",
    "Relay",
    "Release",
    "Retry",
    "Store",
    "StoreUnavailable",
    "SyncPublisher",
    "TimerExists",
    "Worker",
    "WorkerSettings",
    "__version__",
    "open_store",
]
