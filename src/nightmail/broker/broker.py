"""The FastStream broker."""

from __future__ import annotations

import logging
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Unpack, cast

import anyio
import anyio.lowlevel
from fast_depends import dependency_provider
from faststream.exceptions import FeatureNotSupportedException, SetupError
from faststream.message import gen_cor_id
from faststream.middlewares import AckPolicy
from faststream.response.publish_type import PublishType
from faststream.specification.schema import BrokerSpec

from nightmail.broker._upstream import (
    EMPTY,
    BrokerUsecase,
    ContextRepo,
    FastDependsConfig,
    SendableMessage,
)
from nightmail.broker.commands import OutboxPublishCommand, due_from
from nightmail.broker.config import OutboxBrokerConfig
from nightmail.broker.logging import make_outbox_logger_state
from nightmail.broker.message import Received
from nightmail.broker.options import BrokerOptions, check_known, worker_options, worker_settings
from nightmail.broker.producer import OutboxProducer
from nightmail.broker.registrator import OutboxRegistrator
from nightmail.broker.subscriber import OutboxSubscriber
from nightmail.durations import Duration, as_timedelta
from nightmail.errors import StoreUnavailable
from nightmail.message import OnConflict, check_name, check_queue
from nightmail.observe import LoggingObserver
from nightmail.records import DeadFilter, DeadLetter, PendingMessage, QueueStats
from nightmail.store import FullStore
from nightmail.stores import DEFAULT_URL, open_store, public_url

if TYPE_CHECKING:
    from nightmail.stores import StoreSource


