"""Durable messages, delivered when they are due, from the database you already have."""

from typing import TYPE_CHECKING, Any

from nightmail._version import __version__
from nightmail.annotations import OutboxBatchMessage, OutboxMessage, OutboxSession, SyncOutboxSession
from nightmail.broker import (
    OutboxBroker,
    OutboxResponse,
    OutboxRoute,
    OutboxRoutePublisher,
    OutboxRouter,
    PostponeMessage,
    SyncPublisher,
)
from nightmail.broker.try_it_out import offer_test_broker
from nightmail.cleaner import Cleaner
from nightmail.engine.attempt import Batched
from nightmail.engine.dead_letters import DeadLetters
from nightmail.engine.settings import WorkerSettings
from nightmail.engine.worker import Worker
from nightmail.errors import (
    BatchTooLarge,
    CannotJoin,
    DriverMissing,
    HandlerDied,
    HandlerTimeout,
    LeaseLost,
    MessageTooLarge,
    NightmailError,
    NotAllowed,
    NotAwaited,
    NotInTransaction,
    NotOpen,
    NotTaken,
    NoVerdict,
    OtherDatabase,
    PublishUncertain,
    SchemaDrift,
    SchemaMissing,
    SchemaOutdated,
    SessionClosed,
    StaleTransaction,
    StoreUnavailable,
    TimerExists,
    Undecodable,
)
from nightmail.forwarder import Forwarder
from nightmail.message import Delivery, Message
from nightmail.observe import LoggingObserver, Observer, Observers
from nightmail.outcome import Dead, Done, Outcome, Postpone, Reason, Release, Retry
from nightmail.records import DeadLetter, PendingMessage, QueueStats
from nightmail.retry import ConstantRetry, ExponentialRetry, LinearRetry, NoRetry, RetryPolicy
from nightmail.store import Store
from nightmail.stores import open_store

__all__ = [
    "BatchTooLarge",
    "Batched",
    "CannotJoin",
    "Cleaner",
    "ConstantRetry",
    "Dead",
    "DeadLetter",
    "DeadLetters",
    "Delivery",
    "Done",
    "DriverMissing",
    "ExponentialRetry",
    "Forwarder",
    "HandlerDied",
    "HandlerTimeout",
    "LeaseLost",
    "LinearRetry",
    "LoggingObserver",
    "Message",
    "MessageTooLarge",
    "NightmailError",
    "NoRetry",
    "NoVerdict",
    "NotAllowed",
    "NotAwaited",
    "NotInTransaction",
    "NotOpen",
    "NotTaken",
    "Observer",
    "Observers",
    "OtherDatabase",
    "OutboxBatchMessage",
    "OutboxBroker",
    "OutboxMessage",
    "OutboxResponse",
    "OutboxRoute",
    "OutboxRoutePublisher",
    "OutboxRouter",
    "OutboxSession",
    "Outcome",
    "PendingMessage",
    "Postpone",
    "PostponeMessage",
    "PublishUncertain",
    "QueueStats",
    "Reason",
    "Release",
    "Retry",
    "RetryPolicy",
    "SchemaDrift",
    "SchemaMissing",
    "SchemaOutdated",
    "SessionClosed",
    "StaleTransaction",
    "Store",
    "StoreUnavailable",
    "SyncOutboxSession",
    "SyncPublisher",
    "TestOutboxBroker",
    "TimerExists",
    "Undecodable",
    "Worker",
    "WorkerSettings",
    "__version__",
    "open_store",
]


def _test_broker() -> "type[TestOutboxBroker[Any]]":
    # Late: a service in production never needs it.
    from nightmail.testing import TestOutboxBroker

    return TestOutboxBroker


offer_test_broker(_test_broker)

if TYPE_CHECKING:
    from nightmail.testing import TestOutboxBroker
else:
    # Not shown to type checkers, which would take every misspelled name for one of ours.
    def __getattr__(name: str) -> Any:
        if name == "TestOutboxBroker":
            return _test_broker()
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
