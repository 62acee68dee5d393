"""The access log, with a column for the queue.

FastStream's own logs each error with its traceback, and "Processed" after it. Here a failure is one line, logged by
`LoggingObserver` once its outcome is known: the access log shows what was received and what succeeded. Tracebacks and
the access log are at level DEBUG: two lines for each message that goes well would hide the ones that matter.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from faststream.exceptions import IgnoredException, NackMessage, RejectMessage
from faststream.message import SourceType
from faststream.middlewares import BaseMiddleware

from nightmail.broker._upstream import (
    DefaultLoggerStorage,
    EmptyLoggerObject,
    LoggerState,
    get_broker_logger,
    make_logger_state,
)
from nightmail.broker.exceptions import PauseQueue, PostponeMessage
from nightmail.describing import describe
from nightmail.json_log import fields_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from types import TracebackType

    from faststream.message import StreamMessage

    from nightmail.broker._upstream import ContextRepo, LoggerProto
    from nightmail.observe import Log

_DEEPEST: Final = 10
"""How many causes of causes a traceback shows."""
_ID_WIDTH: Final = 10
_LONGEST_ID: Final = 20
"""What is longer is cut off: no id is, and those of Redis have 16 digits and more."""


class OutboxLoggerStorage(DefaultLoggerStorage):
    """Knows how wide the queue's column must be."""

    __slots__ = ("_queue_width",)

    def __init__(self) -> None:
        super().__init__()
        self._queue_width = 4
        self.logger_log_level = logging.INFO

    def register_subscriber(self, params: dict[str, Any]) -> None:
        """Make room for this subscriber's queues."""
        self._queue_width = max(self._queue_width, len(params.get("queue", "")))

    def get_logger(self, *, context: ContextRepo) -> LoggerProto:
        """The logger `faststream.access.nightmail`, made once."""
        if not (logger := self._get_logger_ref()):
            logger = get_broker_logger(
                name="nightmail",
                default_context={"queue": ""},
                message_id_ln=_LONGEST_ID,
                fmt=(
                    f"%(asctime)s %(levelname)-8s - %(queue)-{self._queue_width}s | "
                    f"%(message_id)-{_ID_WIDTH}s - %(message)s"
                ),
                context=context,
                log_level=self.logger_log_level,
            )
            self._logger_ref.add(logger)
        return logger


make_outbox_logger_state = partial(make_logger_state, default_storage_cls=OutboxLoggerStorage)


def log_of(state: LoggerState) -> Log | None:
    """The broker's log, once it is set up; `None` if it has none."""
    if isinstance(state.logger, EmptyLoggerObject) or not state.logger:
        return None

    def log(level: int, message: str, /, *, extra: Mapping[str, object] | None = None) -> None:
        state.log(message, level, extra=dict(extra or {}))

    return log


class Adopted(logging.Handler):
    """Writes the rest of the library's log records to the broker's log, as long as `logging` is not configured.

    Python would print it without its time and level.
    """

    def __init__(self, log: Log) -> None:
        super().__init__()
        self._write = log

    @classmethod
    def by(cls, log: Log) -> Adopted | None:
        """Attach one; `None` if the records already have a handler."""
        library = logging.getLogger("nightmail")
        if library.hasHandlers():
            return None
        adopted = cls(log)
        library.addHandler(adopted)
        return adopted

    def emit(self, record: logging.LogRecord) -> None:
        """See `Handler`."""
        self._write(record.levelno, record.getMessage(), extra=fields_of(record))

    def close(self) -> None:
        """Detach from the logger."""
        logging.getLogger("nightmail").removeHandler(self)
        super().close()


class AccessLog:
    """Makes the middleware of each message."""

    __slots__ = ("_is_enabled_for", "_level", "_state")

    def __init__(self, state: LoggerState, level: int) -> None:
        self._state = state
        self._level = level
        self._is_enabled_for = getattr(state.logger.logger, "isEnabledFor", lambda _level: True)

    @property
    def is_wanted(self) -> bool:
        """Whether the logger would write anything of it. Asked for each message: levels change while a service runs."""
        return bool(self._is_enabled_for(self._level))

    def __call__(self, msg: Any | None, /, *, context: ContextRepo) -> BaseMiddleware:
        """The middleware of one message."""
        return _AccessLogMiddleware(
            msg, state=self._state, level=self._level, is_enabled_for=self._is_enabled_for, context=context
        )


class _AccessLogMiddleware(BaseMiddleware):
    __slots__ = ("_is_answer", "_is_enabled_for", "_level", "_state")

    def __init__(
        self,
        msg: Any | None,
        /,
        *,
        state: LoggerState,
        level: int,
        is_enabled_for: Callable[[int], bool],
        context: ContextRepo,
    ) -> None:
        super().__init__(msg, context=context)
        self._is_enabled_for = is_enabled_for
        self._state = state
        self._level = level
        self._is_answer = False

    async def consume_scope(self, call_next: Callable[[Any], Awaitable[Any]], msg: StreamMessage[Any]) -> Any:
        self._is_answer = msg.source_type is SourceType.RESPONSE
        self._say("Received")
        return await call_next(msg)

    async def after_processed(
        self,
        exc_type: type[BaseException] | None = None,
        exc_val: BaseException | None = None,
        exc_tb: TracebackType | None = None,
    ) -> bool:
        if exc_val is None:
            self._say("Processed")
        elif isinstance(exc_val, IgnoredException):
            # The outcome of these two is logged by the observer.
            if isinstance(exc_val, PostponeMessage | PauseQueue) or not isinstance(
                exc_val, NackMessage | RejectMessage
            ):
                self._say(str(exc_val))
        elif isinstance(exc_val, Exception) and self._is_enabled_for(logging.DEBUG):
            # Asked first: to describe an error and its causes takes time, for a line that may not be written.
            self._say(type(exc_val).__name__, logging.DEBUG, exc_val)
        return False

    def _say(self, what: str, level: int | None = None, error: Exception | None = None) -> None:
        if not self._is_answer:
            self._state.log(
                what,
                level or self._level,
                extra=self.context.get_local("log_context", {}),
                exc_info=None if error is None else _without_content(error),
            )


class _Described(Exception):
    """Stands for an error in a traceback: the text of the error itself may quote the message."""


def _without_content(error: BaseException, depth: int = _DEEPEST) -> _Described:
    """The same traceback, and that of what caused it, under what may be said of each."""
    shown = _Described(describe(error)).with_traceback(error.__traceback__)
    earlier = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if earlier is not None and depth:
        shown.__cause__ = _without_content(earlier, depth - 1)
    return shown
