"""Publishing from synchronous code, in its own transaction."""

from __future__ import annotations

from collections.abc import Coroutine
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, cast

from nightmail.broker.commands import OutboxPublishCommand, correlation_from, due_from
from nightmail.broker.options import PublishOptions, TimerOptions, check_known
from nightmail.current import own_delivery
from nightmail.durations import Duration
from nightmail.message import check_name, check_queue
from nightmail.observe import Observer
from nightmail.store import Blocking, FullStore

if TYPE_CHECKING:
    from nightmail.broker._upstream import SendableMessage
    from nightmail.broker.broker import OutboxBroker
    from nightmail.broker.config import OutboxBrokerConfig
    from nightmail.broker.producer import OutboxProducer

T = TypeVar("T")


class SyncPublisher:
    """Publishes in a transaction of SQLAlchemy's synchronous `Session` or `Connection`, of Django, or of a driver.

    `session` is always needed: without a transaction of yours there would be nobody to commit. The broker need not be
    connected, and its middlewares, which are asynchronous, are not asked.
    """

    def __init__(self, broker: OutboxBroker) -> None:
        if not broker.store.capabilities.blocking:
            raise TypeError(
                f"synchronous code cannot publish to {broker.store.capabilities.name}: its pipelines are asynchronous"
            )
        self._broker = broker

    @property
    def _store(self) -> FullStore:
        return self._broker.store

    @property
    def _observer(self) -> Observer:
        return cast("OutboxBrokerConfig", self._broker.config.broker_config).observer

    def publish(self, message: SendableMessage, queue: str, **options: Unpack[TimerOptions]) -> int | None:
        """Publish a message; its id, or `None` when its timer id was taken and nothing was stored."""
        check_known("publish()", options, TimerOptions)
        cmd = self._command((message,), queue, options)
        (encoded,) = self._encoded(cmd)
        own = own_delivery(self._store, encoded.queue, encoded.timer_id)
        stored = at_once(self._store.publish(encoded, transaction=cmd.session, own=own))
        if stored is not None:
            self._observer.published(queue, 1)
        return stored

    def publish_batch(
        self, *messages: SendableMessage, queue: str, **options: Unpack[PublishOptions]
    ) -> list[int]:
        """Publish all of these or none, in one statement; their ids, in order."""
        check_known("publish_batch()", options, PublishOptions)
        cmd = self._command(messages, queue, cast("TimerOptions", options))
        stored = at_once(self._store.publish_batch(self._encoded(cmd), transaction=cmd.session))
        if stored:
            self._observer.published(queue, len(stored))
        return stored

    def cancel_timer(self, queue: str, timer_id: str, *, session: object) -> bool:
        """Remove a waiting timer; `True` only if this call removed it. A running one is never clobbered."""
        check_queue(queue)
        check_name("timer_id", timer_id)
        return at_once(self._store.cancel(queue, timer_id, transaction=_blocking(session)))

    def reschedule_timer(
        self,
        queue: str,
        timer_id: str,
        *,
        session: object,
        activate_in: Duration | None = None,
        activate_at: datetime | None = None,
    ) -> bool:
        """Move a waiting timer to another time; `True` if one moved."""
        check_queue(queue)
        check_name("timer_id", timer_id)
        due = due_from(activate_in, activate_at)
        if due is None:
            raise ValueError("say when: give activate_in or activate_at")
        return at_once(self._store.reschedule(queue, timer_id, due, transaction=_blocking(session)))

    def _command(self, bodies: tuple[Any, ...], queue: str, options: TimerOptions) -> OutboxPublishCommand:
        options["session"] = _blocking(options.get("session"))
        options["correlation_id"] = correlation_from(options, self._broker.config.id_generator)
        return OutboxPublishCommand.of(bodies, queue, options)

    def _encoded(self, cmd: OutboxPublishCommand) -> Any:
        config = self._broker.config.broker_config
        producer = cast("OutboxProducer", config.producer)
        # A broker that was never connected has not told its producer yet how to encode.
        producer.connect(config.fd_config._serializer, config.broker_codec)
        return at_once(producer.encoded(cmd))


def _blocking(session: object | None) -> Blocking:
    if session is None:
        raise ValueError("session is missing: give the transaction that the message shall commit with")
    return Blocking(session)


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """The result of what never waits for anything."""
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    work.close()
    raise RuntimeError("this would have to wait, which synchronous code cannot: is the codec asynchronous?")
