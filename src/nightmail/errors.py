"""Every error Nightmail raises. The docstring is the message, and says what to do."""

from __future__ import annotations

from collections.abc import Sequence


class NightmailError(Exception):
    """Something went wrong in Nightmail."""

    def __init__(self, detail: str | None = None) -> None:
        super().__init__(detail or type(self).__doc__)


class LeaseLost(NightmailError):
    """The lease on this message was lost: another worker has it, or it is gone. Nothing was written."""

    def __init__(self, ids: Sequence[int] = ()) -> None:
        self.ids = tuple(ids)
        which = f" (message {', '.join(map(str, self.ids))})" if self.ids else ""
        super().__init__(f"{type(self).__doc__}{which}")


class NoDecision(NightmailError):
    """The handler ended without a decision: under MANUAL it must ack, nack, reject or postpone. It is retried."""


class NotAwaited(NightmailError, RuntimeError):
    """Something that must be awaited was called and not awaited: it was not done. The message is retried."""


class HandlerDied(NightmailError):
    """The process that ran the handler died. The message comes again when its lease ends, as after any crash."""


class HandlerTimeout(BaseException):
    """This handler has to end: it ran longer than `handler_timeout`, was stopped, or its worker is stopping.

    Raised in the thread of a `def` handler, at any line, and by `msg.check()`. Clean up and let it through. It is no
    `Exception`, so that code which catches those to go on does not catch it.
    """

    def __init__(self) -> None:
        super().__init__(
            "this handler has to end: its time is up, an operator stopped it, or its worker is stopping"
        )


class Undecodable(NightmailError):
    """The stored message cannot be decoded. Trying again would not help: it goes to the dead letters."""


class MessageTooLarge(NightmailError, ValueError):
    """The message is larger than the store takes."""

    def __init__(self, size: int, limit: int) -> None:
        self.size = size
        self.limit = limit
        super().__init__(
            f"the body has {size:,} bytes, and the store takes at most {limit:,}. Store the data elsewhere and publish "
            "a reference to it, or raise max_body_bytes= for every publisher and worker"
        )


class BatchTooLarge(NightmailError, ValueError):
    """The batch is larger than one statement should be."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"the batch is too large: {what}. Publish it in several calls; in one transaction they are all or none"
        )


class TimerExists(NightmailError):
    """A message with this timer id is waiting or running, and `on_conflict="raise"` was asked for."""

    def __init__(self, queue: str, timer_id: str) -> None:
        self.queue = queue
        self.timer_id = timer_id
        super().__init__(f"queue {queue!r} already has a message with the timer id {timer_id!r}")


class StoreError(NightmailError):
    """The store could not do what it was asked. Nothing was written."""


class Refused(StoreError):
    """The database refused this message, by a constraint or a trigger. It would refuse it again."""


class UnsuitableServer(NightmailError):
    """This server would lose messages, or cannot do what is needed."""


class WrongProcess(StoreError):
    """The store was opened before the process forked: open it in the child instead."""


class WrongEventLoop(StoreError):
    """The store is open on another event loop that is still running: use it there, or open another store here."""


class StoreUnavailable(StoreError):
    """The store cannot be reached or did not answer. Nothing is lost: try again."""


class NotOpen(StoreUnavailable):
    """The store is not open: `async with broker`, or `await broker.connect()`; a store alone, `await store.open()`."""


class PublishUncertain(StoreUnavailable):
    """The connection was lost before the store answered: the message may or may not be stored.

    Publishing again is safe with a `timer_id` while the first is still waiting; without one, or once the
    first was delivered, it may be stored twice.
    """


class NotTaken(NightmailError):
    """RabbitMQ has no queue for this message and gave it back. Bind one to the exchange: the message is retried."""


class CannotJoin(NightmailError, TypeError):
    """This object is not a transaction that the store can join."""


class NotInTransaction(NightmailError, ValueError):
    """The connection is not inside a transaction: begin one, or publish without `session`."""


class OtherDatabase(NightmailError, ValueError):
    """The session belongs to another database than the store: its transaction cannot carry our message."""


class SessionClosed(NightmailError):
    """The handler closed its OutboxSession, which undid what it had written. The message is retried.

    Leave closing to the broker, which commits when the handler returns; `await session.rollback()` undoes on purpose.
    """


class StaleTransaction(NightmailError):
    """SQLite refused the write: this transaction read first, and another writer has committed since.

    Begin it with BEGIN IMMEDIATE. With SQLAlchemy: `nightmail.stores.sqlite.begin_immediate(engine)`.
    """


class SchemaMissing(NightmailError):
    """The tables do not exist. Run `nightmail migrate`, or pass `create_tables=True`."""


class SchemaOutdated(NightmailError):
    """The tables are older than this version needs. Run `nightmail migrate`."""

    def __init__(self, found: int, needed: int) -> None:
        self.found = found
        self.needed = needed
        super().__init__(
            f"the tables are at version {found}, this code needs {needed}. Run `nightmail migrate`."
        )


class SchemaDrift(NightmailError):
    """The tables differ from what this version made."""

    def __init__(self, differences: Sequence[str]) -> None:
        self.differences = tuple(differences)
        super().__init__(
            "the tables differ from what this version makes: "
            + "; ".join(self.differences)
            + ". `nightmail migrate --repair` makes missing indexes again"
        )


class NotAllowed(NightmailError):
    """The account lacks a right that this needs."""


class Forbidden(NotAllowed, StoreUnavailable):
    """The account lacks a right that this needs. Workers go on trying: it may be granted."""


class DriverMissing(NightmailError, ImportError):
    """The driver for this store is not installed."""

    def __init__(self, driver: str, extra: str) -> None:
        self.driver = driver
        self.extra = extra
        super().__init__(f"{driver} is not installed. Run: pip install 'nightmail[{extra}]'")
