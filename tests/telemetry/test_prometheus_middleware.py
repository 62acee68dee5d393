"""FastStream's own metrics, as every broker has them."""

from __future__ import annotations

import pytest
from faststream.redis.response import RedisPublishCommand
from faststream.response.publish_type import PublishType
from prometheus_client import CollectorRegistry

from nightmail import NoRetry, OutboxBroker
from nightmail.broker.prometheus import OutboxMetricsSettingsProvider, OutboxPrometheusMiddleware
from nightmail.store import FullStore
from tests.broker.support import Heard, started
from tests.telemetry.support import opened, running


@pytest.fixture
def registry() -> CollectorRegistry:
    """An empty registry."""
    return CollectorRegistry()


def broker_on(store: FullStore, heard: Heard, registry: CollectorRegistry) -> OutboxBroker:
    """A broker whose messages are counted there."""
    middleware = OutboxPrometheusMiddleware(
        registry=registry,
        app_name="shop",
        metrics_prefix="shop",
        received_messages_size_buckets=[4, 1000],
        custom_labels={"region": "north"},
    )
    return OutboxBroker(
        store, create_tables=True, logger=None, observer=heard, middlewares=[middleware], retry=NoRetry()
    )


def labels(**more: str) -> dict[str, str]:
    return {"app_name": "shop", "broker": "nightmail", "region": "north", **more}


async def test_what_is_published_and_handled_is_counted(
    store: FullStore, heard: Heard, registry: CollectorRegistry
) -> None:
    broker = broker_on(store, heard, registry)

    @broker.subscriber("q")
    async def take(body: str) -> None:
        if body == "bad":
            raise ValueError

    async with running(broker):
        await broker.publish("good", "q")
        await broker.publish("bad", "q")
        await heard.until(lambda: len(heard.outcomes) == 2)

    value = registry.get_sample_value
    assert value("shop_published_messages_total", labels(destination="q", status="success")) == 2
    assert value("shop_received_messages_total", labels(handler="q")) == 2
    assert value("shop_received_processed_messages_total", labels(handler="q", status="acked")) == 1
    assert value("shop_received_processed_messages_total", labels(handler="q", status="error")) == 1
    assert value("shop_received_messages_in_process", labels(handler="q")) == 0
    # "bad" has three bytes, "good" four.
    assert value("shop_received_messages_size_bytes_bucket", labels(handler="q", le="4.0")) == 2


async def test_a_batch_counts_all_of_its_messages(
    store: FullStore, heard: Heard, registry: CollectorRegistry
) -> None:
    broker = broker_on(store, heard, registry)

    @broker.subscriber("q", batch=True)
    async def take(bodies: list[str]) -> None: ...

    async with opened(store):
        await broker.connect()
        await broker.publish_batch("one", "two", "three", queue="q")
        async with started(broker):
            await heard.until(lambda: len(heard.outcomes) == 3)

    value = registry.get_sample_value
    assert value("shop_published_messages_total", labels(destination="q", status="success")) == 3
    assert value("shop_received_messages_total", labels(handler="q")) == 3
    assert value("shop_received_messages_size_bytes_sum", labels(handler="q")) == len("onetwothree")
    assert value("shop_received_processed_messages_total", labels(handler="q", status="acked")) == 3


def test_a_command_for_another_broker_is_understood() -> None:
    command = RedisPublishCommand("b", list="elsewhere", _publish_type=PublishType.PUBLISH)

    name = OutboxMetricsSettingsProvider().get_publish_destination_name_from_cmd(command)

    assert name == "elsewhere"
