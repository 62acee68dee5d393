"""What a broker, its routers and their endpoints know of one another."""

from __future__ import annotations

from dataclasses import dataclass, field

from faststream.middlewares import AckPolicy

from nightmail.broker._upstream import (
    EMPTY,
    BrokerConfig,
    PublisherUsecaseConfig,
    SubscriberUsecaseConfig,
)
from nightmail.broker.options import WorkerOptions
from nightmail.observe import LoggingObserver, Observer
from nightmail.solitude import Solitude
from nightmail.store import FullStore


@dataclass(kw_only=True)
class OutboxBrokerConfig(BrokerConfig):
    """A broker's own: the store, and what its subscribers share."""

    store: FullStore
    worker_options: WorkerOptions = field(default_factory=WorkerOptions)
    observer: Observer = field(default_factory=LoggingObserver)
    solitude: Solitude = field(default_factory=Solitude)


@dataclass(kw_only=True)
class OutboxSubscriberConfig(SubscriberUsecaseConfig):
    """One subscriber's own."""

    queues: tuple[str, ...]
    worker_options: WorkerOptions

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
