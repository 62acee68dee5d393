"""Durable messages, delivered when they are due, from the database you already have."""

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from nightmail._version import __version__
from nightmail.bell import Bell
from nightmail.breaker import Breaker
from nightmail.cleaner import Cleaner
from nightmail.controls import (
    LastConsumer,
    LeasedMessage,
    MessageFacts,
    Pause,
    QueueStatus,
    WorkerRecord,
    WorkerReport,
)
from nightmail.durations import Duration
from nightmail.engine.attempt import Batched
from nightmail.engine.dead_letters import DeadLetters
from nightmail.engine.settings import WorkerSettings
from nightmail.engine.worker import Worker
from nightmail.errors import (
    BatchTooLarge,
    CannotJoin,
    DriverMissing,
    Forbidden,
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
from nightmail.findings import Finding, Severity
from nightmail.forwarder import Forwarder
from nightmail.json_log import JSONFormatter
from nightmail.message import DeadDelivery, Delivery, Message, OnConflict
from nightmail.observe import LoggingObserver, Observer, Observers
from nightmail.operations.doctor import diagnose
from nightmail.operations.reasons import WhyReason
from nightmail.operations.workers import WorkerHoldings
from nightmail.outcome import Dead, Done, Outcome, Postpone, Reason, Release, Retry, WriteResult
from nightmail.records import (
    DeadFilter,
    DeadGroup,
    DeadLetter,
    DeadSummary,
    PendingMessage,
    QueueStats,
    StoredMessage,
    Swept,
)
from nightmail.retry import ConstantRetry, ExponentialRetry, LinearRetry, NoRetry, RetryPolicy
from nightmail.store import (
    Blocking,
    Capabilities,
    Claimed,
    Control,
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
    "Breaker",
    "CannotJoin",
    "Capabilities",
    "Claimed",
    "Cleaner",
    "ConstantRetry",
    "Control",
    "Dead",
    "DeadDelivery",
    "DeadFilter",
    "DeadGroup",
    "DeadLetter",
    "DeadLetters",
    "DeadSummary",
    "Delivery",
    "Done",
    "DriverMissing",
    "Duration",
    "ExponentialRetry",
    "Extend",
    "Finding",
    "Forbidden",
    "Forwarder",
    "FullStore",
    "HandlerDied",
    "HandlerTimeout",
    "Inspection",
    "JSONFormatter",
    "LastConsumer",
    "LeaseLost",
    "LeasedMessage",
    "LinearRetry",
    "Lingers",
    "LoggingObserver",
    "ManualClock",
    "Message",
    "MessageFacts",
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
    "Pause",
    "PauseQueue",
    "PendingMessage",
    "Postpone",
    "PostponeMessage",
    "PublishUncertain",
    "Published",
    "QueueStats",
    "QueueStatus",
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
    "Severity",
    "Source",
    "StaleTransaction",
    "Store",
    "StoreError",
    "StoreUnavailable",
    "StoredMessage",
    "Swept",
    "SyncOutboxSession",
    "SyncPublisher",
    "SyncSessionFactory",
    "TestOutboxBroker",
    "TimerExists",
    "Undecodable",
    "UnsuitableServer",
    "WhyReason",
    "Worker",
    "WorkerHoldings",
    "WorkerRecord",
    "WorkerReport",
    "WorkerSettings",
    "WriteResult",
    "WrongEventLoop",
    "WrongProcess",
    "__version__",
    "diagnose",
    "open_session",
    "open_store",
]


# What needs FastStream is imported when it is first asked for: a command, or a worker without FastStream, starts in a
# third of the time. The test tools are too: a service in production never needs them.
if TYPE_CHECKING:
    from nightmail.annotations import OutboxBatchMessage, OutboxMessage, OutboxSession, SyncOutboxSession
    from nightmail.broker.broker import OutboxBroker
    from nightmail.broker.commands import OutboxPublishCommand, OutboxResponse
    from nightmail.broker.exceptions import PauseQueue, PostponeMessage
    from nightmail.broker.publisher import OutboxPublisher
    from nightmail.broker.router import OutboxRoute, OutboxRoutePublisher, OutboxRouter
    from nightmail.broker.sessions import SessionFactory, open_session
    from nightmail.broker.subscriber import OutboxSubscriber
    from nightmail.broker.sync import SyncPublisher
    from nightmail.broker.sync_sessions import SyncSessionFactory
    from nightmail.testing import ManualClock, Published, TestOutboxBroker
else:
    # Not shown to type checkers, which would take every misspelled name for one of ours.
    _LATE = {
        "nightmail.annotations": (
            "OutboxBatchMessage",
            "OutboxMessage",
            "OutboxSession",
            "SyncOutboxSession",
        ),
        "nightmail.broker.broker": ("OutboxBroker",),
        "nightmail.broker.commands": ("OutboxPublishCommand", "OutboxResponse"),
        "nightmail.broker.exceptions": ("PauseQueue", "PostponeMessage"),
        "nightmail.broker.publisher": ("OutboxPublisher",),
        "nightmail.broker.router": ("OutboxRoute", "OutboxRoutePublisher", "OutboxRouter"),
        "nightmail.broker.sessions": ("SessionFactory", "open_session"),
        "nightmail.broker.subscriber": ("OutboxSubscriber",),
        "nightmail.broker.sync": ("SyncPublisher",),
        "nightmail.broker.sync_sessions": ("SyncSessionFactory",),
        "nightmail.testing": ("ManualClock", "Published", "TestOutboxBroker"),
    }
    _MODULES = {name: module for module, names in _LATE.items() for name in names}

    def __getattr__(name: str) -> Any:
        module = _MODULES.get(name)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        _offer_test_broker()
        value = globals()[name] = getattr(import_module(module), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})

    @cache
    def _offer_test_broker() -> None:
        """Let FastStream's "try it out" find the test broker, without loading it."""
        from nightmail.broker.try_it_out import offer_test_broker

        def load() -> type:
            from nightmail.testing import TestOutboxBroker

            return TestOutboxBroker

        offer_test_broker(load)
