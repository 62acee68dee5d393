"""Retrying transient errors of the server, and counting the retries."""

from __future__ import annotations

import random
from collections import Counter
from typing import Final

from nightmail.stores.mysql.errors import number_of

TRIES: Final = 6
SHORTEST_PAUSE: Final = 0.005
LONGEST_PAUSE: Final = 0.25


class Retries:
    """Counts retries by error number. One for all connections of a store."""

    def __init__(self) -> None:
        self.counted: Counter[int] = Counter()

    def pause(self, error: BaseException, attempt: int) -> float:
        """Count this error; returns how many seconds to wait before the next attempt."""
        self.counted[number_of(error) or 0] += 1
        longest = min(SHORTEST_PAUSE * 2**attempt, LONGEST_PAUSE)
        # With jitter: those that collided would collide again.
        jittered: float = longest * random.uniform(0.3, 1.0)  # noqa: S311 - jitter is not cryptography
        return jittered
