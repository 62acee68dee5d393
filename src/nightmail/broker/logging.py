"""FastStream's access log, with a column for the queue."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from nightmail.broker._upstream import DefaultLoggerStorage, get_broker_logger, make_logger_state

if TYPE_CHECKING:
    from nightmail.broker._upstream import ContextRepo, LoggerProto

_ID_WIDTH: Final = 10


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
                message_id_ln=_ID_WIDTH,
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
