"""Durable messages, delivered when they are due, from the database you already have."""

from nightmail.broker import OutboxBroker, OutboxRouter
from nightmail.errors import LeaseLost, NightmailError, StoreUnavailable, TimerExists
from nightmail.message import Delivery, Message
from nightmail.outcome import Dead, Done, Outcome, Postpone, Release, Retry
from nightmail.retry import ConstantRetry, ExponentialRetry, LinearRetry, NoRetry
from nightmail.settings import WorkerSettings
from nightmail.store import Store
from nightmail.stores import open_store
from nightmail.worker import Worker

__all__ = [
    "ConstantRetry",
    "Dead",
    "Delivery",
    "Done",
    "ExponentialRetry",
    "LeaseLost",
    "LinearRetry",
    "Message",
    "NightmailError",
    "NoRetry",
    "OutboxBroker",
    "OutboxRouter",
    "Outcome",
    "Postpone",
    "Release",
    "Retry",
    "Store",
    "StoreUnavailable",
    "TimerExists",
    "Worker",
    "WorkerSettings",
    "open_store",
]
