"""What a handler gets: the message, and the ways to say how it ended."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

from faststream.exceptions import FeatureNotSupportedException
from faststream.message import StreamMessage

from nightmail.broker.received import Nacked, Promised, Received, ReceivedBatch, Verdict, refusing
from nightmail.current import promise
from nightmail.durations import Duration, as_positive, as_timedelta
from nightmail.errors import LeaseLost, Undecodable
from nightmail.message import DeadDelivery, Delivery, check_name
from nightmail.outcome import Dead, Done, Postpone, Reason, Standing

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager


@runtime_checkable
class _Watching(Protocol):
    """A store whose callers' transactions must watch a message before they begin."""

    def transaction(
        self, deliveries: Sequence[Delivery], client: object
    ) -> AbstractAsyncContextManager[Any]: ...


class OutboxMessage(StreamMessage[Received]):
    """The message in a handler. Verdicts are recorded, and written after the handler has ended."""

    @property
    def delivery(self) -> Delivery:
        """The delivery as the store gave it."""
        return self.raw_message.delivery

    @property
    def id(self) -> int:
        """The message's id in the store; of a dead letter, the letter's."""
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

    # ── verdicts ───────────────────────────────────────────────────────────────────────────────────────────

    async def ack(self, session: object | None = None) -> None:
        """Handled: it leaves the store.

        With `session`, your own transaction, it leaves as part of that: at once, and for good when you commit. Raises
        `LeaseLost` when somebody else has the message by now: let it through, so that your writes are rolled back.
        """
        if session is None:
            await self._judge(Done())
        else:
            if not self.raw_message.may_be_done:
                return  # The first outcome wins, here too: what was rejected must not leave with this transaction.
            with refusing([self.raw_message]):
                await self.raw_message.store.ack([self.delivery], transaction=session)
            self._promise()
        await super().ack()

    async def nack(self, delay: Duration | None = None, *, postpone_by: Duration | None = None) -> None:
        """Failed: try again after `delay`, or when the retry policy says."""
        if postpone_by is not None:
            await self.postpone(postpone_by)
            return
        await self._judge(Nacked(None if delay is None else as_timedelta("delay", delay)))
        await super().nack()

    async def reject(self, reason: str | None = None) -> None:
        """Given up: it goes to the dead letters."""
        await self._judge(Dead(reason or Reason.REJECTED))
        await super().reject()

    async def postpone(self, delay: Duration) -> None:
        """Not yet: look again after `delay`. Costs no attempt; both counters start afresh."""
        await self._judge(Postpone(as_timedelta("delay", delay)))
        await super().nack()

    # ── the lease ──────────────────────────────────────────────────────────────────────────────────────────

    async def extend(self, ttl: Duration) -> None:
        """Keep the message for at least so long from now, whatever becomes of this process; never shorter than before.

        A handler that merely takes long needs none of this: its lease is renewed for as long as the process lives.
        While an open transaction has the message locked, as after `hold`, nothing is extended: the lock keeps others
        away, and when it is gone without a commit, so is the reason to wait.
        """
        (standing,) = await self.raw_message.store.extend([self.delivery], as_positive("ttl", ttl))
        if standing is Standing.LOST:
            raise LeaseLost([self.id])

    async def hold(self, session: object) -> None:
        """Lock the message in your transaction before you read anything there, or raise `LeaseLost`.

        A transaction at repeatable read needs this: a lease that is renewed after its first read would make its
        `ack` fail.
        """
        await self.raw_message.store.hold([self.delivery], transaction=session)

    @asynccontextmanager
    async def transaction(self, client: object) -> AsyncIterator[Any]:
        """On Redis: a pipeline of `client`, executed and acknowledged as one at the end of the block.

        Raises `LeaseLost`, and executes nothing, when somebody else has the message by then.
        """
        store = self.raw_message.store
        if not isinstance(store, _Watching):
            raise FeatureNotSupportedException(
                f"transaction() is for Redis; on {store.capabilities.name} pass your session to ack(session=...)"
            )
        with refusing([self.raw_message]):
            async with store.transaction([self.delivery], client) as pipeline:
                yield pipeline
                # Before it is executed: if the reply is lost the message may be gone, and that is no lost lease.
                promise([self.delivery])
        self._promise()
        await super().ack()

    async def _judge(self, verdict: Verdict) -> None:
        received = self.raw_message
        before = received.verdict
        received.judge(verdict)
        if received.write is None or received.verdict is before:
            return
        try:
            await received.write(verdict, isinstance(before, Promised))
        except BaseException:
            received.verdict = before  # Nothing may have been written: it can be said again.
            raise

    def _promise(self) -> None:
        promise([self.delivery])
        self.raw_message.judge(Promised())

    def __repr__(self) -> str:
        # Neither body nor headers: this ends up in logs.
        return f"OutboxMessage(id={self.id}, queue={self.queue!r}, attempt={self.attempt})"


class OutboxBatchMessage(StreamMessage[ReceivedBatch]):
    """Several messages in one handler. `items` are they, each with verdicts of its own; these here are for the rest."""

    def __init__(
        self,
        batch: ReceivedBatch,
        *,
        items: Sequence[OutboxMessage] = (),
        unparsed: dict[Received, str | None] | None = None,
    ) -> None:
        self._items = items
        self.unparsed = unparsed
        """What `items` will be made of if somebody asks for them, each with its content type.

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

    async def ack(self, session: object | None = None) -> None:
        """Handled, all that have no verdict yet. With `session`: all of them, or `LeaseLost` naming the lost ones."""
        batch = self.raw_message
        if session is None:
            batch.judge(Done())
        else:
            if batch.verdict is not None and not isinstance(batch.verdict, Done | Promised):
                return
            deliveries = [item.delivery for item in batch.open]
            with refusing(batch.open):
                await batch.store.ack(deliveries, transaction=session)
            promise(deliveries)
            batch.judge(Promised())
        await super().ack()

    async def nack(self, delay: Duration | None = None, *, postpone_by: Duration | None = None) -> None:
        """Failed, all that have no verdict yet: try again after `delay`, or when the retry policy says."""
        if postpone_by is not None:
            await self.postpone(postpone_by)
            return
        self.raw_message.judge(Nacked(None if delay is None else as_timedelta("delay", delay)))
        await super().nack()

    async def reject(self, reason: str | None = None) -> None:
        """Given up, all that have no verdict yet: they go to the dead letters."""
        self.raw_message.judge(Dead(reason or Reason.REJECTED))
        await super().reject()

    async def postpone(self, delay: Duration) -> None:
        """Not yet, all that have no verdict yet: look again after `delay`."""
        self.raw_message.judge(Postpone(as_timedelta("delay", delay)))
        await super().nack()

    async def hold(self, session: object) -> None:
        """Lock the messages in your transaction before you read anything there, or raise `LeaseLost`."""
        batch = self.raw_message
        await batch.store.hold([item.delivery for item in batch.items], transaction=session)

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
        # The same for every delivery of a message that brought none.
        correlation_id=correlation_id
        if isinstance(correlation_id, str) and correlation_id
        else f"nightmail-{delivery.id}",
        message_id=str(delivery.id),
    )


def _reply_to(queue: Any) -> str:
    """Where the answer goes; checked before the handler runs, which would otherwise run again and again."""
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
