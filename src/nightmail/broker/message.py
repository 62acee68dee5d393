"""What a handler gets: the message, and the ways to say how it ended."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

from faststream.exceptions import FeatureNotSupportedException
from faststream.message import AckStatus, StreamMessage

from nightmail.broker.at_once import at_once
from nightmail.broker.counted import COUNTED, Asked, Given, Owed, is_synchronous_here
from nightmail.broker.decisions import nack, postpone, reject
from nightmail.broker.joining import check_session
from nightmail.broker.received import Received, ReceivedBatch, ack_in, acking
from nightmail.durations import Duration, as_positive
from nightmail.engine.current import acked_in_transaction
from nightmail.engine.result import Decision
from nightmail.engine.threads import current_call
from nightmail.errors import HandlerTimeout, LeaseLost, Undecodable
from nightmail.message import DeadDelivery, Delivery, check_name
from nightmail.outcome import Done, WriteResult
from nightmail.store import Blocking

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager


@runtime_checkable
class _Watching(Protocol):
    """A store whose callers' transactions must watch a message before they begin."""

    def transaction(
        self, deliveries: Sequence[Delivery], client: object
    ) -> AbstractAsyncContextManager[Any]: ...


class OutboxMessage(StreamMessage[Received]):
    """The message in a handler. Decisions are recorded, and written after the handler has ended."""

    @property
    def delivery(self) -> Delivery:
        """The delivery as the store gave it."""
        return self.raw_message.delivery

    @property
    def id(self) -> int:
        """The message's id in the store; for a dead letter, the dead letter's."""
        return self.delivery.id

    @property
    def queue(self) -> str:
        """The queue it was published to."""
        return self.delivery.queue

    @property
    def attempt(self) -> int:
        """Which handler run this is, from 1."""
        return self.delivery.attempt

    @property
    def deliveries(self) -> int:
        """Claims since it was last settled: more than 1 means a worker was lost with it."""
        return self.delivery.deliveries

    @property
    def due_at(self) -> datetime:
        """When it became due."""
        return self.delivery.due_at

    @property
    def published_at(self) -> datetime:
        """When it was published."""
        return self.delivery.published_at

    @property
    def timer_id(self) -> str | None:
        """Its business key, if it has one."""
        return self.delivery.timer_id

    @property
    def ordering_key(self) -> str | None:
        """The key whose messages go one at a time, if it has one."""
        return self.delivery.ordering_key

    @property
    def dead(self) -> DeadDelivery | None:
        """Why it was given up, when, and as which message: for a subscriber of dead letters, otherwise `None`."""
        return self.delivery if isinstance(self.delivery, DeadDelivery) else None

    # ── decisions ──────────────────────────────────────────────────────────────────────────────────────────

    # Each counts when it is called. What it returns may be awaited, as in FastStream, but only `ack(session)` on an
    # event loop has to be: it asks the store.

    def ack(self, session: object | None = None) -> Given:
        """Handled: it leaves the store.

        With `session`, your own transaction, it leaves as part of that: at once, and for good when you commit. Raises
        `LeaseLost` when another worker has the message by now: let it through, so that your writes are rolled back.
        This one must be awaited; in a `def` handler, with a session of synchronous code, it is done when it returns.
        """
        if session is None:
            return self._give(Done(), AckStatus.ACKED)
        check_session(session, blocking=is_synchronous_here())
        if is_synchronous_here():
            at_once(self._ack_in(Blocking(session)))
            return COUNTED
        return Owed(self.raw_message.unacked, lambda: self._ack_in(session))

    def nack(self, delay: Duration | None = None) -> Given:
        """Failed: try again after `delay`, or when the retry policy says."""
        return self._give(nack(delay), AckStatus.NACKED)

    def reject(self, reason: str | None = None) -> Given:
        """Given up: it goes to the dead letters."""
        return self._give(reject(reason), AckStatus.REJECTED)

    def postpone(self, delay: Duration) -> Given:
        """Not yet: look again after `delay`. Costs no attempt; both counters restart at 0."""
        return self._give(postpone(delay), AckStatus.NACKED)

    # ── ending in time ─────────────────────────────────────────────────────────────────────────────────────

    @property
    def stopping(self) -> bool:
        """Whether this `def` handler has to end: its time is up, or it is stopped. An `async def` is cancelled."""
        return _stopping()

    def check(self) -> None:
        """Raise `HandlerTimeout` if this `def` handler has to end. For loops that run long."""
        _check()

    # ── the lease ──────────────────────────────────────────────────────────────────────────────────────────

    def extend(self, ttl: Duration) -> Given:
        """Keep the lease for at least `ttl` from now, even if this process dies; never shorter than before.

        A handler that is merely slow does not need this: its lease is renewed for as long as the process lives.
        While an open transaction has the message locked, as after `hold`, nothing is extended: the lock keeps others
        away, and when it is gone without a commit, so is the reason to wait.
        """
        lease = as_positive("ttl", ttl)
        if (call := current_call()) is not None:
            call.on_loop(lambda: self._extend(lease))
            return COUNTED
        return Asked(lambda: self._extend(lease))

    def hold(self, session: object) -> Given:
        """Lock the message in your transaction before you read anything there, or raise `LeaseLost`.

        A transaction at repeatable read needs this: a lease that is renewed after its first read would make its
        `ack` fail. Must be awaited, except in synchronous code.
        """
        return _held(self.raw_message, session)

    @asynccontextmanager
    async def transaction(self, client: object) -> AsyncIterator[Any]:
        """On Redis: a pipeline of `client`, executed and acknowledged as one at the end of the block.

        Raises `LeaseLost`, and executes nothing, when another worker has the message by then.
        """
        store = self.raw_message.store
        if not isinstance(store, _Watching):
            raise FeatureNotSupportedException(
                f"transaction() is for Redis; on {store.capabilities.name} pass your session to ack(session=...)"
            )
        with acking([self.raw_message]):
            async with store.transaction([self.delivery], client) as pipeline:
                yield pipeline
                # Before it is executed: if the reply is lost the message may be gone, and that is no lost lease.
                acked_in_transaction([self.delivery])
        self.raw_message.acked([self.delivery])
        self._note(AckStatus.ACKED)

    def _give(self, decision: Decision, status: AckStatus) -> Given:
        if (write := self.raw_message.write) is not None:
            # No worker will write it afterwards, so the code that took the message must await it.
            return Asked(lambda: self._write(decision, status, write))
        self.raw_message.result.decide(decision)
        self._note(status)
        return COUNTED

    async def _write(
        self, decision: Decision, status: AckStatus, write: Callable[[Decision], Awaitable[None]]
    ) -> None:
        await write(decision)
        self._note(status)

    async def _ack_in(self, session: object) -> None:
        await ack_in(self.raw_message, session)
        if self.raw_message.result.acked_in_transaction:
            self._note(AckStatus.ACKED)

    async def _extend(self, lease: timedelta) -> None:
        (result,) = await self.raw_message.store.extend([self.delivery], lease)
        if result is WriteResult.LOST:
            raise LeaseLost([self.id])

    def _note(self, status: AckStatus) -> None:
        """What FastStream's own methods do."""
        if self.committed is None:
            self.committed = status

    def __repr__(self) -> str:
        # Neither body nor headers: this ends up in logs.
        return f"OutboxMessage(id={self.id}, queue={self.queue!r}, attempt={self.attempt})"


