"""The test broker: the real workers, on virtual time and without a server."""

from __future__ import annotations

import warnings
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from datetime import UTC, datetime
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Unpack, overload
from unittest.mock import patch

from nightmail.broker._upstream import EnterType, TestBroker
from nightmail.broker.broker import OutboxBroker
from nightmail.broker.option_help import lists_options
from nightmail.broker.options import DeadOptions
from nightmail.broker.producer import OutboxProducer
from nightmail.durations import Duration, as_timedelta
from nightmail.records import DeadLetter, PendingMessage
from nightmail.testing.clock import ManualClock
from nightmail.testing.record import Published, RecordingProducer, observer_of
from nightmail.testing.stage import Stage
from nightmail.testing.stand_in import StandIn, standing_in

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nightmail.broker.commands import OutboxPublishCommand
    from nightmail.store import FullStore


class TestOutboxBroker(TestBroker[OutboxBroker, EnterType], broker=OutboxBroker):
    """Runs your handlers without a server and without waiting, whatever store the broker has.

        tb = TestOutboxBroker(broker)
        async with tb as br:
            await br.publish("hello", "greetings", activate_in=timedelta(days=30))
            await tb.advance(timedelta(days=30))

    What is published due now is handled before `publish` returns, and what a handler raises then comes out of
    `publish`; out of `advance` and `run` only its assertions do. With `raise_errors=False` errors are only kept in
    `errors`. With `manual=True` nothing is handled before `run` or `advance`. Time begins at `start`, or now, and moves
    only by `advance`. With `with_real=True` the broker's own store is used, in real time.
    """

    @overload
    def __init__(
        self: TestOutboxBroker[OutboxBroker],
        broker: OutboxBroker,
        /,
        *,
        with_real: bool = False,
        connect_only: bool | None = None,
        manual: bool = False,
        raise_errors: bool = True,
        start: datetime | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self: TestOutboxBroker[list[OutboxBroker]],
        *brokers: OutboxBroker,
        with_real: bool = False,
        connect_only: bool | None = None,
        manual: bool = False,
        raise_errors: bool = True,
        start: datetime | None = None,
    ) -> None: ...

    def __init__(
        self,
        *brokers: OutboxBroker,
        with_real: bool = False,
        connect_only: bool | None = None,
        manual: bool = False,
        raise_errors: bool = True,
        start: datetime | None = None,
    ) -> None:
        if start is not None and start.tzinfo is None:
            raise ValueError(
                "start must be an aware datetime: a naive one is a different moment on every machine"
            )
        with warnings.catch_warnings():
            # FastStream looks for a TestApp in the same `async with`, and warns if it does not understand that line.
            warnings.simplefilter("ignore", RuntimeWarning)
            super().__init__(*brokers, with_real=with_real, connect_only=connect_only)
        self.clock = ManualClock((start or datetime.now(UTC)).astimezone(UTC))
        """Shows the virtual time: give it to code of yours that asks for the time."""
        self._manual = manual
        self._raise_errors = raise_errors
        self._stage = Stage(self.brokers, self.clock)
        self._is_open = False

    # ── time ───────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def now(self) -> datetime:
        """The virtual time."""
        return self.clock.now()

    async def advance(self, by: Duration) -> None:
        """Let so much time pass: whatever is due on the way is handled, each at its own moment and in order."""
        self._refuse_closed("advance()")
        self._refuse_real_time("advance()")
        self._raise_failures(await self._stage.timeline.advance(as_timedelta("by", by)))

    async def run(self) -> None:
        """Handle what is due now, and what becomes due by that."""
        self._refuse_closed("run()")
        self._refuse_real_time("run()")
        self._raise_failures(await self._stage.timeline.run())

    # ── looking ────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def published(self) -> list[Published]:
        """Everything that was published and stored, in order."""
        return self._stage.record.published

    @property
    def errors(self) -> list[Exception]:
        """What handlers raised, in order."""
        return self._stage.timeline.errors

    async def pending(
        self,
        queue: str | None = None,
        *,
        due_before: datetime | None = None,
        limit: int = 100,
        session: object | None = None,
    ) -> list[PendingMessage]:
        """What waits, by due time: see `OutboxBroker.pending`."""
        self._refuse_closed("pending()")
        found = [
            message
            for broker in self._stage.separate
            for message in await broker.pending(queue, due_before=due_before, limit=limit, session=session)
        ]
        return sorted(found, key=attrgetter("due_at"))[:limit]

    @lists_options(DeadOptions)
    async def dead_letters(
        self,
        queue: str | None = None,
        *,
        limit: int = 100,
        cursor: int | None = None,
        **which: Unpack[DeadOptions],
    ) -> list[DeadLetter]:
        """What was given up, newest first: see `OutboxBroker.dead_letters`.

        Args:
            queue: Those that died in this queue.
            limit: At most so many.
            cursor: The id of the last one seen: those after it.
        """
        self._refuse_closed("dead_letters()")
        found = [
            letter
            for broker in self._stage.separate
            for letter in await broker.dead_letters(queue, limit=limit, cursor=cursor, **which)
        ]
        return sorted(found, key=attrgetter("died_at"), reverse=True)[:limit]

    # ── entering and leaving ───────────────────────────────────────────────────────────────────────────────

    @asynccontextmanager
    async def _create_ctx(self) -> AsyncIterator[list[OutboxBroker]]:
        self._stage = Stage(self.brokers, self.clock)
        async with AsyncExitStack() as stack:
            stack.callback(self._stage.close)
            stack.enter_context(self._opened())
            for broker in self.brokers:
                if _is_running(broker) and not self.with_real:
                    stack.enter_context(standing_in(broker, self._stand_in(broker)))
                    continue
                stack.enter_context(_put_back_running(broker))
                if self.with_real:
                    stack.enter_context(_producing(broker, RecordingProducer(broker, self._stage.record)))
                    self._fake_start(broker)
                else:
                    stack.enter_context(self._patch_broker(broker))
                await stack.enter_async_context(broker)
                await stack.enter_async_context(self._do_start(broker))
            yield list(self.brokers)

    @contextmanager
    def _opened(self) -> Iterator[None]:
        self._is_open = True
        try:
            yield
        finally:
            self._is_open = False

    @contextmanager
    def _patch_broker(self, broker: OutboxBroker) -> Iterator[None]:
        stand_in = self._stand_in(broker)
        with (
            patch.object(broker, "_store", stand_in.store),
            patch.object(broker.config.broker_config, "store", stand_in.store),
            patch.object(broker, "request", stand_in.request),
            _producing(broker, stand_in.producer),
            super()._patch_broker(broker),
        ):
            yield

    def _stand_in(self, broker: OutboxBroker) -> StandIn:
        store = self._stage.add(broker)
        producer = _HandlingProducer(broker, store, self._published)
        _connect(broker, producer)
        return StandIn(store, producer, partial(self._stage.request, broker))

    @contextmanager
    def _patch_producer(self, broker: OutboxBroker) -> Iterator[None]:
        # Done above: FastStream would not put it back when the block raises.
        yield

    async def _fake_connect(self, broker: OutboxBroker, *args: Any, **kwargs: Any) -> FullStore:  # type: ignore[override]
        _connect(broker, broker.config.broker_config.producer)
        return broker.store

    def _fake_start(self, broker: OutboxBroker, *args: Any, **kwargs: Any) -> None:
        """Have mocks record. Publishers hear of a publish itself, so they need no subscribers to listen for them."""
        # Only once: an application starts its brokers again, and what its hooks published stays recorded.
        for publisher in broker.publishers:
            if not publisher.is_test:
                publisher.set_test(with_fake=False)
        for subscriber in broker.subscribers:
            subscriber._build_fastdepends_model()
            for call in subscriber.calls:
                if not call.handler.is_test:
                    call.handler.set_test()
            if not self.with_real:
                subscriber._post_start()

    def _fake_close(self, broker: OutboxBroker, *args: Any, **kwargs: Any) -> None:
        for publisher in broker.publishers:
            publisher.reset_test()
        for subscriber in broker.subscribers:
            for call in subscriber.calls:
                call.handler.reset_test()

    def create_publisher_fake_subscriber(self, broker: OutboxBroker, publisher: Any) -> Any:
        """Not needed, see `_fake_start`."""
        raise NotImplementedError

    # ── publishing ─────────────────────────────────────────────────────────────────────────────────────────

    async def _published(self) -> None:
        """Something was published: handle what is due, unless a handler did it and all that comes anyway."""
        timeline = self._stage.timeline
        if self._manual or timeline.is_running_here:
            return
        errors = await timeline.run()
        if errors and self._raise_errors:
            raise errors[0]

    def _raise_failures(self, errors: list[Exception]) -> None:
        """Of what handlers raised while time passed, only their assertions come out: the rest is for their retries."""
        for error in errors:
            if isinstance(error, AssertionError) and self._raise_errors:
                raise error

    def _refuse_closed(self, what: str) -> None:
        # The broker has its own store then, which would be asked instead, and may be the one in production.
        if not self._is_open:
            raise RuntimeError(
                f"{what} is for within the block of the test broker, and `async with` is not open"
            )

    def _refuse_real_time(self, what: str) -> None:
        if self.with_real:
            raise RuntimeError(f"{what} needs virtual time, and with_real=True has the store's own")


