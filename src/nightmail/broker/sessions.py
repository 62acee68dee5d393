"""A handler's session: opened when it is asked for, committed together with the acknowledgement.

    asked for ──hold──▶ the handler's writes ──▶ its return value is published ──ack──▶ commit
                            ╰──────────────── it raised, or nacked ────────────────▶ rollback

FastStream tears a handler's dependencies down before it publishes what the handler returned, so a dependency that
commits would commit too early. This one is concluded by the subscriber, when everything else has been done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, cast

from faststream.exceptions import AckMessage
from faststream.middlewares import AckPolicy, BaseMiddleware

from nightmail.broker.closings import Closings
from nightmail.broker.received import Received, ReceivedBatch
from nightmail.broker.sync_sessions import SyncSessionFactory, ThreadedSession, carried_out
from nightmail.engine.current import acked_in_transaction, current_slot
from nightmail.engine.result import Nacked, Result
from nightmail.errors import NoDecision, NotAwaited, SessionClosed
from nightmail.outcome import Done, Release, Retry

if TYPE_CHECKING:
    from types import TracebackType

    from faststream.message import StreamMessage
    from sqlalchemy.ext.asyncio import AsyncSession
    from sqlalchemy.orm import Session

NO_FACTORY: Final = (
    "OutboxSession is for handlers of a broker with a session factory: "
    "OutboxBroker(..., session_factory=async_sessionmaker(engine))"
)
NO_SYNC_FACTORY: Final = (
    "SyncOutboxSession is for `def` handlers of a broker with a factory of synchronous sessions: "
    "OutboxBroker(..., sync_session_factory=sessionmaker(engine))"
)
ONE_SESSION: Final = (
    "a handler has one session, in which its message is acknowledged: OutboxSession or SyncOutboxSession"
)
AnyReceived = TypeVar("AnyReceived", Received, ReceivedBatch)
_FAILED: Final = (Nacked, Retry, Release)
SessionFactory: TypeAlias = "Callable[[], AsyncSession]"
"""What makes sessions: an `async_sessionmaker`, or anything that is called like one."""


@dataclass(frozen=True, slots=True)
class SessionFactories:
    """What a broker makes its handlers' sessions with."""

    asynchronous: SessionFactory | None = None
    synchronous: SyncSessionFactory | None = None


class HandlersSession:
    """The session of one delivery or batch, if its handler asks for one."""

    def __init__(self, make: SessionFactories, received: Received | ReceivedBatch, policy: AckPolicy) -> None:
        self._make = make
        self._received = received
        self._policy = policy
        self._session: AsyncSession | ThreadedSession | None = None
        self._held = False
        self._is_over = False
        self._closings: Closings | None = None
        self.must_undo = False
        """Whether the handler raised, even if that was swallowed on its way here."""

    @property
    def session(self) -> AsyncSession | ThreadedSession | None:
        """The session, once it was asked for."""
        return self._session

    async def open(self) -> AsyncSession:
        """The session; the first time, the message is locked in it, which also tells at once if the lease was lost."""
        make = self._make.asynchronous
        if make is None:
            raise RuntimeError(NO_FACTORY)
        session = await self._opened(make)
        if not isinstance(session, ThreadedSession):
            return session
        raise RuntimeError(ONE_SESSION)

    async def open_sync(self) -> Session:
        """The same for a `def` handler."""
        make = self._make.synchronous
        if make is None:
            raise RuntimeError(NO_SYNC_FACTORY)
        session = await self._opened(lambda: ThreadedSession(make()))
        if isinstance(session, ThreadedSession):
            return cast("Session", session.session)
        raise RuntimeError(ONE_SESSION)

    async def _opened(
        self, make: Callable[[], AsyncSession | ThreadedSession]
    ) -> AsyncSession | ThreadedSession:
        if self._is_over:
            raise RuntimeError("the handler has ended, and its session with it")
        if self._session is None:
            self._session = made = make()
            self._closings = Closings(made.session if isinstance(made, ThreadedSession) else made)
            # With a single writer the lock would block all other writers while the handler runs.
            if self._received.store.capabilities.concurrent_writers:
                await self._hold()
        return self._session

    async def conclude(self) -> None:
        """Commit what the handler wrote, with the acknowledgement, or undo it."""
        if self._session is None:
            return
        items = self._received.items
        for item in items:
            if isinstance(item.result.error, NotAwaited):
                raise item.result.error
        if (
            self.must_undo
            or self._received.result.error is not None
            or not any(_went_well(item.result) for item in items)
        ):
            await self._session.rollback()
            for item in items:
                # A message whose handler's writes are undone is not done either, unless its policy is to acknowledge
                # failures. What is not understood is a mistake, and no policy applies to it.
                if self._policy is not AckPolicy.ACK or isinstance(item.result.error, NoDecision):
                    item.result.undo()
            return
        if self._closings is not None and self._closings.undid_writes:
            raise SessionClosed
        acked = [item for item in items if item.result.acked_in_transaction]
        done = [
            item.delivery
            for item in items
            if isinstance(item.result.decision, Done) and not item.result.acked_in_transaction
        ]
        if done:
            store, transaction = self._received.store, self._session
            await carried_out(transaction, lambda: store.ack(done, transaction=transaction))
            # Before the commit: if its reply is lost, the messages may be gone, and that is no lost lease.
            acked_in_transaction(done)
        elif not self._held and not acked:
            await self._hold()
        await self._session.commit()

    async def close(self) -> None:
        """Give the connection back; what was not committed is undone."""
        self._is_over = True
        if self._session is not None and not _closed_by_its_thread(self._session):
            # As SQLAlchemy's own block does: a second cancellation must not leave the connection to the collector.
            await asyncio.shield(asyncio.ensure_future(self._session.close()))

    async def _hold(self) -> None:
        deliveries = [item.delivery for item in self._received.items]
        store, transaction = self._received.store, self._session
        await carried_out(transaction, lambda: store.hold(deliveries, transaction=transaction))
        self._held = True