class OutboxBatchMessage(StreamMessage[ReceivedBatch]):
    """Several messages in one handler. Each of `items` has its own decisions; those here are for the rest."""

    def __init__(
        self,
        batch: ReceivedBatch,
        *,
        items: Sequence[OutboxMessage] = (),
        unparsed: dict[Received, str | None] | None = None,
    ) -> None:
        self._items = items
        self.unparsed = unparsed
        """What `items` are made of on demand, each with its content type.

        Most handlers want nothing but the bodies.
        """
        first = message_of(next(iter(unparsed))) if unparsed else items[0] if items else None
        super().__init__(
            batch,
            [item.body for item in items] if unparsed is None else [item.delivery.body for item in unparsed],
            headers=None if first is None else first.headers,
            content_type=None if first is None else first.content_type,
            correlation_id="" if first is None else first.correlation_id,
            message_id="" if first is None else first.message_id,
        )

    @property
    def items(self) -> Sequence[OutboxMessage]:
        """The messages, in the order of the handler's list; those that cannot be decoded are not among them."""
        if self.unparsed is not None:
            self._items, self.unparsed = [message_of(item) for item in self.unparsed], None
        return self._items

    @items.setter
    def items(self, items: Sequence[OutboxMessage]) -> None:
        self._items, self.unparsed = items, None

    @property
    def batch_headers(self) -> list[dict[str, Any]]:
        """The headers of each."""
        return [item.headers for item in self.items]

    @batch_headers.setter
    def batch_headers(self, _headers: list[dict[str, Any]]) -> None:
        """FastStream sets them where they are not made from the messages."""

    def ack(self, session: object | None = None) -> Given:
        """Handled, all that have no decision yet. With `session`: all of them, or `LeaseLost` naming the lost ones.

        With `session` it must be awaited, except in synchronous code.
        """
        if session is None:
            return self._give(Done(), AckStatus.ACKED)
        check_session(session, blocking=is_synchronous_here())
        if is_synchronous_here():
            at_once(self._ack_in(Blocking(session)))
            return COUNTED
        return Owed(self.raw_message.unacked, lambda: self._ack_in(session))

    def nack(self, delay: Duration | None = None) -> Given:
        """Failed, all that have no decision yet: try again after `delay`, or when the retry policy says."""
        return self._give(nack(delay), AckStatus.NACKED)

    def reject(self, reason: str | None = None) -> Given:
        """Given up, all that have no decision yet: they go to the dead letters."""
        return self._give(reject(reason), AckStatus.REJECTED)

    def postpone(self, delay: Duration) -> Given:
        """Not yet, all that have no decision yet: look again after `delay`."""
        return self._give(postpone(delay), AckStatus.NACKED)

    @property
    def stopping(self) -> bool:
        """Whether this `def` handler has to end: its time is up, or it is stopped. An `async def` is cancelled."""
        return _stopping()

    def check(self) -> None:
        """Raise `HandlerTimeout` if this `def` handler has to end. For loops that run long."""
        _check()

    def hold(self, session: object) -> Given:
        """Lock the messages in your transaction before you read anything there, or raise `LeaseLost`.

        Must be awaited, except in synchronous code.
        """
        return _held(self.raw_message, session)

    def _give(self, decision: Decision, status: AckStatus) -> Given:
        self.raw_message.result.decide(decision)
        self._note(status)
        return COUNTED

    async def _ack_in(self, session: object) -> None:
        if self.raw_message.result.may_be_done:
            await ack_in(self.raw_message, session)
            self._note(AckStatus.ACKED)

    def _note(self, status: AckStatus) -> None:
        if self.committed is None:
            self.committed = status

    def __repr__(self) -> str:
        return f"OutboxBatchMessage(ids={[item.delivery.id for item in self.raw_message.items]})"


