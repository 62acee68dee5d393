"""Ids that a process makes by itself: a publish in a pipeline must tell its id before the server has seen it.

63 bits: 51 of microseconds since 2025, which last until the year 2096, and 12 of a number that the server hands out to
each store that is opened. Two stores make the same id only if 4,096 were opened between them, both still live, and both
use the same microsecond; and then the script gives the second message the next one. Outside pipelines the script also
sees to it that the ids of a queue go in the order of the writes, whatever the clocks of the publishers say.
"""

from __future__ import annotations

import time
from typing import Final

PROCESS_BITS: Final = 12
BEGINNING: Final = 1_735_689_600_000_000
DIGITS: Final = 16
NOT_STORED: Final = b" " * DIGITS


class Ids:
    """Ids of one open store: each higher than the one before."""

    def __init__(self, process: int) -> None:
        self._process = process % (1 << PROCESS_BITS)
        self._last = 0

    def next(self, reserve: int = 1) -> int:
        """The first of so many ids that nobody else makes; each of the others is one microsecond later."""
        first = max(time.time_ns() // 1000 - BEGINNING, self._last + 1)
        self._last = first + reserve - 1
        return (first << PROCESS_BITS) | self._process


def following(first: int, place: int) -> int:
    """The id so many places behind the first of those that were reserved."""
    return first + (place << PROCESS_BITS)


def digits(id_: int) -> bytes:
    """An id as it is in keys. What is no id of ours is no key either."""
    return b"%016x" % (id_ & 0xFFFF_FFFF_FFFF_FFFF)


def stored_ids(answer: bytes) -> list[int | None]:
    """The ids in an answer of a script, one for each message; `None` for one that was not stored."""
    parts = (answer[at : at + DIGITS] for at in range(0, len(answer), DIGITS))
    return [None if part == NOT_STORED else int(part, 16) for part in parts]
