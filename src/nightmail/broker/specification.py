"""How subscribers and publishers appear in the AsyncAPI document."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message, Operation, PublisherSpec, SubscriberSpec

from nightmail.broker._upstream import (
    BrokerConfig,
    PublisherSpecification,
    PublisherSpecificationConfig,
    SubscriberSpecification,
    SubscriberSpecificationConfig,
)

if TYPE_CHECKING:
    from nightmail.broker._upstream import CallsCollection


class OutboxSubscriberSpecification(SubscriberSpecification[BrokerConfig, SubscriberSpecificationConfig]):
    """One channel per queue."""

    __slots__ = ("_queues",)

    def __init__(
        self,
        outer: BrokerConfig,
        config: SubscriberSpecificationConfig,
        calls: CallsCollection[Any],
        queues: tuple[str, ...],
    ) -> None:
        super().__init__(outer, config, calls)
        self._queues = queues

    @property
    def channel_labels(self) -> list[str]:
        """The queues with their prefix."""
        return [f"{self._outer_config.prefix}{queue}" for queue in self._queues]

    def get_schema(self) -> dict[str, SubscriberSpec]:
        """One channel per queue, all with the handlers' payloads."""
        payload = resolve_payloads(self.get_payloads())
        addresses = self.channel_labels
        channels = {}
        for address in addresses:
            name = self._channel_key(address, split=len(addresses) > 1)
            channels[name] = SubscriberSpec(
                address=address,
                description=self.description,
                operation=Operation(message=Message(title=f"{name}:Message", payload=payload), bindings=None),
                bindings=None,
            )
        return channels


class OutboxPublisherSpecification(PublisherSpecification[BrokerConfig, PublisherSpecificationConfig]):
    """One channel: the queue."""

    __slots__ = ("_queue",)

    def __init__(self, outer: BrokerConfig, config: PublisherSpecificationConfig, queue: str) -> None:
        super().__init__(outer, config)
        self._queue = queue

    @property
    def address(self) -> str:
        """The queue with its prefix."""
        return f"{self._outer_config.prefix}{self._queue}"

    @property
    def name(self) -> str:
        """The channel's key in the document."""
        return self.config.title_ or f"{self.address}:Publisher"

    def get_schema(self) -> dict[str, PublisherSpec]:
        """The channel with the return types of the handlers it decorates."""
        payload = resolve_payloads(self.get_payloads(), "Publisher")
        return {
            self.name: PublisherSpec(
                address=self.address,
                description=self.config.description_,
                operation=Operation(
                    message=Message(title=f"{self.name}:Message", payload=payload), bindings=None
                ),
                bindings=None,
            )
        }
