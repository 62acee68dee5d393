"""When to look again: pure arithmetic on a monotonic clock."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import timedelta
from typing import Final

FIRST_BACKOFF: Final = 0.1
LONGEST_BACKOFF: Final = 1.5
"""Work must resume at most two seconds after the store is back; a look at a store that is down costs little."""


def backoff(failures: int, chance: Callable[[], float] = random.random) -> float:
    """Seconds to wait after so many failures in a row: doubling up to 1.5, minus a jitter of up to half.

    Jitter keeps a fleet of workers from hitting a recovering server all at once.
    """
    longest = min(FIRST_BACKOFF * 2.0 ** min(failures - 1, 16), LONGEST_BACKOFF)
    return longest * (0.5 + chance() / 2)


class Alarm:
    """The moment of the next look, on a monotonic clock."""

    def __init__(self) -> None:
        self._at = 0.0
        self.is_routine = False
        """Whether nothing is expected then: the look is made only because the interval has passed."""

    def set(self, at: float, *, routine: bool = False) -> None:
        """Look at this moment."""
        self._at = at
        self.is_routine = routine

    def at_once(self) -> None:
        """Look as soon as there is room."""
        self.set(0.0)

    def put_off(self, at: float, *, routine: bool) -> None:
        """Another's look saw that nothing is due before that moment. It never makes a look earlier."""
        if self.is_routine:
            self.set(max(at, self._at), routine=routine)

    def seconds_from(self, now: float) -> float:
        """How long until then; never negative."""
        return max(self._at - now, 0.0)


def next_look(sent: float, next_in: timedelta | None, interval: timedelta) -> float:
    """When to look again after a claim that was sent at `sent` and did not come back full.

    Counted from before the claim was sent: a little early costs one query, a little late delays a message.
    """
    wait = interval if next_in is None else min(next_in, interval)
    return sent + wait.total_seconds()


def is_routine(next_in: timedelta | None, interval: timedelta) -> bool:
    """Whether nothing is expected within the interval."""
    return next_in is None or next_in >= interval
