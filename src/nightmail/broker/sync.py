"""Publishing from synchronous code, in its own transaction."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from datetime import datetime
from typing import TYPE_CHECKING, Any, Unpack, cast

from nightmail.broker.at_once import at_once
from nightmail.broker.commands import OutboxPublishCommand, correlation_from, due_from
from nightmail.broker.joining import check_session
from nightmail.broker.option_checks import check_options
from nightmail.broker.option_help import lists_options
from nightmail.broker.options import PublishOptions, TimerOptions
from nightmail.durations import Duration
from nightmail.engine.current import own_delivery
from nightmail.engine.threads import current_call
from nightmail.message import check_name, check_queue
from nightmail.observe import Observer
from nightmail.store import Blocking, FullStore

if TYPE_CHECKING:
    from nightmail.broker._upstream import SendableMessage
    from nightmail.broker.broker import OutboxBroker
    from nightmail.broker.config import OutboxBrokerConfig
    from nightmail.broker.producer import OutboxProducer


class SyncPublisher:
    """Publishes in a transaction of SQLAlchemy's synchronous `Session` or `Connection`, of Django, or of a driver.

    The broker need not be connected, and its middlewares, which are asynchronous, are not asked.

    In a `def` handler `session` may be left out: then the message is stored by its own commit, by the broker, when the
    call returns. Everywhere else it is needed: without a transaction of yours nothing would be committed.
    """

    def __init__(self, broker: OutboxBroker) -> None:
        self._broker = broker

    @property
    def _store(self) -> FullStore:
        return self._broker.store

    @property
    def _observer(self) -> Observer:
        return cast("OutboxBrokerConfig", self._broker.config.broker_config).observer

    @lists_options(TimerOptions)
    def publish(self, message: SendableMessage, queue: str, **options: Unpack[TimerOptions]) -> int | None:
        """Publish a message; its id, or `None` when its timer id was taken and nothing was stored.

        Args:
            message: What the handler gets: anything that can be encoded as JSON, or `str`, or `bytes`.
            queue: The queue of its subscribers.
        """
        check_options("publish()", options, TimerOptions)
        if options.get("session") is None:
            stored_by_broker: int | None = _on_loop(lambda: self._broker.publish(message, queue, **options))
            return stored_by_broker
        cmd = self._command((message,), queue, options)
        (encoded,) = self._encoded(cmd)
        own = own_delivery(self._store, encoded.queue, encoded.timer_id)
        stored = at_once(self._store.publish(encoded, transaction=cmd.session, own=own))
        if stored is not None:
            self._observer.published(queue, 1)
        return stored

    @lists_options(PublishOptions)
    def publish_batch(
        self, *messages: SendableMessage, queue: str, **options: Unpack[PublishOptions]
    ) -> list[int]:
        """Publish all of these or none, in one statement; their ids, in order.

        Args:
            messages: What handlers get, each like `message` of `publish`.
            queue: The queue of their subscribers.
        """
        check_options("publish_batch()", options, PublishOptions)
        if options.get("session") is None:
            ids: list[int] = _on_loop(lambda: self._broker.publish_batch(*messages, queue=queue, **options))
            return ids
        cmd = self._command(messages, queue, cast("TimerOptions", options))
        stored = at_once(self._store.publish_batch(self._encoded(cmd), transaction=cmd.session))
        if stored:
            self._observer.published(queue, len(stored))
        return stored

    def cancel_timer(self, queue: str, timer_id: str, *, session: object | None = None) -> bool:
        """Remove a waiting timer; `True` only if this call removed it. A running one is never clobbered."""
        check_queue(queue)
        check_name("timer_id", timer_id)
        if session is None:
            return bool(_on_loop(lambda: self._broker.cancel_timer(queue, timer_id)))
        return at_once(self._store.cancel(queue, timer_id, transaction=self._blocking(session)))

    def reschedule_timer(
        self,
        queue: str,
        timer_id: str,
        *,
        session: object | None = None,
        activate_in: Duration | None = None,
        activate_at: datetime | None = None,
    ) -> bool:
        """Move a waiting timer to another time; `True` if one moved."""
        check_queue(queue)
        check_name("timer_id", timer_id)
        due = due_from(activate_in, activate_at)
        if due is None:
            raise ValueError("say when: give activate_in or activate_at")
        if session is None:
            return bool(
                _on_loop(
                    lambda: self._broker.reschedule_timer(
                        queue, timer_id, activate_in=activate_in, activate_at=activate_at
                    )
                )
            )
        return at_once(self._store.reschedule(queue, timer_id, due, transaction=self._blocking(session)))

    def _blocking(self, session: object) -> Blocking:
        check_session(session, blocking=True)
        capabilities = self._store.capabilities
        if not capabilities.blocking:
            raise TypeError(
                f"{capabilities.name} has no transactions for synchronous code: its pipelines are asynchronous. "
                "In a `def` handler, leave `session` out"
            )
        return Blocking(session)

    def _command(self, bodies: tuple[Any, ...], queue: str, options: TimerOptions) -> OutboxPublishCommand:
        options["session"] = self._blocking(options.get("session"))
        options["correlation_id"] = correlation_from(options, self._broker.config.id_generator)
        return OutboxPublishCommand(bodies, queue, options)

    def _encoded(self, cmd: OutboxPublishCommand) -> Any:
        config = self._broker.config.broker_config
        producer = cast("OutboxProducer", config.producer)
        # A broker that was never connected has not told its producer yet how to encode.
        producer.connect(config.fd_config._serializer, config.broker_codec)
        return at_once(producer.encoded(cmd))


def _on_loop(work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """What the broker's own verb gives, on its event loop."""
    call = current_call()
    if call is None:
        raise ValueError(
            "session is missing: give the transaction that the message shall commit with. "
            "Only a `def` handler that runs in a thread of this process may leave it out"
        )
    return call.on_loop(work)
