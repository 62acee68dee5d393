"""Headers that say which dead letter a redriven message comes from."""

from __future__ import annotations

from typing import Final

from nightmail.message import MAX_HEADERS_BYTES, encode_headers, without_reserved
from nightmail.records import DeadLetter

LETTER: Final = "nightmail-dead-letter"
MESSAGE: Final = "nightmail-died-as"
QUEUE: Final = "nightmail-died-in"
REASON: Final = "nightmail-dead-reason"
MOMENT: Final = "nightmail-died-at"
TIMES: Final = "nightmail-redriven"
_DIGITS: Final = 10
"""A number with at least this many digits is not read: Python refuses very long ones."""


def redriven_headers(letter: DeadLetter) -> str:
    """The headers of the message that this dead letter becomes.

    Headers that cannot be decoded, perhaps the reason it died, stay as they are: their reader may have been fixed
    meanwhile. So do headers that could not be encoded again.
    """
    try:
        before = letter.headers
        headers = {
            **without_reserved(before),
            LETTER: str(letter.id),
            MESSAGE: str(letter.message_id),
            QUEUE: letter.queue,
            REASON: letter.reason,
            MOMENT: letter.died_at.isoformat(),
            TIMES: str(_times(before.get(TIMES)) + 1),
        }
        # The headers a dead letter came with must not keep it from being redriven.
        return encode_headers(headers, limit=len(letter.encoded_headers) + MAX_HEADERS_BYTES)
    except (ValueError, RecursionError):
        return letter.encoded_headers


def _times(told: object) -> int:
    """How often a message was redriven before, by its own header; other software may have written anything there."""
    return (
        int(told)
        if isinstance(told, str) and len(told) < _DIGITS and told.isascii() and told.isdecimal()
        else 0
    )
