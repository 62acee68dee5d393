"""How long a run still takes, from how long its parts usually take and how this machine compares."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Final

from rich.progress import ProgressColumn
from rich.text import Text

BELIEVED_SECONDS: Final = 60.0
"""So much of the run has to be over for its pace to count as much as the plan."""


class Estimate:
    """The parts of a run, each with the seconds that it should take."""

    def __init__(self, seconds: Sequence[float], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._clock = seconds, clock
        self._begun = self._part_begun = clock()
        self._part = 0

    def begin(self, part: int) -> None:
        """All parts before this one are over."""
        self._part, self._part_begun = part, self._clock()
        if part == 0:
            self._begun = self._part_begun

    def end(self) -> None:
        """All parts are over."""
        self._part = len(self._seconds)

    @property
    def left(self) -> float:
        """In seconds. What a part takes longer than expected is counted when it is over."""
        if self._part == len(self._seconds):
            return 0.0
        planned, took = sum(self._seconds[: self._part]), self._part_begun - self._begun
        pace = (took + BELIEVED_SECONDS) / (planned + BELIEVED_SECONDS)
        now, *later = (pace * seconds for seconds in self._seconds[self._part :])
        return max(0.0, now - (self._clock() - self._part_begun)) + sum(later)


class Left(ProgressColumn):
    """The estimate, beside the bar."""

    def __init__(self, estimate: Estimate) -> None:
        super().__init__()
        self._estimate = estimate

    def render(self, task: object) -> Text:
        """Its text now."""
        return Text(
            f"about {str(timedelta(seconds=round(self._estimate.left))).removeprefix('0:').lstrip('0')} left"
        )
