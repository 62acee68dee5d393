"""Worker settings. The defaults are the fast ones; nothing here needs tuning for throughput."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from nightmail.breaker import Breaker
from nightmail.describing import describe
from nightmail.durations import spoken
from nightmail.retry import ExponentialRetry, RetryPolicy

SHORTEST_LEASE: Final = timedelta(milliseconds=50)
_NOTHING: Final = timedelta(0)


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    """Checks itself when built: a wrong setting never reaches a running worker."""

    max_workers: int = 10
    """How many handlers run at once."""
    lease: timedelta = timedelta(seconds=20)
    """How long until a dead process's messages go to another; a live one renews its leases by itself.

    A process that is paused as a whole for more than seven twelfths of this may lose its messages to another.
    """
    retry: RetryPolicy = field(default_factory=ExponentialRetry)
    max_deliveries: int = 10
    """How many times in a row a worker may be lost with a message before it becomes a dead letter."""
    handler_timeout: timedelta = timedelta(hours=1)
    """How long a handler may run before it is cancelled and the message retried."""
    give_up_after: timedelta | None = None
    """For how long after its publish a message may be retried or postponed."""
    graceful_timeout: timedelta = timedelta(seconds=15)
    """How long `stop` waits for running handlers before it cancels them and hands their messages back."""
    breaker: Breaker | None = None
    """Pauses a queue whose handlers keep failing."""
    isolated: bool = False
    """Whether blocking handlers run in child processes: a message that kills its process takes nothing else down."""
    describe_error: Callable[[BaseException], str | None] = describe
    """What a dead letter, a message's last error and the log say about an error: the place to redact."""

    def described(self, error: BaseException) -> str | None:
        """What is said about this error, even if `describe_error` raises."""
        try:
            text = self.describe_error(error)
        except Exception as broken:  # noqa: BLE001 - an error whose repr raises still has a name
            return f"{type(error).__name__} (describing it raised {type(broken).__name__})"
        if text is None or isinstance(text, str):
            return text
        return f"{type(error).__name__} (describing it gave {type(text).__name__}, not text)"

    def __post_init__(self) -> None:
        _at_least_one("max_workers", self.max_workers)
        _at_least_one("max_deliveries", self.max_deliveries)
        _longer_than("lease", self.lease, SHORTEST_LEASE, "a shorter one ends before it can be renewed")
        _longer_than("handler_timeout", self.handler_timeout, _NOTHING, "no handler could finish")
        if self.give_up_after is not None:
            _longer_than("give_up_after", self.give_up_after, _NOTHING, "no message could be delivered")
        if self.graceful_timeout < _NOTHING:
            raise ValueError(f"graceful_timeout must not be negative, not {spoken(self.graceful_timeout)}")
        if self.breaker is not None and not isinstance(self.breaker, Breaker):
            raise TypeError(f"breaker must be a Breaker(...), not {type(self.breaker).__name__}")
        if isinstance(self.retry, type):
            # A class is callable too, and would send every failed message to the dead letters.
            raise TypeError(f"retry must be a policy, not its class: {self.retry.__name__}()")
        if not callable(self.retry):
            raise TypeError(
                f"retry must be a policy such as ExponentialRetry(), not {type(self.retry).__name__}"
            )


def _at_least_one(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number, not {type(value).__name__}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, not {value}")


def _longer_than(name: str, value: timedelta, bound: timedelta, otherwise: str) -> None:
    if value <= bound:
        raise ValueError(f"{name} must be longer than {spoken(bound)}, not {spoken(value)}: {otherwise}")
