"""Where a message that was a dead letter comes from, told in its headers."""

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
"""Python refuses to read a number of very many."""


def redriven_headers(letter: DeadLetter) -> str:
    """The letter's headers, as the message that it becomes has them.

    Headers that cannot be decoded, which may be what it died of, stay as they are: an operator may have mended
    whoever reads them. So do headers that could not be written again.
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
        # What a letter came with must not keep it from going back.
        return encode_headers(headers, limit=len(letter.encoded_headers) + MAX_HEADERS_BYTES)
    except (ValueError, RecursionError):
        return letter.encoded_headers


def _times(told: object) -> int:
    """How many times a message was redriven before, by its own account; other software may have written anything."""
    return (
        int(told)
        if isinstance(told, str) and len(told) < _DIGITS and told.isascii() and told.isdecimal()
        else 0
    )
