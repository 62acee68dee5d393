"""Which spans there are, and whose children: a trace is one piece of work, and not a week of it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from faststream.redis import RedisBroker, RedisMessage, TestRedisBroker
from faststream.redis.response import RedisPublishCommand
from faststream.response import PublishCommand
from faststream.response.publish_type import PublishType
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Tracer
from pydantic import BaseModel

from nightmail import ConstantRetry, Message, OutboxBroker
from nightmail.annotations import OutboxMessage
from nightmail.broker.opentelemetry import OutboxTelemetryMiddleware, OutboxTelemetrySettingsProvider
from nightmail.store import FullStore
from nightmail.testing.clock import ManualClock
from tests.broker.support import Heard, started
from tests.telemetry.support import opened, running

MINUTE = timedelta(minutes=1)
AT_ONCE = ConstantRetry(delay=0, jitter=0)


class Traced:
    """Everything that was traced."""

    def __init__(self) -> None:
        self.provider = TracerProvider()
        self._exporter = InMemorySpanExporter()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    @property
    def tracer(self) -> Tracer:
        return self.provider.get_tracer("tests")

    def all(self, name: str) -> list[ReadableSpan]:
        """The spans of this name, in the order in which they ended."""
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        """The only span of this name."""
        (span,) = self.all(name)
        return span

    def published(self) -> ReadableSpan:
        """What the headers of the one publish named: the span that stands for the message."""
        return next(span for span in self.all("q create") if span.kind.name == "PRODUCER")


@pytest.fixture
def traced() -> Iterator[Traced]:
    """A tracer provider that remembers."""
    traced = Traced()
    yield traced
    traced.provider.shutdown()


def broker_on(store: FullStore, heard: Heard, traced: Traced, **options: Any) -> OutboxBroker:
    """A traced broker."""
    link_after = options.pop("link_after", MINUTE)
    middleware = OutboxTelemetryMiddleware(
        tracer_provider=traced.provider, meter_provider=MeterProvider(), link_after=link_after
    )
    return OutboxBroker(
        store, create_tables=True, logger=None, observer=heard, middlewares=[middleware], **options
    )


def trace_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.trace_id)


def linked(span: ReadableSpan) -> list[int]:
    """The ids of the spans that this one is linked to."""
    return [link.context.span_id for link in span.links]


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.span_id)


def parent_of(span: ReadableSpan) -> int | None:
    return span.parent.span_id if span.parent else None


async def handled_after(
    store: FullStore, clock: ManualClock, heard: Heard, traced: Traced, wait: timedelta, **options: Any
) -> ReadableSpan:
    """The span of a handler whose message was published that long ago."""
    broker = broker_on(store, heard, traced)

    @broker.subscriber("q")
    async def take(body: str) -> None: ...

    async with opened(store):
        await broker.connect()
        with traced.tracer.start_as_current_span("request"):
            await broker.publish("hello", "q", **options)
        clock.advance(wait)
        async with started(broker):
            await heard.until(lambda: len(heard.outcomes) == 1)
    return traced.one("q process")


async def test_what_is_handled_soon_is_part_of_the_publishers_trace(
    store: FullStore, clock: ManualClock, heard: Heard, traced: Traced
) -> None:
    process = await handled_after(store, clock, heard, traced, timedelta(seconds=59))

    assert trace_of(process) == trace_of(traced.one("request"))
    assert parent_of(process) == id_of(traced.published())
    assert linked(process) == []


@pytest.mark.parametrize(
    ("wait", "options"),
    [
        (MINUTE, {}),
        (timedelta(days=3), {"activate_in": timedelta(days=3)}),
    ],
    ids=["no worker was free", "as it was asked for"],
)
async def test_what_waited_a_minute_begins_a_trace_of_its_own_and_is_linked(
    store: FullStore,
    clock: ManualClock,
    heard: Heard,
    traced: Traced,
    wait: timedelta,
    options: dict[str, Any],
) -> None:
    process = await handled_after(store, clock, heard, traced, wait, **options)

    assert trace_of(process) != trace_of(traced.one("request"))
    assert linked(process) == [id_of(traced.published())]
    assert process.links[0].context.trace_id == trace_of(traced.one("request"))


async def test_a_short_delay_that_was_asked_for_leaves_the_trace_whole(
    store: FullStore, clock: ManualClock, heard: Heard, traced: Traced
) -> None:
    process = await handled_after(store, clock, heard, traced, timedelta(seconds=5), activate_in=5)

    assert trace_of(process) == trace_of(traced.one("request"))


async def test_a_retry_is_linked_however_soon_it_comes(
    store: FullStore, heard: Heard, traced: Traced
) -> None:
    broker = broker_on(store, heard, traced, retry=AT_ONCE)

    @broker.subscriber("q")
    async def take(body: str, msg: OutboxMessage) -> None:
        if msg.attempt < 3:
            raise ValueError

    async with running(broker):
        await broker.publish("hello", "q")
        await heard.until(lambda: len(heard.outcomes) == 3)

    first, second, third = traced.all("q process")
    published = traced.published()
    assert trace_of(first) == trace_of(published)
    assert linked(first) == []
    assert linked(second) == linked(third) == [id_of(published)]
    assert len({trace_of(first), trace_of(second), trace_of(third)}) == 3
    assert [span.attributes and span.attributes["nightmail.engine.attempt"] for span in (first, second, third)] == [
        1, 2, 3,
    ]  # fmt: skip


async def test_a_message_that_was_not_traced_is_linked_to_nothing(
    store: FullStore, clock: ManualClock, heard: Heard, traced: Traced
) -> None:
    broker = broker_on(store, heard, traced)

    @broker.subscriber("q")
    async def take(body: bytes) -> None: ...

    async with opened(store):
        await store.publish(Message(queue="q", body=b"from elsewhere"))
        clock.advance(MINUTE)
        async with started(broker):
            await heard.until(lambda: len(heard.outcomes) == 1)

    assert linked(traced.one("q process")) == []


async def test_a_message_that_comes_back_from_a_lost_worker_is_linked(
    store: FullStore, clock: ManualClock, heard: Heard, traced: Traced
) -> None:
    broker = broker_on(store, heard, traced, link_after=timedelta(days=1))

    @broker.subscriber("q")
    async def take(body: str) -> None: ...

    async with opened(store):
        await broker.connect()
        await broker.publish("hello", "q")
        await store.claim(["q"], limit=1, lease=timedelta(seconds=5), token=uuid4())
        clock.advance(timedelta(seconds=6))
        async with started(broker):
            await heard.until(lambda: len(heard.outcomes) == 1)

    assert linked(traced.one("q process")) == [id_of(traced.published())]


async def test_a_dead_letter_and_what_is_made_of_it_are_linked(
    store: FullStore, heard: Heard, traced: Traced
) -> None:
    broker = broker_on(store, heard, traced)
    bodies: list[str] = []

    @broker.subscriber("q")
    async def take(body: str, msg: OutboxMessage) -> None:
        bodies.append(body)
        if "nightmail-redriven" not in msg.headers:
            await msg.reject()

    async with running(broker):
        await broker.publish("hello", "q")
        await heard.until(lambda: len(heard.outcomes) == 1)
        assert await broker.redrive("q") == 1
        await heard.until(lambda: len(heard.outcomes) == 2)

    first, again = traced.all("q process")
    assert linked(first) == []
    assert linked(again) == [id_of(traced.published())]
    assert trace_of(again) != trace_of(first)


async def test_a_dead_letter_handler_is_linked(store: FullStore, heard: Heard, traced: Traced) -> None:
    broker = broker_on(store, heard, traced)

    @broker.subscriber("q")
    async def refuse(body: str, msg: OutboxMessage) -> None:
        await msg.reject()

    @broker.subscriber("q", dead_letters=True)
    async def bury(body: str) -> None: ...

    async with running(broker):
        await broker.publish("hello", "q")
        await heard.until(lambda: len(heard.outcomes) == 2)

    _, burial = traced.all("q process")
    assert linked(burial) == [id_of(traced.published())]


async def test_the_threshold_is_yours(
    store: FullStore, clock: ManualClock, heard: Heard, traced: Traced
) -> None:
    broker = broker_on(store, heard, traced, link_after=0)

    @broker.subscriber("q")
    async def take(body: str) -> None: ...

    async with running(broker):
        await broker.publish("hello", "q")
        await heard.until(lambda: len(heard.outcomes) == 1)

    assert linked(traced.one("q process")) == [id_of(traced.published())]


async def test_what_a_handler_publishes_goes_on_with_its_trace(
    store: FullStore, clock: ManualClock, heard: Heard, traced: Traced
) -> None:
    broker = broker_on(store, heard, traced)

    @broker.subscriber("q")
    @broker.publisher("returned")
    async def take(body: str) -> str:
        await broker.publish("next", "published")
        return "answer"

    @broker.subscriber("published")
    @broker.subscriber("returned")
    async def end(body: str) -> None: ...

    async with opened(store):
        await broker.connect()
        await broker.publish("hello", "q", activate_in=3600)
        clock.advance(timedelta(hours=1))
        async with started(broker):
            await heard.until(lambda: len(heard.outcomes) == 3)

    process = traced.one("q process")
    assert trace_of(process) != trace_of(traced.published())
    assert {trace_of(traced.one("published process")), trace_of(traced.one("returned process"))} == {
        trace_of(process)
    }


async def test_a_batch_is_linked_to_every_publisher(store: FullStore, heard: Heard, traced: Traced) -> None:
    broker = broker_on(store, heard, traced)

    @broker.subscriber("q", batch=True)
    async def take(bodies: list[str]) -> None: ...

    async with opened(store):
        await broker.connect()
        await broker.publish("a", "q")
        await broker.publish("b", "q")
        async with started(broker):
            await heard.until(lambda: len(heard.outcomes) == 2)

    first, second, batch = traced.all("q create")
    process = traced.one("q process")
    assert linked(batch) == [id_of(first), id_of(second)]
    assert parent_of(process) == id_of(batch)
    assert process.attributes
    assert process.attributes["messaging.batch.message_count"] == 2


async def test_a_span_that_was_open_when_the_broker_started_adopts_nothing(
    store: FullStore, heard: Heard, traced: Traced
) -> None:
    broker = broker_on(store, heard, traced)

    @broker.subscriber("q")
    async def take(body: str) -> None: ...

    async with opened(store):
        with traced.tracer.start_as_current_span("startup"):
            await broker.start()
        try:
            await store.publish(Message(queue="q", body=b"from elsewhere"))
            await heard.until(lambda: len(heard.outcomes) == 1)
        finally:
            await broker.stop()

    assert trace_of(traced.one("q process")) != trace_of(traced.one("startup"))
    assert linked(traced.one("q process")) == []


async def test_spans_tell_no_body_timer_id_or_key(store: FullStore, heard: Heard, traced: Traced) -> None:
    broker = broker_on(store, heard, traced)

    @broker.subscriber("q")
    async def take(body: str, msg: OutboxMessage) -> None:
        assert msg.headers["secret"] == "hunter2-header"

    async with running(broker):
        await broker.publish(
            "hunter2-body",
            "q",
            timer_id="hunter2-timer",
            ordering_key="hunter2-key",
            headers={"secret": "hunter2-header"},
            correlation_id="c-1",
        )
        await heard.until(lambda: len(heard.outcomes) == 1)

    process = traced.one("q process")
    assert process.attributes == {
        "messaging.system": "nightmail",
        "messaging.message.id": str(heard.outcomes[0][0]),
        "messaging.message.conversation_id": "c-1",
        "messaging.message.payload_size_bytes": len("hunter2-body"),
        "messaging.destination_publish.name": "q",
        "messaging.operation": "process",
        "nightmail.engine.attempt": 1,
        "nightmail.deliveries": 1,
        "nightmail.late_seconds": 0.0,
        "nightmail.age_seconds": 0.0,
    }
    assert all("hunter2" not in str(span.attributes) for span in traced.all("q publish"))


@pytest.mark.parametrize(
    "command",
    [
        RedisPublishCommand("b", channel="elsewhere", _publish_type=PublishType.PUBLISH),
        PublishCommand("b", destination="elsewhere", _publish_type=PublishType.PUBLISH),
    ],
    ids=["redis", "plain"],
)
def test_a_command_for_another_broker_is_understood(command: PublishCommand) -> None:
    provider = OutboxTelemetrySettingsProvider()

    assert provider.get_publish_destination_name(command) == "elsewhere"
    assert provider.get_publish_attrs_from_cmd(command) == {
        "messaging.system": "nightmail",
        "messaging.destination.name": "elsewhere",
        "messaging.message.conversation_id": "",
    }


async def test_passing_a_message_on_to_another_broker_goes_on_with_the_trace(
    store: FullStore, heard: Heard, traced: Traced
) -> None:
    ours, theirs = broker_on(store, heard, traced), RedisBroker(logger=None)  # type: ignore[arg-type]
    arrived: list[str] = []

    @theirs.subscriber("elsewhere")
    async def receive(body: str, msg: RedisMessage) -> None:
        arrived.append(msg.headers["traceparent"])

    @theirs.publisher("elsewhere")
    @ours.subscriber("q")
    async def relay(body: str) -> str:
        return body

    async with TestRedisBroker(theirs), running(ours):
        await ours.publish("hello", "q")
        await heard.until(lambda: len(heard.outcomes) == 1)

    published = traced.one("elsewhere publish")
    assert published.attributes
    assert published.attributes["messaging.destination.name"] == "elsewhere"
    assert [header.split("-")[1] for header in arrived] == [f"{trace_of(traced.one('q process')):032x}"]


async def test_a_meter_may_be_given(store: FullStore, heard: Heard) -> None:
    reader = InMemoryMetricReader()
    meter = MeterProvider(metric_readers=[reader]).get_meter("mine")
    broker = OutboxBroker(
        store, create_tables=True, logger=None, observer=heard,
        middlewares=[OutboxTelemetryMiddleware(meter=meter)],
    )  # fmt: skip

    @broker.subscriber("q")
    async def take(body: str) -> None: ...

    async with running(broker):
        await broker.publish("hello", "q")
        await heard.until(lambda: len(heard.outcomes) == 1)

    collected = reader.get_metrics_data()
    assert collected is not None
    assert {metric.name for metric in collected.resource_metrics[0].scope_metrics[0].metrics} == {
        "messaging.publish.duration",
        "messaging.publish.messages",
        "messaging.process.duration",
        "messaging.process.messages",
    }


async def test_a_span_tells_of_an_error_what_a_dead_letter_would(
    store: FullStore, heard: Heard, traced: Traced
) -> None:
    class Order(BaseModel):
        total: int

    broker = broker_on(store, heard, traced)

    @broker.subscriber("q")
    async def handle(order: Order) -> None: ...

    async with started(broker):
        await broker.publish({"total": "hunter2"}, "q")
        await heard.until(lambda: bool(heard.outcomes))

    span = traced.one("q process")
    (event,) = span.events
    assert event.attributes is not None
    assert "total: Input should be a valid integer" in str(event.attributes["exception.message"])
    assert span.status.status_code.name == "ERROR"
    assert "hunter2" not in span.to_json()


async def test_a_span_tells_of_an_error_as_the_subscriber_describes_it(
    store: FullStore, heard: Heard, traced: Traced
) -> None:
    broker = broker_on(store, heard, traced, describe_error=lambda error: type(error).__name__)

    @broker.subscriber("q")
    async def handle(body: str) -> None:
        raise RuntimeError(body)

    async with started(broker):
        await broker.publish("hunter2", "q")
        await heard.until(lambda: bool(heard.outcomes))

    span = traced.one("q process")
    assert span.status.description == "RuntimeError"
    assert "hunter2" not in span.to_json()
