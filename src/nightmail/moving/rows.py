"""A row of faststream-outbox as a message that our handlers get as theirs would have."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from nightmail.message import Message

ORIGIN: Final = "faststream-outbox-id"
"""A header with the row's old id: for handlers that deduplicate by `message_id`."""
COLUMNS: Final = (
    "id",
    "queue",
    "payload",
    "headers",
    "next_attempt_at",
    "acquired_at",
    "acquired_token",
    "timer_id",
)
DEAD_COLUMNS: Final = (
    "id",
    "original_id",
    "queue",
    "payload",
    "headers",
    "deliveries_count",
    "created_at",
    "failed_at",
    "failure_reason",
    "last_exception",
    "timer_id",
)


def as_message(row: Mapping[str, Any]) -> Message:
    """The same queue, body, due time and timer id; headers as they are, and where the row comes from.

    Raises `ValueError` for what we could not store.
    """
    headers = json.loads(row["headers"] or "{}")
    if headers is None:
        headers = {}
    if not isinstance(headers, dict):
        raise ValueError("its headers are not a JSON object")  # noqa: TRY004 - bad data, not a bad argument
    origin = str(row["id"])
    # There, a row without a correlation id is correlated by its own id: what has recorded that must still match.
    headers = {"correlation_id": origin, ORIGIN: origin} | headers
    return Message(
        queue=row["queue"],
        body=row["payload"],
        headers=headers,
        due=row["due_at"],
        timer_id=row["timer_id"],
    )


def quoted(table: str) -> str:
    """`table` or `schema.table`, quoted: the names may be anything."""
    schema, dot, name = table.rpartition(".")
    parts = [schema, name] if dot else [name]
    if not all(parts) or "\x00" in table:
        raise ValueError(f"{table!r} is no table: give its name, or schema.name")
    return ".".join('"' + part.replace('"', '""') + '"' for part in parts)