class _HandlingProducer(OutboxProducer):
    """Publishes, and has handled what is due."""

    __slots__ = ("_handle",)

    def __init__(self, broker: OutboxBroker, store: FullStore, handle: Callable[[], Awaitable[None]]) -> None:
        super().__init__(store, parser=broker._parser, decoder=broker._decoder, observer=observer_of(broker))
        self._handle = handle

    async def publish(self, cmd: OutboxPublishCommand) -> int | None:
        """Store one message; it is handled when this returns, if it is due."""
        stored = await super().publish(cmd)
        await self._handle()
        return stored

    async def publish_batch(self, cmd: OutboxPublishCommand) -> list[int]:
        """Store all or none."""
        stored = await super().publish_batch(cmd)
        await self._handle()
        return stored


def _is_running(broker: OutboxBroker) -> bool:
    return broker.running or any(subscriber.running for subscriber in broker.subscribers)


def _connect(broker: OutboxBroker, producer: Any) -> None:
    config = broker.config.broker_config
    producer.connect(config.fd_config._serializer, config.broker_codec)


@contextmanager
def _producing(broker: OutboxBroker, producer: OutboxProducer) -> Iterator[None]:
    with patch.object(broker.config.broker_config, "producer", producer):
        yield


@contextmanager
def _put_back_running(broker: OutboxBroker) -> Iterator[None]:
    before = {subscriber: subscriber.running for subscriber in broker.subscribers}
    try:
        yield
    finally:
        for subscriber in broker.subscribers:
            subscriber.running = before.get(subscriber, False)
