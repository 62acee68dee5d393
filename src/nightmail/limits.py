"""How large things may be: a message, a batch of them, and what one call reads into memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from nightmail.errors import BatchTooLarge, MessageTooLarge
from nightmail.message import MAX_HEADERS_BYTES, Message

MAX_BODY_BYTES: Final = 4 * 1024 * 1024
"""The largest body that a store takes unless it is told otherwise. Every server stores it at its defaults."""
MAX_STORED_HEADERS_BYTES: Final = 16 * MAX_HEADERS_BYTES
"""The largest headers that are read: a redrive adds to them, and other software may have written more."""
MAX_BATCH_MESSAGES: Final = 50_000
MAX_BATCH_BYTES: Final = 32 * 1024 * 1024
"""A batch is one statement, all or none: a larger one would outlast the time a statement may take."""
CLAIM_BYTES: Final = 16 * 1024 * 1024
"""How many bytes of messages one claim, or one page of dead letters, reads at most."""


def check_max_body_bytes(limit: int) -> int:
    """The limit; raises if it is not valid."""
    if isinstance(limit, bool) or not isinstance(limit, int):
        raise TypeError(f"max_body_bytes must be a whole number of bytes, not {type(limit).__name__}")
    if limit < 1:
        raise ValueError(f"max_body_bytes must be positive, not {limit}")
    return limit


def check_size(message: Message, max_body_bytes: int) -> None:
    """Refuse a message that is larger than the store takes."""
    if len(message.body) > max_body_bytes:
        raise MessageTooLarge(len(message.body), max_body_bytes)


def check_batch(messages: Sequence[Message], max_body_bytes: int) -> None:
    """Refuse a batch with timer ids, with a message that is too large, or that is too large as a whole."""
    if len(messages) > MAX_BATCH_MESSAGES:
        raise BatchTooLarge(f"{len(messages):,} messages, at most {MAX_BATCH_MESSAGES:,}")
    total = 0
    for message in messages:
        if message.timer_id is not None:
            raise ValueError("a batch cannot have timer ids: publish timers one by one")
        check_size(message, max_body_bytes)
        total += len(message.body) + len(message.encoded_headers)
    # One message alone may be as large as the store allows.
    if total > MAX_BATCH_BYTES and len(messages) > 1:
        raise BatchTooLarge(f"{total:,} bytes, at most {MAX_BATCH_BYTES:,}")


class ByteBudget:
    """How many bytes one call may still take. The first message always fits, or it would never be delivered."""

    __slots__ = ("_first", "_left", "spent")

    def __init__(self, limit: int) -> None:
        self._left = limit
        self._first = True
        self.spent = False
        """Whether a message was left out because it did not fit."""

    def has_room_for(self, sizes: Sequence[int]) -> bool:
        """Whether messages of these sizes all fit."""
        return sum(sizes) <= self._left or (self._first and len(sizes) == 1)

    def take(self, size: int) -> bool:
        """Whether a message of this size fits; after one that did not, nothing fits."""
        if self.spent or (size > self._left and not self._first):
            self.spent = True
            return False
        self._first = False
        self._left -= size
        return True
