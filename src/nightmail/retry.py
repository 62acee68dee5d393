"""Retry policies: pure functions from a failed delivery and its error to its outcome."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar, Final, Self, TypeAlias

from nightmail.durations import Duration, as_timedelta, spoken
from nightmail.message import Delivery
from nightmail.outcome import Dead, Outcome, Reason, Retry

RetryPolicy: TypeAlias = Callable[[Delivery, Exception | None], Outcome]
"""Decides what follows a failed run. The error is `None` when the handler asked for a retry without raising.

The worker adds the error's text to a `Dead` or a `Retry` that has none.
"""


# Ten years: a longer delay is a mistake, but a policy that raises would send the message to the dead letters.
_LONGEST: Final = timedelta(days=3650).total_seconds()


@dataclass(frozen=True, kw_only=True)
class _Backoff:
    """What the policies share: a limit on attempts, a maximum delay, and jitter that never exceeds it."""

    maximum: Duration | None = None
    """The longest delay, jitter included; `None` is no limit."""
    jitter: float = 0.2
    """The jitter as a share of the delay: 0.2 is 20 % either way."""
    max_attempts: int | None = 10
    """How many times the handler runs in all; `None` is no limit."""
    chance: Callable[[], float] = field(default=random.random, repr=False, compare=False)

    def __new__(cls, *unnamed: Any, **_named: Any) -> Self:
        """Refuse `ConstantRetry(5)`: five seconds, or five attempts?"""
        if unnamed:
            delay = cls._first_delay
            raise TypeError(
                f"{cls.__name__} takes its arguments by name: {cls.__name__}({delay}={unnamed[0]!r}) waits so long, "
                f"{cls.__name__}(max_attempts={unnamed[0]!r}) tries so often"
            )
        return super().__new__(cls)

    _first_delay: ClassVar[str] = "initial"

    def __post_init__(self) -> None:
        if self.maximum is not None:
            _not_negative("maximum", self.maximum)
        if not 0 <= self.jitter <= 1:
            raise ValueError(f"jitter must be 0 to 1, not {self.jitter}: more would make delays negative")
        if self.max_attempts is not None and self.max_attempts < 1:
            raise ValueError(
                f"max_attempts must be at least 1, or None for no limit, not {self.max_attempts}"
            )

    def __call__(self, delivery: Delivery, error: Exception | None) -> Outcome:
        if self.max_attempts is not None and delivery.attempt >= self.max_attempts:
            return Dead(Reason.RETRIES_EXHAUSTED)
        longest = _LONGEST if self.maximum is None else as_timedelta("maximum", self.maximum).total_seconds()
        strayed = min(self._seconds(delivery.attempt), longest) * (1 + self.jitter * (2 * self.chance() - 1))
        return Retry(timedelta(seconds=min(strayed, longest)))

    def _seconds(self, attempt: int) -> float:
        """The delay after this attempt (from 1), before jitter and the maximum."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class ExponentialRetry(_Backoff):
    """Wait `initial`, then `factor` times as long after each failure. The default."""

    maximum: Duration | None = timedelta(minutes=5)
    initial: Duration = timedelta(seconds=1)
    factor: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _not_negative("initial", self.initial)
        if not (math.isfinite(self.factor) and self.factor >= 1):
            raise ValueError(f"factor must be at least 1, not {self.factor}: delays should not shrink")

    def _seconds(self, attempt: int) -> float:
        initial = as_timedelta("initial", self.initial).total_seconds()
        try:
            return initial * self.factor ** (attempt - 1)
        except OverflowError:
            return math.inf if initial else 0.0


@dataclass(frozen=True, kw_only=True)
class LinearRetry(_Backoff):
    """Wait `initial`, then `step` longer after each failure."""

    maximum: Duration | None = timedelta(minutes=5)
    initial: Duration = timedelta(seconds=1)
    step: Duration = timedelta(seconds=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        _not_negative("initial", self.initial)
        _not_negative("step", self.step)

    def _seconds(self, attempt: int) -> float:
        step = as_timedelta("step", self.step).total_seconds()
        return as_timedelta("initial", self.initial).total_seconds() + step * (attempt - 1)


@dataclass(frozen=True, kw_only=True)
class ConstantRetry(_Backoff):
    """Wait the same time after each failure."""

    delay: Duration = timedelta(seconds=1)
    _first_delay: ClassVar[str] = "delay"

    def __post_init__(self) -> None:
        super().__post_init__()
        _not_negative("delay", self.delay)

    def _seconds(self, attempt: int) -> float:
        return as_timedelta("delay", self.delay).total_seconds()


@dataclass(frozen=True)
class NoRetry:
    """Give up after the first failure."""

    def __call__(self, delivery: Delivery, error: Exception | None) -> Outcome:
        return Dead(Reason.RETRIES_EXHAUSTED)


def _not_negative(name: str, value: Duration) -> None:
    if as_timedelta(name, value) < timedelta(0):
        raise ValueError(f"{name} must not be negative, not {spoken(as_timedelta(name, value))}")