class OutboxBroker(OutboxRegistrator, BrokerUsecase[Received, FullStore, OutboxBrokerConfig]):
    """Publishes into, and delivers from, the database you already have.

    `store` is a URL, an SQLAlchemy `AsyncEngine`, a `Redis` or `RedisCluster` client, or any `Store`; without one it is
    an SQLite file, created on the spot. What you pass in, you close. Options about handling are the defaults of every
    subscriber.
    """

    def __init__(
        self,
        store: StoreSource | FullStore = DEFAULT_URL,
        *,
        tables: str | None = None,
        create_tables: bool | None = None,
        keep_delivered: bool = False,
        **options: Unpack[BrokerOptions],
    ) -> None:
        check_known("OutboxBroker", options, BrokerOptions)
        if options.get("ack_policy") is AckPolicy.ACK_FIRST:
            raise SetupError(
                "ACK_FIRST would delete messages before their handlers ran: leave it out to retry"
            )
        worker_settings(worker_options(options), options.get("graceful_timeout"))
        self._is_ours = not isinstance(store, FullStore)
        self._store = (
            store
            if isinstance(store, FullStore)
            else open_store(store, tables=tables, keep_delivered=keep_delivered)
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
        return OutboxBrokerConfig(
            store=self._store,
            worker_options=worker_options(options),
            observer=options.get("observer") or LoggingObserver(),
            producer=OutboxProducer(
                lambda: self._store, parser=options.get("parser"), decoder=options.get("decoder")
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

    async def start(self) -> None:
        """Connect, and start every subscriber."""
        await self.connect()
        # Loads what FastStream would load with the first message, which would be late by that.
        await anyio.lowlevel.checkpoint()
        await super().start()

    async def stop(
        self,
        exc_type: type[BaseException] | None = None,
        exc_val: BaseException | None = None,
        exc_tb: TracebackType | None = None,
    ) -> None:
        """Drain every subscriber at once, then let go of the store."""
        try:
            await super().stop(exc_type, exc_val, exc_tb)
        finally:
            self._connection = None
            await self._release()

    async def _release(self) -> None:
        if self._is_ours:
            await self._store.close()

    async def ping(self, timeout: float | None = 5.0) -> bool:
        """Whether the store answers in time and every started subscriber's worker is well."""
        with anyio.move_on_after(timeout):
            try:
                await self._store.ping()
            except StoreUnavailable:
                return False
            started = (sub for sub in self.subscribers if sub.running)
            return all(cast("OutboxSubscriber", sub).is_healthy for sub in started)
        return False

    # ── publish ────────────────────────────────────────────────────────────────────────────────────────────

    async def publish(
        self,
        message: SendableMessage,
        queue: str,
        *,
        session: object | None = None,
        activate_in: Duration | None = None,
        activate_at: datetime | None = None,
        timer_id: str | None = None,
        on_conflict: OnConflict = "skip",
        dedup_for: Duration | None = None,
        expires_in: Duration | None = None,
        ordering_key: str | None = None,
        priority: int = 0,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
    ) -> int | None:
        """Publish a message; its id, or `None` when its timer id was taken and nothing was stored.

        Args:
            message: What the handler gets: anything that can be encoded as JSON, or `str`, or `bytes`.
            queue: The queue to publish to.
            session: Your transaction. The message commits or rolls back with it; without one it commits by itself.
            activate_in: Deliver after this long, counted from this call. Nothing or less is now.
            activate_at: Deliver at this (aware) moment. The past is now.
            timer_id: A business key that at most one message of the queue bears.
            on_conflict: What to do when a waiting message bears that key: `skip` keeps the first, `replace` the last,
                `earliest` and `latest` whichever is due earlier or later, `raise` raises `TimerExists`.
            dedup_for: Let the key count as taken for this long, even once the message was delivered.
            expires_in: Do not deliver later than this; it becomes a dead letter instead.
            ordering_key: Messages with the same key are delivered one at a time, in order.
            priority: 0 to 9; higher goes first.
            headers: Headers for the handler.
            correlation_id: To trace the message by; made up when not given.
            reply_to: A queue for the handler's return value.
        """
        cmd = OutboxPublishCommand(
            (message,),
            queue=queue,
            session=session,
            due=due_from(activate_in, activate_at),
            timer_id=timer_id,
            on_conflict=on_conflict,
            dedup_for=None if dedup_for is None else as_timedelta("dedup_for", dedup_for),
            expires_in=None if expires_in is None else as_timedelta("expires_in", expires_in),
            ordering_key=ordering_key,
            priority=priority,
            headers=headers,
            correlation_id=correlation_id or self._correlation_from(headers),
            reply_to=reply_to,
        )
        stored: int | None = await self._basic_publish(cmd, producer=self.config.producer)
        return stored

    async def publish_batch(
        self,
        *messages: SendableMessage,
        queue: str,
        session: object | None = None,
        activate_in: Duration | None = None,
        activate_at: datetime | None = None,
        expires_in: Duration | None = None,
        ordering_key: str | None = None,
        priority: int = 0,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
    ) -> list[int]:
        """Publish all of these or none, in one statement; their ids, in order."""
        cmd = OutboxPublishCommand(
            messages,
            queue=queue,
            session=session,
            due=due_from(activate_in, activate_at),
            expires_in=None if expires_in is None else as_timedelta("expires_in", expires_in),
            ordering_key=ordering_key,
            priority=priority,
            headers=headers,
            correlation_id=correlation_id or self._correlation_from(headers),
            reply_to=reply_to,
            publish_type=PublishType.PUBLISH,
        )
        stored: list[int] = await self._basic_publish_batch(cmd, producer=self.config.producer)
        return stored

    def _correlation_from(self, headers: dict[str, Any] | None) -> str:
        given = (headers or {}).get("correlation_id")
        return given if isinstance(given, str) and given else self.config.id_generator()

    async def request(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Not offered: a durable message may be handled days later, when nobody waits for an answer."""
        raise FeatureNotSupportedException(
            "OutboxBroker has no request(): give reply_to a queue and subscribe to the answers"
        )

    # ── timers ─────────────────────────────────────────────────────────────────────────────────────────────

    async def cancel_timer(self, queue: str, timer_id: str, *, session: object | None = None) -> bool:
        """Remove a waiting timer; `True` only if this call removed it. A running one is never clobbered."""
        _check_timer(queue, timer_id)
        return await self._store.cancel(queue, timer_id, transaction=session)

    async def reschedule_timer(
        self,
        queue: str,
        timer_id: str,
        *,
        activate_in: Duration | None = None,
        activate_at: datetime | None = None,
        session: object | None = None,
    ) -> bool:
        """Move a waiting timer to another time; `True` if one moved. From its own handler, use `postpone`."""
        _check_timer(queue, timer_id)
        due = due_from(activate_in, activate_at)
        if due is None:
            raise ValueError("say when: give activate_in or activate_at")
        return await self._store.reschedule(queue, timer_id, due, transaction=session)

    async def has_pending(self, queue: str, timer_id: str) -> bool:
        """Whether a message with this timer id waits."""
        _check_timer(queue, timer_id)
        return bool(await self._store.peek(queue, timer_id=timer_id, limit=1))

    async def pending(
        self,
        queue: str | None = None,
        *,
        due_before: datetime | None = None,
        limit: int = 100,
        session: object | None = None,
    ) -> list[PendingMessage]:
        """Waiting messages by due time, without taking them; with `session`, what it has not committed too."""
        if queue is not None:
            check_queue(queue)
        _check_limit(limit)
        if due_before is not None:
            due_from(None, due_before)
        return await self._store.peek(queue, due_before=due_before, limit=limit, transaction=session)

    async def cancel_all(self, queue: str, *, session: object | None = None) -> int:
        """Remove every waiting message of a queue; how many. Running ones stay."""
        check_queue(queue)
        return await self._store.cancel_all(queue, transaction=session)

    # ── inspection ─────────────────────────────────────────────────────────────────────────────────────────

    async def dead_letters(
        self,
        queue: str | None = None,
        *,
        reason: str | None = None,
        error: str | None = None,
        older_than: Duration | None = None,
        ids: tuple[int, ...] | None = None,
        limit: int = 100,
        cursor: int | None = None,
    ) -> list[DeadLetter]:
        """Dead letters, newest first; `cursor` is the id of the last one seen."""
        _check_limit(limit)
        which = DeadFilter(
            queue=queue,
            reason=reason,
            error=error,
            older_than=None if older_than is None else as_timedelta("older_than", older_than),
            ids=ids,
        )
        return await self._store.dead(which, limit=limit, cursor=cursor)

    async def stats(self) -> dict[str, QueueStats]:
        """How each queue stands."""
        return await self._store.stats()


def _check_timer(queue: str, timer_id: str) -> None:
    check_queue(queue)
    check_name("timer_id", timer_id)


def _check_limit(limit: int) -> None:
    if limit < 1:
        raise ValueError(f"limit must be at least 1, not {limit}")
