"""What a broker, its routers and their endpoints know of one another."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from faststream.middlewares import AckPolicy

from nightmail.broker._upstream import (
    EMPTY,
    FASTSTREAM_VERSION,
    BrokerConfig,
    ContextRepo,
    PublisherUsecaseConfig,
    SubscriberUsecaseConfig,
)
from nightmail.broker.class_annotations import what_to_import
from nightmail.broker.options import Run, TimerOptions, WorkerOptions
from nightmail.broker.sessions import SessionFactories, SessionFactory
from nightmail.broker.sync_sessions import SyncSessionFactory
from nightmail.engine.idle_looks import IdleLooks
from nightmail.engine.presence import Presence
from nightmail.engine.quarantine import Quarantine
from nightmail.observe import LoggingObserver, Observer
from nightmail.store import FullStore


@dataclass(kw_only=True)
class OutboxBrokerConfig(BrokerConfig):
    """A broker's own: the store, and what its subscribers share."""

    store: FullStore
    session_factory: SessionFactory | None = None
    sync_session_factory: SyncSessionFactory | None = None
    worker_options: WorkerOptions = field(default_factory=WorkerOptions)
    observer: Observer = field(default_factory=LoggingObserver)
    quarantine: Quarantine = field(default_factory=Quarantine)
    idle_looks: IdleLooks = field(default_factory=IdleLooks)
    access_log_level: int = logging.DEBUG
    """The level of the lines about messages that are received and processed."""
    presence: Presence = field(default_factory=lambda: Presence({"faststream": FASTSTREAM_VERSION}))
    application_contexts: tuple[ContextRepo, ...] = ()
    """Contexts of applications that do not use the broker's own."""
    default_driver_annotations: Mapping[Any, Any] = field(default_factory=what_to_import)

    @property
    def session_factories(self) -> SessionFactories | None:
        """What makes the sessions of handlers, if anything does."""
        if self.session_factory is None and self.sync_session_factory is None:
            return None
        return SessionFactories(self.session_factory, self.sync_session_factory)


@dataclass(kw_only=True)
class OutboxSubscriberConfig(SubscriberUsecaseConfig):
    """One subscriber's own."""

    queues: tuple[str, ...]
    worker_options: WorkerOptions
    dead_letters: bool = False
    max_batch: int | None = None
    """How many messages a handler gets at once, if it gets several."""
    propagate_headers: bool = False
    run: Run = "thread"

    @property
    def ack_policy(self) -> AckPolicy:
        """The subscriber's policy, else its router's, else the broker's, else retry on error."""
        for policy in (self._ack_policy, self._outer_config.ack_policy):
            if policy is not EMPTY:
                return policy
        return AckPolicy.NACK_ON_ERROR


@dataclass(kw_only=True)
class OutboxPublisherConfig(PublisherUsecaseConfig):
    """One publisher's own."""

    queue: str
    defaults: TimerOptions = field(default_factory=TimerOptions)
    """The defaults for each message."""