def message_of(received: Received) -> OutboxMessage:
    """A delivery as handlers, filters and middlewares see it."""
    delivery = received.delivery
    headers = headers_of(delivery)
    correlation_id = headers.get("correlation_id")
    return OutboxMessage(
        received,
        delivery.body,
        headers=headers,
        reply_to=_reply_to(headers.get("reply_to")),
        content_type=headers.get("content-type"),
        # The same for every delivery of a message that has none.
        correlation_id=correlation_id
        if isinstance(correlation_id, str) and correlation_id
        else f"nightmail-{delivery.id}",
        message_id=str(delivery.id),
    )


def _reply_to(queue: Any) -> str:
    """Where the answer goes; checked before the handler runs, or it would be retried again and again."""
    if not queue:
        return ""
    try:
        check_name("reply_to", queue)
    except (TypeError, ValueError) as error:
        raise Undecodable(str(error)) from error
    return cast("str", queue)


def headers_of(delivery: Delivery) -> dict[str, Any]:
    """The headers, or `Undecodable`."""
    try:
        return delivery.headers
    except (ValueError, RecursionError) as error:
        raise Undecodable(f"the stored headers cannot be decoded: {type(error).__name__}") from error


def _stopping() -> bool:
    call = current_call()
    return call is not None and call.stopping


def _check() -> None:
    if _stopping():
        raise HandlerTimeout


def _held(received: Received | ReceivedBatch, session: object) -> Given:
    check_session(session, blocking=is_synchronous_here())
    if is_synchronous_here():
        at_once(_hold(received, Blocking(session)))
        return COUNTED
    return Asked(lambda: _hold(received, session))


async def _hold(received: Received | ReceivedBatch, session: object) -> None:
    await received.store.hold([item.delivery for item in received.items], transaction=session)
