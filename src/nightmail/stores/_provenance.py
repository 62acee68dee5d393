"""Where a message that was a dead letter comes from, told in its headers."""

from __future__ import annotations

from typing import Final

from nightmail.message import encode_headers
from nightmail.records import DeadLetter

LETTER: Final = "nightmail-dead-letter"
MESSAGE: Final = "nightmail-died-as"
QUEUE: Final = "nightmail-died-in"
REASON: Final = "nightmail-died-of"
MOMENT: Final = "nightmail-died-at"
TIMES: Final = "nightmail-redriven"


def redriven_headers(letter: DeadLetter) -> str:
    """The letter's headers, as the message that it becomes has them.

    Headers that cannot be decoded, which may be what it died of, stay as they are: an operator may have mended
    whoever reads them.
    """
    try:
        headers = letter.headers
    except (ValueError, RecursionError):
        return letter.encoded_headers
    before = headers.get(TIMES)
    headers |= {
        LETTER: str(letter.id),
        MESSAGE: str(letter.message_id),
        QUEUE: letter.queue,
        REASON: letter.reason,
        MOMENT: letter.died_at.isoformat(),
        TIMES: str(int(before) + 1 if isinstance(before, str) and before.isdecimal() else 1),
    }
    return encode_headers(headers)
