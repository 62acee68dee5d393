"""Secrets in a message and in a URL: where they may not turn up, whatever goes wrong.

Names (queues, timer ids, ordering keys) are shown to operators by commands, so no secret belongs in them. But logs,
errors, metrics and spans are read by more people, and have only the queue.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import traceback
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar, Final

import pydantic
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry, generate_latest

from nightmail import ConstantRetry, NoRetry, OutboxBroker
from nightmail.broker.opentelemetry import OutboxTelemetryMiddleware
from nightmail.broker.prometheus import OutboxPrometheusMiddleware
from nightmail.cli.exit_codes import UNREACHABLE
from nightmail.errors import NightmailError
from nightmail.observe import Observers
from nightmail.outcome import Dead
from nightmail.records import DeadFilter
from nightmail.stores import open_store
from nightmail.telemetry.opentelemetry import OpenTelemetryObserver
from nightmail.telemetry.prometheus import PrometheusObserver
from nightmail.testing.conformance.build import claim_all, message, timer
from tests.broker.support import Heard, started
from tests.cli.support import nightmail
from tests.stores.shared.backend import Backend
from tests.stores.support import settle

BODY, HEADER = "canary-in-the-body", "canary-in-a-header"
TIMER, KEY = "canary-as-timer-id", "canary-as-ordering-key"
CONTENT: Final = (BODY, HEADER)
ALL: Final = (*CONTENT, TIMER, KEY)
PASSWORD: Final = "canary-as-password"


def assert_untold(said: str, secrets: tuple[str, ...] = ALL) -> None:
    """None of the secrets is in it, neither as it is nor in hexadecimal."""
    for secret in secrets:
        assert secret not in said
        assert secret.encode().hex() not in said.lower()


class Order(pydantic.BaseModel):
    """What the handler asks for, and the message is not."""

    total: int


class Everything:
    """All that a broker tells: its log, its metrics, its spans."""

    def __init__(self, log: pytest.LogCaptureFixture) -> None:
        log.set_level(logging.INFO)
        for ours in ("tests.canaries", "nightmail"):
            log.set_level(logging.DEBUG, logger=ours)
        self._log = log
        self._registry = CollectorRegistry()
        self._provider = TracerProvider()
        self._spans = InMemorySpanExporter()
        self._provider.add_span_processor(SimpleSpanProcessor(self._spans))
        self._meters = InMemoryMetricReader()
        self.meter_provider = MeterProvider(metric_readers=[self._meters])
        self.heard = Heard()
        counted = OpenTelemetryObserver(meter_provider=self.meter_provider)
        self.options: dict[str, Any] = {
            "logger": logging.getLogger("tests.canaries"),
            "observer": Observers(self.heard, PrometheusObserver(registry=self._registry), counted),
            "middlewares": [
                OutboxTelemetryMiddleware(tracer_provider=self._provider, meter_provider=self.meter_provider),
                OutboxPrometheusMiddleware(registry=self._registry),
            ],
        }

    def told(self) -> str:
        """Log, metrics and spans, as text."""
        spans = [span.to_json() for span in self._spans.get_finished_spans()]
        metrics = generate_latest(self._registry).decode()
        measured = self.measured()
        records = [f"{record.getMessage()} {record.__dict__}" for record in self._log.records]
        assert spans
        # Of the middleware, and of the observer.
        assert "messaging." in measured
        assert "nightmail." in measured
        assert '"mail"' in measured
        assert "mail" in metrics
        assert records
        return "\n".join([*records, self._log.text, metrics, measured, *spans])

    def measured(self) -> str:
        """The metrics of OpenTelemetry, as a reader collects them."""
        found = self._meters.get_metrics_data()
        return "" if found is None else found.to_json()

    def close(self) -> None:
        self._provider.shutdown()
        self.meter_provider.shutdown()


def heard_of(heard: Heard, sent: int | None) -> bool:
    """Whether this message has ended."""
    return len(heard.of(sent)) == 1


def unused_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


class Canaries:
    """For every store that more than one process can use."""

    unreachable: ClassVar[str | None] = None
    """The URL of a server that is not there, with `{password}` and `{port}`; without it there are no passwords."""

    @pytest.fixture
    def everything(self, caplog: pytest.LogCaptureFixture) -> Iterator[Everything]:
        """Watches a broker that gets its options."""
        watching = Everything(caplog)
        yield watching
        watching.close()

    async def break_down(self, backend: Any) -> None:
        """Make the store unavailable."""
        await asyncio.to_thread(backend.server.kill)

    async def come_back(self, backend: Any) -> None:
        """Undo that."""
        await asyncio.to_thread(backend.server.start)

    async def test_a_failing_handler_tells_no_secret(self, backend: Backend, everything: Everything) -> None:
        broker = OutboxBroker(backend.url, create_tables=True, retry=NoRetry(), **everything.options)

        @broker.subscriber("mail")
        async def handle(order: Order) -> None: ...

        @broker.subscriber("again", retry=ConstantRetry(delay=timedelta(hours=1)))
        async def repeat(order: Order) -> None: ...

        heard = everything.heard
        async with started(broker):
            for body in ({"total": BODY}, BODY):
                sent = await broker.publish(
                    body, "mail", headers={"h": HEADER}, timer_id=TIMER, ordering_key=KEY
                )
                await heard.until(partial(heard_of, heard, sent))
            letters = await broker.store.dead(DeadFilter(), limit=10)
            assert all(isinstance(outcome, Dead) for _, outcome in heard.outcomes)
            sent = await broker.publish({"total": BODY}, "again", headers={"h": HEADER}, ordering_key=KEY)
            await heard.until(partial(heard_of, heard, sent))
            (waiting,) = await broker.store.find([sent or 0])

        assert_untold(everything.told())
        assert waiting.last_error is not None
        assert waiting.last_error.startswith("ValidationError")
        assert_untold(waiting.last_error)
        assert len(letters) == 2
        for letter in letters:
            assert letter.error is not None
            assert_untold(letter.error)
            assert_untold(repr(letter))

    async def test_an_outage_tells_no_secret(self, backend: Backend, everything: Everything) -> None:
        broker = OutboxBroker(backend.url, create_tables=True, **everything.options)
        begun, may_end = asyncio.Event(), asyncio.Event()

        @broker.subscriber("mail")
        async def handle(body: str) -> None:
            begun.set()
            await may_end.wait()

        secret = message(BODY.encode(), queue="mail", headers={"h": HEADER}, timer_id=TIMER, ordering_key=KEY)
        errors = []
        async with started(broker):
            await broker.publish(BODY, "mail", headers={"h": HEADER}, timer_id=TIMER, ordering_key=KEY)
            async with asyncio.timeout(60):
                await begun.wait()
            await self.break_down(backend)
            try:
                may_end.set()
                for verb in (
                    lambda: broker.store.publish(secret),
                    lambda: broker.store.publish_batch([message(BODY.encode())]),
                    lambda: broker.store.cancel("mail", TIMER),
                    lambda: claim_all(broker.store, "mail"),
                ):
                    with pytest.raises(NightmailError) as raised:
                        await verb()
                    errors += traceback.format_exception(raised.value)
            finally:
                await self.come_back(backend)

        assert errors
        assert_untold("".join(errors))
        assert_untold(everything.told())

    async def test_values_show_no_content(self, backend: Backend) -> None:
        secret = timer(TIMER, BODY.encode(), headers={"h": HEADER}, ordering_key=KEY)
        async with backend.opened() as store:
            await store.publish(secret)
            (waiting,) = await store.peek(secret.queue)
            (delivery,) = await claim_all(store, secret.queue)
            (stored,) = await store.find([delivery.id])
            await settle(store, [delivery], Dead("rejected"))
            (letter,) = await store.dead(DeadFilter(), limit=1)

            for shown in (secret, waiting, delivery, stored, letter, store):
                assert_untold(repr(shown))
            assert str(delivery.token) not in repr(delivery)

    async def test_a_server_that_is_not_there_tells_no_password(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        if self.unreachable is None:
            pytest.skip("no server, no password")
        caplog.set_level(logging.DEBUG)
        url = self.unreachable.format(password=PASSWORD, port=unused_port())
        broker = OutboxBroker(url, logger=logging.getLogger("tests.canaries"))
        store = open_store(url)

        with pytest.raises(NightmailError) as raised:
            await broker.start()
        await broker.stop()

        said = "".join(traceback.format_exception(raised.value))
        for told in (said, repr(broker), repr(store), str(broker.specification), caplog.text):
            assert_untold(told, (PASSWORD,))


class CanariesOnTheCommandLine:
    """What commands show."""

    unreachable: ClassVar[str | None] = None
    """As in `Canaries`."""

    def test_no_command_shows_a_password(self) -> None:
        if self.unreachable is None:
            pytest.skip("no server, no password")
        url = self.unreachable.format(password=PASSWORD, port=unused_port())

        for command in (["status", "--over", "0"], ["list"], ["check"], ["migrate"]):
            ran = nightmail(*command, url=url)
            assert ran.code == UNREACHABLE
            assert "127.0.0.1" in ran.err
            assert_untold(ran.out + ran.err, (PASSWORD,))

    def test_no_command_shows_content_unless_asked(self, backend: Backend) -> None:
        url = backend.url

        async def fill() -> None:
            async with backend.opened() as store:
                await store.publish(message(BODY.encode(), queue="mail", headers={"h": HEADER}))
                (delivery,) = await claim_all(store, "mail")
                await settle(store, [delivery], Dead("rejected", "no such customer"))
                await store.publish(message(BODY.encode(), queue="mail", headers={"h": HEADER}))

        asyncio.run(fill())
        for command in (
            ["status", "--over", "0"],
            ["list"],
            ["dead", "list"],
            ["dead", "groups"],
            ["dead", "redrive", "mail", "--dry-run"],
        ):
            for more in ([], ["--json"]):
                ran = nightmail(*command, *more, url=url)
                assert "mail" in ran.out + ran.err, command
                assert_untold(ran.out + ran.err, CONTENT)
