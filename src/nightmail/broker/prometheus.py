"""FastStream's own metrics of what is published and handled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from faststream.prometheus import ConsumeAttrs, MetricsSettingsProvider
from faststream.prometheus.middleware import PrometheusMiddleware
from faststream.response import PublishCommand

from nightmail.broker._upstream import EMPTY

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from faststream.message import StreamMessage
    from prometheus_client import CollectorRegistry

SYSTEM: Final = "nightmail"


class OutboxPrometheusMiddleware(PrometheusMiddleware[Any, PublishCommand]):
    """Counts and times what is published and handled, under the names that every FastStream broker uses."""

    def __init__(
        self,
        *,
        registry: CollectorRegistry,
        app_name: str = EMPTY,
        metrics_prefix: str = "faststream",
        received_messages_size_buckets: Sequence[float] | None = None,
        custom_labels: dict[str, str | Callable[[Any], str]] | None = None,
    ) -> None:
        super().__init__(
            settings_provider_factory=lambda _: OutboxMetricsSettingsProvider(),
            registry=registry,
            app_name=app_name,
            metrics_prefix=metrics_prefix,
            received_messages_size_buckets=received_messages_size_buckets,
            custom_labels=custom_labels,
        )


class OutboxMetricsSettingsProvider(MetricsSettingsProvider[Any, PublishCommand]):
    """Metric attributes of a message. From a command, only what every broker's has."""

    __slots__ = ("messaging_system",)

    def __init__(self) -> None:
        self.messaging_system = SYSTEM

    def get_consume_attrs_from_message(self, msg: StreamMessage[Any]) -> ConsumeAttrs:
        """See `MetricsSettingsProvider`. Of a batch, the queue of its first message."""
        items = msg.raw_message.items
        return {
            "destination_name": items[0].delivery.queue,
            "message_size": sum(len(item.delivery.body) for item in items),
            "messages_count": len(items),
        }

    def get_publish_destination_name_from_cmd(self, cmd: PublishCommand) -> str:
        """See `MetricsSettingsProvider`."""
        return cmd.destination
