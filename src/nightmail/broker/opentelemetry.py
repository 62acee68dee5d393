"""Spans for what is published and handled, with FastStream's own middleware."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from datetime import timedelta
from traceback import format_tb
from typing import TYPE_CHECKING, Any, Final, cast

from faststream.opentelemetry import TelemetrySettingsProvider
from faststream.opentelemetry.consts import MESSAGING_DESTINATION_PUBLISH_NAME
from faststream.opentelemetry.middleware import BaseTelemetryMiddleware, TelemetryMiddleware
from faststream.response import PublishCommand
from opentelemetry import context, trace
from opentelemetry.context import Context
from opentelemetry.semconv.trace import SpanAttributes
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from nightmail.broker.subscriber import OutboxSubscriber
from nightmail.describing import describe, one_line
from nightmail.durations import Duration, as_timedelta
from nightmail.message import DeadDelivery, Delivery

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from faststream.message import StreamMessage
    from opentelemetry.metrics import Meter, MeterProvider
    from opentelemetry.trace import SpanContext, TracerProvider

    from nightmail.broker._upstream import ContextRepo
    from nightmail.broker.received import Received, ReceivedBatch

SYSTEM: Final = "nightmail"
REDRIVEN: Final = "nightmail-redriven"
"""The header of a message that was a dead letter."""
_propagator: Final = TraceContextTextMapPropagator()


class OutboxTelemetryMiddleware(TelemetryMiddleware[PublishCommand]):
    """Makes spans, and carries the trace from the publisher to the handler in the headers.

    The span of a handler is a child of the publisher's when it is the first run of a message that was claimed within
    `link_after` of its publish. Otherwise it begins a trace of its own, with a link to the publisher's span: a trace
    that is open for days, or grows with every retry, is useless. Batches are always linked.
    """

    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        meter: Meter | None = None,
        include_messages_counters: bool = True,
        link_after: Duration = timedelta(minutes=1),
    ) -> None:
        super().__init__(
            settings_provider_factory=lambda _: OutboxTelemetrySettingsProvider(),
            tracer_provider=tracer_provider,
            meter_provider=meter_provider,
            meter=meter,
            include_messages_counters=include_messages_counters,
        )
        self._link_after = as_timedelta("link_after", link_after)

    def __call__(
        self, msg: Any | None, /, *, context: ContextRepo
    ) -> BaseTelemetryMiddleware[PublishCommand]:
        """The middleware of one message."""
        return _LinkingMiddleware(
            msg,
            link_after=self._link_after,
            tracer=self._tracer,
            metrics_container=self._metrics,
            settings_provider_factory=self._settings_provider_factory,
            context=context,
        )


class _Redacting:
    """A tracer whose spans describe an error as a dead letter would: without any text quoted from the message."""

    def __init__(self, tracer: trace.Tracer, describe: Callable[[Exception], str | None]) -> None:
        self._tracer = tracer
        self._describe = describe

    def start_span(self, *args: Any, **options: Any) -> trace.Span:
        """See `Tracer`."""
        return self._tracer.start_span(*args, **options)

    @contextmanager
    def start_as_current_span(self, *args: Any, **options: Any) -> Iterator[trace.Span]:
        """See `Tracer`."""
        plain = {**options, "record_exception": False, "set_status_on_exception": False}
        with self._tracer.start_as_current_span(*args, **plain) as span:
            try:
                yield span
            except Exception as error:
                _record(span, error, one_line(self._describe(error) or type(error).__name__))
                raise


def _record(span: trace.Span, error: Exception, said: str) -> None:
    kind = type(error)
    span.add_event(
        "exception",
        {
            "exception.type": f"{kind.__module__}.{kind.__qualname__}",
            "exception.message": said,
            # Where, not what: the frames have lines of code, and no values.
            "exception.stacktrace": "".join(format_tb(error.__traceback__)),
        },
    )
    span.set_status(trace.Status(trace.StatusCode.ERROR, said))


class _LinkingMiddleware(BaseTelemetryMiddleware[PublishCommand]):
    """FastStream's, except that a message that is no longer part of its publisher's trace gets its own."""

    def __init__(
        self, msg: Any | None, /, *, link_after: timedelta, tracer: trace.Tracer, **given: Any
    ) -> None:
        super().__init__(msg, tracer=cast("trace.Tracer", _Redacting(tracer, self._described)), **given)
        self._link_after = link_after

    def _described(self, error: Exception) -> str | None:
        """In the words of the subscriber whose handler raised it, if there is one."""
        handler = self.context.get_local("handler_")
        return handler.settings.described(error) if isinstance(handler, OutboxSubscriber) else describe(error)

    async def consume_scope(
        self, call_next: Callable[[StreamMessage[Any]], Awaitable[Any]], msg: StreamMessage[Any]
    ) -> Any:
        # A worker's tasks carry whatever span was open when the broker was started: no message belongs to that.
        token = context.attach(Context())
        try:
            if not msg.batch_headers and is_on_its_own(msg, self._link_after):
                return await self._linked(call_next, msg)
            return await super().consume_scope(call_next, msg)
        finally:
            context.detach(token)

    async def _linked(
        self, call_next: Callable[[StreamMessage[Any]], Awaitable[Any]], msg: StreamMessage[Any]
    ) -> Any:
        publisher = _span_context(msg.headers)

        async def with_link(_: StreamMessage[Any]) -> Any:
            if self._current_span is not None and publisher.is_valid:
                self._current_span.add_link(publisher)
            return await call_next(msg)

        # FastStream makes a child of whatever the headers name: they are hidden from it, but not from the handler.
        unrelated = copy(msg)
        unrelated.headers = {
            name: value for name, value in msg.headers.items() if name not in _propagator.fields
        }
        return await super().consume_scope(with_link, unrelated)


def is_on_its_own(msg: StreamMessage[Received | ReceivedBatch], link_after: timedelta) -> bool:
    """Whether a message is linked to its publisher's trace instead of being part of it."""
    delivery = _first(msg)
    return (
        delivery.attempts > 0
        or delivery.deliveries > 1
        or delivery.claimed_at - delivery.published_at >= link_after
        or isinstance(delivery, DeadDelivery)
        or REDRIVEN in msg.headers
    )


