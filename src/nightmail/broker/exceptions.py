"""A decision that a handler raises, in addition to FastStream's."""

from __future__ import annotations

from faststream.exceptions import NackMessage

from nightmail.broker.delays import as_delay
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
