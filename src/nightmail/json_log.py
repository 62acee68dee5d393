"""The log as JSON, for those who collect it: one object in each line.

What a line is about is in its record as `extra`, so that other formatters can show it too. Here only known fields are
written: whatever else a record has may be a secret.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final

from nightmail.message import Delivery

FIELDS: Final = (
    "event",
    "queue",
    "message_id",
    "attempt",
    "deliveries",
    "error",
    "reason",
    "outcome",
    "by",
    "failures",
    "left",
    "seconds",
    "next",
    "next_at",
)
"""What our records can have besides the line: what happened, to which message, and what happens next, and when."""


def about(delivery: Delivery) -> dict[str, object]:
    """The fields of a line about this message."""
    return {"queue": delivery.queue, "message_id": str(delivery.id), "attempt": delivery.attempt}


class JSONFormatter(logging.Formatter):
    """Writes each record as one JSON object: `time`, `level`, `logger`, `message`, and what the line is about.

    `fields` are names of your own `extra` that are to be written as well.
    """

    def __init__(self, *, fields: Iterable[str] = ()) -> None:
        super().__init__()
        self._fields = tuple(dict.fromkeys((*FIELDS, *fields)))

    def format(self, record: logging.LogRecord) -> str:
        """See `Formatter`."""
        line: dict[str, Any] = {
            "time": _moment(datetime.fromtimestamp(record.created, UTC)),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: _plain(value) for name, value in fields_of(record, self._fields).items()}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        # In ASCII: no character of a message can begin a line, or move a cursor.
        return json.dumps(line)


def fields_of(record: logging.LogRecord, names: Iterable[str] = FIELDS) -> dict[str, object]:
    """Those of these fields that the record has."""
    return {name: value for name in names if (value := getattr(record, name, None)) not in (None, "")}


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return _moment(value)
    return value if isinstance(value, str | int | float | bool) else str(value)


def _moment(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