class OutboxTelemetrySettingsProvider(TelemetrySettingsProvider[Any, PublishCommand]):
    """Span attributes. From a command, only what every broker's has: a handler's may be for another broker."""

    __slots__ = ("messaging_system",)

    def __init__(self) -> None:
        self.messaging_system = SYSTEM

    def get_consume_attrs_from_message(self, msg: StreamMessage[Any]) -> dict[str, Any]:
        """See `TelemetrySettingsProvider`. Neither body, headers, timer id nor ordering key."""
        items = msg.raw_message.items
        delivery = items[0].delivery
        attributes = {
            SpanAttributes.MESSAGING_SYSTEM: self.messaging_system,
            SpanAttributes.MESSAGING_MESSAGE_ID: msg.message_id,
            SpanAttributes.MESSAGING_MESSAGE_CONVERSATION_ID: msg.correlation_id,
            SpanAttributes.MESSAGING_MESSAGE_PAYLOAD_SIZE_BYTES: sum(
                len(item.delivery.body) for item in items
            ),
            MESSAGING_DESTINATION_PUBLISH_NAME: delivery.queue,
        }
        if msg.batch_headers:
            attributes[SpanAttributes.MESSAGING_BATCH_MESSAGE_COUNT] = len(items)
            return attributes
        return attributes | {
            "nightmail.engine.attempt": delivery.attempt,
            "nightmail.deliveries": delivery.deliveries,
            "nightmail.late_seconds": (delivery.claimed_at - delivery.due_at).total_seconds(),
            "nightmail.age_seconds": (delivery.claimed_at - delivery.published_at).total_seconds(),
        }

    def get_consume_destination_name(self, msg: StreamMessage[Any]) -> str:
        """See `TelemetrySettingsProvider`. Of a batch, the queue of its first message."""
        return _first(msg).queue

    def get_publish_attrs_from_cmd(self, cmd: PublishCommand) -> dict[str, Any]:
        """See `TelemetrySettingsProvider`."""
        return {
            SpanAttributes.MESSAGING_SYSTEM: self.messaging_system,
            SpanAttributes.MESSAGING_DESTINATION_NAME: cmd.destination,
            SpanAttributes.MESSAGING_MESSAGE_CONVERSATION_ID: cmd.correlation_id or "",
        }

    def get_publish_destination_name(self, cmd: PublishCommand) -> str:
        """See `TelemetrySettingsProvider`."""
        return cmd.destination


def _first(msg: StreamMessage[Any]) -> Delivery:
    delivery: Delivery = msg.raw_message.items[0].delivery
    return delivery


def _span_context(headers: dict[str, Any]) -> SpanContext:
    return trace.get_current_span(_propagator.extract(headers, Context())).get_span_context()
