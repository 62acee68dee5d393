"""Decisions that a handler raises, in addition to FastStream's."""

from __future__ import annotations

from faststream.exceptions import NackMessage

from nightmail.broker.delays import as_delay
from nightmail.controls import PauseRequested
from nightmail.durations import Duration


class PostponeMessage(NackMessage):
    """Raise it to be called again after `delay`: not yet, which is no failure and costs no attempt."""

    def __init__(self, delay: Duration) -> None:
        super().__init__()
        self.delay = as_delay(delay)

    def __reduce__(self) -> tuple[type[PostponeMessage], tuple[Duration]]:
        """As it is pickled: a handler in a process of its own may raise it."""
        return type(self), (self.delay,)

    def __str__(self) -> str:
        return "Message was postponed"


class PauseQueue(PauseRequested, NackMessage):
    """Raise it when nothing of this queue can be done for now: a provider is down, or asks to be left alone.

    The message comes again after `retry_after`, which costs no attempt. Until then its queue is paused, in every
    process; then one message is let through, and if that is done, the others follow.
    """

    def __reduce__(self) -> tuple[type[PauseQueue], tuple[Duration, str | None]]:
        """As it is pickled: a handler in a process of its own may raise it."""
        return type(self), (self.retry_after, self.reason)

    def __str__(self) -> str:
        return "Message was postponed, and its queue is paused"
