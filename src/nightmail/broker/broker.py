"""The FastStream broker."""

from __future__ import annotations

import asyncio
import logging
import time
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Unpack, cast

import anyio
import anyio.lowlevel
from fast_depends import dependency_provider
from faststream.exceptions import FeatureNotSupportedException, SetupError
from faststream.message import gen_cor_id
from faststream.specification.schema import BrokerSpec

from nightmail.broker._upstream import (
    EMPTY,
    BrokerUsecase,
    ContextRepo,
    FastDependsConfig,
    SendableMessage,
)
from nightmail.broker.commands import OutboxPublishCommand, correlation_from
from nightmail.broker.config import OutboxBrokerConfig
from nightmail.broker.counted import must_be_awaited
from nightmail.broker.joining import check_session_factory
from nightmail.broker.logging import Adopted, log_of, make_outbox_logger_state
from nightmail.broker.message import OutboxMessage
from nightmail.broker.mistakes import NEVER_STARTED, shared_queues
from nightmail.broker.operating import Operating
from nightmail.broker.option_checks import check_options
from nightmail.broker.option_help import lists_options
from nightmail.broker.options import (
    BrokerOptions,
    NoMoreOptions,
    PublishOptions,
    TimerOptions,
    worker_options,
    worker_settings,
)
from nightmail.broker.producer import OutboxProducer
from nightmail.broker.received import Received, ReceivedBatch
from nightmail.broker.registrator import OutboxRegistrator
from nightmail.broker.steering import Steering
from nightmail.broker.subscriber import OutboxSubscriber
from nightmail.broker.timers import Timers
from nightmail.describing import one_line
from nightmail.durations import Duration
from nightmail.engine.shutdown import ends_by, undisturbed
from nightmail.errors import StoreUnavailable
from nightmail.limits import MAX_BODY_BYTES
from nightmail.message import OnConflict
from nightmail.observe import LoggingObserver, Observer, Observers
from nightmail.store import CLOSE_SECONDS, FullStore
from nightmail.stores import DEFAULT_URL, open_store, public_url

if TYPE_CHECKING:
    from nightmail.stores import StoreSource