_handlers: Final[ContextVar[HandlersSession | None]] = ContextVar("nightmail_handlers_session", default=None)


async def with_session(
    make: SessionFactories,
    received: AnyReceived,
    process: Callable[[AnyReceived], Awaitable[None]],
    policy: AckPolicy,
) -> None:
    """Process a delivery whose handler may ask for a session, and then commit or undo that."""
    mine = HandlersSession(make, received, policy)
    token = _handlers.set(mine)
    try:
        await process(received)
        await mine.conclude()
    except Exception as concluding:  # noqa: BLE001 - a commit that failed is the handler's failure
        for item in received.items:
            if item.was_handed_over:
                item.result.void(concluding)
    except BaseException:
        for item in received.items:
            item.result.undo()
        raise
    finally:
        _handlers.reset(token)
        await mine.close()


def current_session() -> AsyncSession | ThreadedSession | None:
    """The session that the handler now running has asked for, if it has: as a store's verbs take it."""
    mine = _handlers.get()
    return None if mine is None else mine.session


async def open_session() -> AsyncSession:
    """The session of the handler now running."""
    mine = _handlers.get()
    if mine is None:
        raise RuntimeError(NO_FACTORY)
    return await mine.open()


async def open_sync_session() -> Session:
    """The synchronous session of the `def` handler now running."""
    mine = _handlers.get()
    if mine is None:
        raise RuntimeError(NO_SYNC_FACTORY)
    return await mine.open_sync()


class RecordHandlerError(BaseMiddleware):
    """Remembers that the handler raised, even if another middleware swallows it.

    It must be the innermost of all: those of routers, of `include_router` and of `add_middleware` come before it.
    """

    async def consume_scope(self, call_next: Callable[[Any], Awaitable[Any]], msg: StreamMessage[Any]) -> Any:
        try:
            return await call_next(msg)
        except BaseException as error:
            _note(error)
            raise

    async def after_processed(
        self,
        exc_type: type[BaseException] | None = None,
        exc_val: BaseException | None = None,
        exc_tb: TracebackType | None = None,
    ) -> bool:
        """Also what was raised while the return value was published. The innermost is told first."""
        if exc_val is not None:
            _note(exc_val)
        return False


def _note(raised: BaseException) -> None:
    mine = _handlers.get()
    # `AckMessage` is the handler's way to say that all went well.
    if mine is not None and not isinstance(raised, AckMessage):
        mine.must_undo = True


def _closed_by_its_thread(session: AsyncSession | ThreadedSession) -> bool:
    """Whether a thread that its worker has left behind still uses this, and will close it.

    Closed under it, the session would let go of the message's lock while the handler runs.
    """
    slot = current_slot()
    return (
        isinstance(session, ThreadedSession)
        and slot is not None
        and slot.left_behind
        and slot.call is not None
        and slot.call.afterwards(session.close_here)
    )


def _went_well(result: Result) -> bool:
    if result.decision is None:
        return result.acked_in_transaction
    return not isinstance(result.decision, _FAILED)
