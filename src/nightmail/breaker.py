"""When a queue whose handlers keep failing is paused, instead of burning the retries of everything in it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from nightmail.durations import Duration, as_positive, spoken


@dataclass(frozen=True, kw_only=True)
class Breaker:
    """Pauses a queue once its handlers have failed `failures` times `within` that time, in one process.

    After `pause` one message is let through as a probe. If it succeeds, the queue is resumed; if it fails, the next
    probe comes after twice as long, up to `maximum`. What fails while the queue is paused costs no attempt.
    """

    failures: int = 20
    """How many failures it takes; a batch that fails is one."""
    within: Duration = 60
    pause: Duration = 30
    """How long until the first probe."""
    maximum: Duration = 600
    """The longest time between two probes."""
    on: tuple[type[Exception], ...] = (Exception,)
    """Which errors count: those that say that something is down, not that one message is bad."""

    def __post_init__(self) -> None:
        if isinstance(self.failures, bool) or not isinstance(self.failures, int):
            raise TypeError(f"failures must be a whole number, not {type(self.failures).__name__}")
        if self.failures < 1:
            raise ValueError(f"failures must be at least 1, not {self.failures}")
        as_positive("within", self.within)
        if self.longest_pause < self.first_pause:
            raise ValueError(
                f"maximum must be at least as long as pause ({spoken(self.first_pause)}), "
                f"not {spoken(self.longest_pause)}"
            )
        _check_exceptions(self.on)

    @property
    def first_pause(self) -> timedelta:
        """How long until the first probe."""
        return as_positive("pause", self.pause)

    @property
    def longest_pause(self) -> timedelta:
        """The longest time between two probes."""
        return as_positive("maximum", self.maximum)

    @property
    def window(self) -> timedelta:
        """Within which time failures count together."""
        return as_positive("within", self.within)


def _check_exceptions(on: object) -> None:
    given = on if isinstance(on, tuple) else None
    if not given or not all(isinstance(each, type) and issubclass(each, Exception) for each in given):
        raise TypeError(f"on must be a tuple of exceptions, such as (ConnectionError,), not {_named(on)}")


def _named(value: object) -> str:
    return value.__name__ if isinstance(value, type) else repr(value)