class OutboxBroker(
    OutboxRegistrator,
    Timers,
    Operating,
    Steering,
    BrokerUsecase[Received | ReceivedBatch, FullStore, OutboxBrokerConfig],
):
    """Publishes into, and delivers from, the database you already have.

    `store` is a URL, an SQLAlchemy `AsyncEngine`, a `Redis` or `RedisCluster` client, or any `Store`; without one it is
    an SQLite file, created on the spot. What you pass in, you close. Options about handling are the defaults of every
    subscriber. A body over `max_body_bytes` is refused at publish; give every process of one store the same limit.
    """

    @lists_options(BrokerOptions)
    def __init__(
        self,
        store: StoreSource | FullStore = DEFAULT_URL,
        *,
        tables: str | None = None,
        create_tables: bool | None = None,
        keep_delivered: bool = False,
        max_body_bytes: int = MAX_BODY_BYTES,
        **options: Unpack[BrokerOptions],
    ) -> None:
        """A broker on this store.

        Args:
            store: Where messages are stored.
            tables: The schema or prefix of the tables, as the store takes it.
            create_tables: Create or update the tables at the start; by default only where nothing else shares them.
            keep_delivered: Keep what was delivered, until a `Cleaner` deletes it.
            max_body_bytes: Refuse larger bodies.
        """
        check_options("OutboxBroker", options, BrokerOptions)
        worker_settings(worker_options(options), options.get("graceful_timeout"))
        check_session_factory(options.get("session_factory"))
        check_session_factory(options.get("sync_session_factory"), blocking=True)
        self._is_ours = not isinstance(store, FullStore)
        self._is_starting = False
        self._stop_came = False
        self._was_started = False
        self._adopted: Adopted | None = None
        if isinstance(store, FullStore):
            _refuse_for_ready_store(
                tables=tables is not None,
                keep_delivered=keep_delivered,
                max_body_bytes=max_body_bytes != MAX_BODY_BYTES,
            )
            self._store = store
        else:
            self._store = open_store(
                store, tables=tables, keep_delivered=keep_delivered, max_body_bytes=max_body_bytes
            )
        if options.get("session_factory") is not None and not self._store.capabilities.transactions:
            raise SetupError(
                f"session_factory needs a store that joins SQL transactions; {self._store.capabilities.name} does not"
            )
        if options.get("sync_session_factory") is not None and not self._store.capabilities.blocking:
            raise SetupError(
                "sync_session_factory needs a store that joins transactions of synchronous code; "
                f"{self._store.capabilities.name} does not"
            )
        self._create_tables = self._store.capabilities.embedded if create_tables is None else create_tables
        url = options.get("specification_url") or public_url(store, self._store)
        super().__init__(
            config=self._configured(options),
            routers=options.get("routers", ()),
            specification=BrokerSpec(
                url=[url],
                protocol=options.get("protocol") or url.partition(":")[0],
                protocol_version=options.get("protocol_version") or "custom",
                description=options.get("description"),
                security=None,
                tags=options.get("tags", ()),
            ),
        )

    def _configured(self, options: BrokerOptions) -> OutboxBrokerConfig:
        observer = Observers(*_observers(options.get("observer")))
        return OutboxBrokerConfig(
            store=self._store,
            session_factory=options.get("session_factory"),
            sync_session_factory=options.get("sync_session_factory"),
            worker_options=worker_options(options),
            observer=observer,
            access_log_level=options.get("log_level", logging.DEBUG),
            producer=OutboxProducer(
                self._store,
                parser=options.get("parser"),
                decoder=options.get("decoder"),
                observer=observer,
            ),
            broker_middlewares=options.get("middlewares", ()),
            broker_parser=options.get("parser"),
            broker_decoder=options.get("decoder"),
            broker_codec=options.get("codec"),
            broker_dependencies=options.get("dependencies", ()),
            logger=make_outbox_logger_state(
                logger=options.get("logger", EMPTY), log_level=options.get("log_level", logging.INFO)
            ),
            fd_config=FastDependsConfig(
                use_fastdepends=options.get("apply_types", True),
                serializer=options.get("serializer", EMPTY),
                provider=options.get("provider") or dependency_provider,
                context=options.get("context") or ContextRepo(),
            ),
            graceful_timeout=options.get("graceful_timeout", 15.0),
            ack_policy=options.get("ack_policy", EMPTY),
            id_generator=options.get("id_generator") or gen_cor_id,
            extra_context={"broker": self},
            underlying_driver_annotations=options.get("underlying_driver_annotations") or {},
        )

    # ── life ───────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def store(self) -> FullStore:
        """The store behind this broker."""
        return self._store

    async def _connect(self) -> FullStore:
        config = self.config.broker_config
        cast("OutboxProducer", config.producer).connect(config.fd_config._serializer, config.broker_codec)
        await self._store.open()
        try:
            if self._create_tables:
                await self._store.migrate()
            await self._store.check()
        except BaseException:
            await self._release()
            raise
        return self._store

    def _setup_logger(self) -> None:
        super()._setup_logger()
        if (log := log_of(self.config.logger)) is not None:
            self._own_config.observer.log_through(log)
            self._adopted = self._adopted or Adopted.by(log)

    async def start(self) -> None:
        """Connect, and start every subscriber. If it fails or is cancelled, those that run are stopped again."""
        self._is_starting, self._stop_came = True, False
        self._was_started = True
        try:
            await self.connect()
            for line in shared_queues(cast("list[OutboxSubscriber]", self.subscribers)):
                self._say(logging.WARNING, line)
            # Loads what FastStream would load with the first message, delaying it.
            await anyio.lowlevel.checkpoint()
            if not self._stop_came:
                await super().start()
        except BaseException:
            await undisturbed(asyncio.create_task(self._stop()))
            raise
        finally:
            self._is_starting = False
        if self._stop_came:
            # An ASGI server that is stopped while it starts does this: what has started since must not run on.
            await self._stop()

    def _say(self, level: int, line: str) -> None:
        (log_of(self.config.logger) or logging.getLogger("nightmail").log)(level, one_line(line, 1000))

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        if exc_val is None and not self._was_started and any(sub.calls for sub in self.subscribers):
            self._say(logging.INFO, NEVER_STARTED)
        await super().__aexit__(exc_type, exc_val, exc_tb)

    def _update_fd_config(self, config: FastDependsConfig) -> None:
        super()._update_fd_config(config)
        if config.get_dependent:
            # FastAPI's dependencies look into the application's own context, where FastStream puts nothing.
            self._own_config.application_contexts += (config.context,)

    @property
    def _own_config(self) -> OutboxBrokerConfig:
        return cast("OutboxBrokerConfig", self.config.broker_config)

    async def stop(
        self,
        exc_type: type[BaseException] | None = None,
        exc_val: BaseException | None = None,
        exc_tb: TracebackType | None = None,
    ) -> None:
        """Drain every subscriber at once, then release the store: at most `graceful_timeout` and 5 s.

        Cancelling it ends the grace period. The store is closed only when everything is handed back.
        """
        self._stop_came = True
        stopping = asyncio.create_task(self._stop(exc_type, exc_val, exc_tb))
        try:
            await asyncio.shield(stopping)
        except asyncio.CancelledError:
            for subscriber in self.subscribers:
                cast("OutboxSubscriber", subscriber).hurry()
            await undisturbed(stopping)
            raise

    async def _stop(self, *error: Any) -> None:
        try:
            await super().stop(*error)
        finally:
            self._connection = None
            await self._release()
            if self._adopted is not None:
                self._adopted.close()
                self._adopted = None

    async def _release(self) -> None:
        if self._is_ours:
            closing = asyncio.ensure_future(self._store.close())
            if await ends_by(time.monotonic() + CLOSE_SECONDS, closing):
                closing.result()

    async def ping(self, timeout: float | None = 5.0) -> bool:
        """Whether it is connected, the store answers in time and every started subscriber's worker is well."""
        if self._connection is None or self._is_starting:
            # An ASGI application reports that it is up before its brokers are: only this tells when they are.
            return False
        with anyio.move_on_after(timeout):
            try:
                await self._store.ping()
            except StoreUnavailable:
                return False
            started = (sub for sub in self.subscribers if sub.running)
            return all(cast("OutboxSubscriber", sub).is_healthy for sub in started)
        return False

    # ── publish ────────────────────────────────────────────────────────────────────────────────────────────

    @must_be_awaited
    @lists_options(TimerOptions)
    async def publish(
        self,
        message: SendableMessage,
        queue: str,
        *,
        # Named here too, for editors: they show neither what `Unpack` unpacks nor its defaults. A test compares.
        activate_in: Duration | None = None,
        activate_at: datetime | None = None,
        expires_in: Duration | None = None,
        ordering_key: str | None = None,
        priority: int = 0,
        headers: dict[str, Any] | None = None,
        reply_to: str = "",
        session: object | None = None,
        correlation_id: str | None = None,
        timer_id: str | None = None,
        on_conflict: OnConflict = "skip",
        dedup_for: Duration | None = None,
        **unknown: Unpack[NoMoreOptions],
    ) -> int | None:
        """Publish a message; its id, or `None` when its timer id was taken and nothing was stored.

        Args:
            message: What the handler gets: anything that can be encoded as JSON, or `str`, or `bytes`.
            queue: The queue of its subscribers.
        """
        if unknown:
            check_options("publish()", unknown, TimerOptions)
        options: TimerOptions = {
            "activate_in": activate_in,
            "activate_at": activate_at,
            "expires_in": expires_in,
            "ordering_key": ordering_key,
            "priority": priority,
            "headers": headers,
            "reply_to": reply_to,
            "session": session,
            "correlation_id": correlation_id,
            "timer_id": timer_id,
            "on_conflict": on_conflict,
            "dedup_for": dedup_for,
        }
        options["correlation_id"] = correlation_from(options, self.config.id_generator)
        cmd = OutboxPublishCommand((message,), queue, options)
        stored: int | None = await self._basic_publish(cmd, producer=self.config.producer)
        return stored

    @must_be_awaited
    @lists_options(PublishOptions)
    async def publish_batch(
        self, *messages: SendableMessage, queue: str, **options: Unpack[PublishOptions]
    ) -> list[int]:
        """Publish all of these or none, in one statement; their ids, in order.

        Args:
            messages: What handlers get, each like `message` of `publish`.
            queue: The queue of their subscribers.
        """
        check_options("publish_batch()", options, PublishOptions)
        options["correlation_id"] = correlation_from(options, self.config.id_generator)
        cmd = OutboxPublishCommand(messages, queue, cast("TimerOptions", options))
        stored: list[int] = await self._basic_publish_batch(cmd, producer=self.config.producer)
        return stored

    @lists_options(TimerOptions)
    async def request(
        self,
        message: SendableMessage,
        queue: str,
        timeout: float = 30.0,
        **options: Unpack[TimerOptions],
    ) -> OutboxMessage:
        """Only for tests: publish under a `TestOutboxBroker`, and get what the handler returned.

        Elsewhere it raises: a durable message may be handled days later, when nothing waits for an answer.

        Args:
            message: What the handler gets: anything that can be encoded as JSON, or `str`, or `bytes`.
            queue: The queue of its subscribers.
            timeout: How many seconds to wait for the handler.
        """
        raise FeatureNotSupportedException(
            "OutboxBroker has no request(): give reply_to a queue and subscribe to the answers"
        )


def _refuse_for_ready_store(**given: bool) -> None:
    """A store that is made already has these from its own arguments: here they would have no effect."""
    for option, is_given in given.items():
        if is_given:
            raise SetupError(
                f"{option} has no effect on a store that is made already: give it to the store, "
                "or give the broker a URL"
            )


def _observers(given: Observer | None) -> tuple[Observer, ...]:
    """The observers: always the log, for without it no failure would be reported."""
    if given is None:
        return (LoggingObserver(),)
    return (given,) if Observers(given).logs else (LoggingObserver(), given)
