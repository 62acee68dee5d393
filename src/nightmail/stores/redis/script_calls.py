"""What every call of a script has in common: the time, the bell, and an id for a dead letter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from nightmail.clock import Clock
from nightmail.stores.redis.ids import digits
from nightmail.stores.redis.keys import Keys
from nightmail.stores.redis.requests import Argument, Call
from nightmail.stores.redis.scripts import Script, script
from nightmail.stores.redis.times import now_argument

NO_LETTER: Final = 0


class ScriptCalls:
    """Calls for the queues of one store."""

    def __init__(self, keys: Keys, clock: Clock, *, sharded: bool) -> None:
        self.keys = keys
        self.clock = clock
        self._ring = "SPUBLISH" if sharded else "PUBLISH"

    def call(
        self,
        name: str | Script,
        tags: Sequence[str],
        *arguments: Argument,
        letter: int = NO_LETTER,
        more_seconds: float = 0,
    ) -> Call:
        """A call of this script for the queues with these tags; `letter` is the id of the first dead letter."""
        common = (now_argument(self.clock), self._ring, self.keys.channel_suffix, digits(letter))
        called = script(name) if isinstance(name, str) else name
        return Call(called, tuple(tags), (*common, *arguments), more_seconds=more_seconds)
