"""Durable messages, delivered when they are due, from the database you already have."""

from typing import TYPE_CHECKING, Any

from nightmail._version import __version__
from nightmail.annotations import OutboxBatchMessage, OutboxMessage, OutboxSession, SyncOutboxSession
from nightmail.bell import Bell
from nightmail.broker.broker import OutboxBroker
from nightmail.broker.commands import OutboxPublishCommand, OutboxResponse
from nightmail.broker.exceptions import PostponeMessage
from nightmail.broker.publisher import OutboxPublisher
from nightmail.broker.router import OutboxRoute, OutboxRoutePublisher, OutboxRouter
from nightmail.broker.sessions import SessionFactory, open_session
from nightmail.broker.subscriber import OutboxSubscriber
from nightmail.broker.sync import SyncPublisher
from nightmail.broker.sync_sessions import SyncSessionFactory
from nightmail.broker.try_it_out import offer_test_broker
from nightmail.cleaner import Cleaner
from nightmail.durations import Duration
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
    NoDecision,
    NotAllowed,
    NotAwaited,
    NotInTransaction,
    NotOpen,
    NotTaken,
    OtherDatabase,
    PublishUncertain,
    Refused,
    SchemaDrift,
    SchemaMissing,
    SchemaOutdated,
    SessionClosed,
    StaleTransaction,
    StoreError,
    StoreUnavailable,
    TimerExists,
    Undecodable,
    UnsuitableServer,
    WrongEventLoop,
    WrongProcess,
)
from nightmail.forwarder import Forwarder
from nightmail.message import DeadDelivery, Delivery, Message, OnConflict
from nightmail.observe import LoggingObserver, Observer, Observers
from nightmail.outcome import Dead, Done, Outcome, Postpone, Reason, Release, Retry, WriteResult
from nightmail.records import DeadFilter, DeadLetter, PendingMessage, QueueStats, Swept
from nightmail.retry import ConstantRetry, ExponentialRetry, LinearRetry, NoRetry, RetryPolicy
from nightmail.store import (
    Blocking,
    Capabilities,
    Claimed,
    Extend,
    FullStore,
    Inspection,
    Lingers,
    Settlement,
    Source,
    Store,
)
from nightmail.stores import open_store

__all__ = [
    "BatchTooLarge",
    "Batched",
    "Bell",
    "Blocking",
    "CannotJoin",
    "Capabilities",
    "Claimed",
    "Cleaner",
    "ConstantRetry",
    "Dead",
    "DeadDelivery",
    "DeadFilter",
    "DeadLetter",
    "DeadLetters",
    "Delivery",
    "Done",
    "DriverMissing",
    "Duration",
    "ExponentialRetry",
    "Extend",
    "Forwarder",
    "FullStore",
    "HandlerDied",
    "HandlerTimeout",
    "Inspection",
    "LeaseLost",
    "LinearRetry",
    "Lingers",
    "LoggingObserver",
    "ManualClock",
    "Message",
    "MessageTooLarge",
    "NightmailError",
    "NoDecision",
    "NoRetry",
    "NotAllowed",
    "NotAwaited",
    "NotInTransaction",
    "NotOpen",
    "NotTaken",
    "Observer",
    "Observers",
    "OnConflict",
    "OtherDatabase",
    "OutboxBatchMessage",
    "OutboxBroker",
    "OutboxMessage",
    "OutboxPublishCommand",
    "OutboxPublisher",
    "OutboxResponse",
    "OutboxRoute",
    "OutboxRoutePublisher",
    "OutboxRouter",
    "OutboxSession",
    "OutboxSubscriber",
    "Outcome",
    "PendingMessage",
    "Postpone",
    "PostponeMessage",
    "PublishUncertain",
    "Published",
    "QueueStats",
    "Reason",
    "Refused",
    "Release",
    "Retry",
    "RetryPolicy",
    "SchemaDrift",
    "SchemaMissing",
    "SchemaOutdated",
    "SessionClosed",
    "SessionFactory",
    "Settlement",
    "Source",
    "StaleTransaction",
    "Store",
    "StoreError",
    "StoreUnavailable",
    "Swept",
    "SyncOutboxSession",
    "SyncPublisher",
    "SyncSessionFactory",
    "TestOutboxBroker",
    "TimerExists",
    "Undecodable",
    "UnsuitableServer",
    "Worker",
    "WorkerSettings",
    "WriteResult",
    "WrongEventLoop",
    "WrongProcess",
    "__version__",
    "open_session",
    "open_store",
]


def _test_broker() -> "type[TestOutboxBroker[Any]]":
    # Late: a service in production never needs it.
    from nightmail.testing import TestOutboxBroker

    return TestOutboxBroker


offer_test_broker(_test_broker)

if TYPE_CHECKING:
    from nightmail.testing import ManualClock, Published, TestOutboxBroker
else:
    # Not shown to type checkers, which would take every misspelled name for one of ours.
    def __getattr__(name: str) -> Any:
        if name in ("ManualClock", "Published", "TestOutboxBroker"):
            from nightmail import testing

            return getattr(testing, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
