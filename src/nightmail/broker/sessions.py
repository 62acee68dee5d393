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
from faststream.middlewares import BaseMiddleware

from nightmail.broker.closings import Closings
from nightmail.broker.received import Nacked, Promised, Received, ReceivedBatch
from nightmail.broker.sync_sessions import SyncSessionFactory, ThreadedSession, carried_out
from nightmail.engine.current import current_slot, promise
from nightmail.errors import NotAwaited, NoVerdict, SessionClosed
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

    def __init__(
        self, make: SessionFactories, received: Received | ReceivedBatch, *, failing_is_done: bool
    ) -> None:
        self._make = make
        self.failing_is_done = failing_is_done
        self._received = received
        self._session: AsyncSession | ThreadedSession | None = None
        self._held = False
        self._is_over = False
        self._closings: Closings | None = None
        self.handler_raised = False

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
        """Commit what the handler wrote, or undo it."""
        if self._session is None:
            return
        received = self._received
        for item in received.items:
            if isinstance(item.failure, NotAwaited):
                raise item.failure
        if not self.handler_raised:
            received.settle()
        if self.handler_raised or not any(_went_well(item) for item in received.items):
            await self._session.rollback()
            if not self.failing_is_done:
                received.take_back()
            return
        if self._closings is not None and self._closings.undid_writes:
            raise SessionClosed
        done = [item for item in received.items if isinstance(item.verdict, Done)]
        if done:
            deliveries = [item.delivery for item in done]
            transaction = self._session
            await carried_out(transaction, lambda: received.store.ack(deliveries, transaction=transaction))
            # Before the commit: if its reply is lost, the messages may be gone, and that is no lost lease.
            promise(deliveries)
            for item in done:
                item.verdict = Promised()
        elif not self._held and not any(isinstance(item.verdict, Promised) for item in received.items):
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
    process: Callable[[AnyReceived], Awaitable[Exception | None]],
    *,
    failing_is_done: bool,
) -> Exception | None:
    """Process a delivery whose handler may ask for a session; what went wrong, if anything did.

    A message whose handler's writes are undone is not done either, unless its policy is to acknowledge failures.
    """
    mine = HandlersSession(make, received, failing_is_done=failing_is_done)
    token = _handlers.set(mine)
    try:
        error = await process(received)
        if isinstance(error, NoVerdict):
            # The policy was not applied: an unknown verdict is a mistake.
            mine.failing_is_done = False
        if isinstance(error, AckMessage) and not error.extra_options:
            received.judge(Done())  # Under MANUAL nothing else reads it, and its ack must commit.
        mine.handler_raised = mine.handler_raised or not (error is None or isinstance(error, AckMessage))
        await mine.conclude()
        return error
    except Exception as concluding:  # noqa: BLE001 - a commit that failed is the handler's failure
        received.fail(concluding)
        return concluding
    except BaseException:
        received.take_back()
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
        mine.handler_raised = True


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


def _went_well(item: Received) -> bool:
    return item.verdict is not None and not isinstance(item.verdict, _FAILED)
