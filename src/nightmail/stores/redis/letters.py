"""Dead letters are claimed like messages, but without keys, priorities and shares: the longest due go first."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from nightmail.limits import MAX_STORED_HEADERS_BYTES
from nightmail.message import Delivery
from nightmail.stores.redis.claiming import Claiming, limits
from nightmail.stores.redis.lane import Lane
from nightmail.stores.redis.letter_records import dead_deliveries
from nightmail.stores.redis.requests import Call
from nightmail.stores.redis.script_calls import NO_LETTER, ScriptCalls
from nightmail.stores.shared.wanted import Wanted

_AGE: Final = attrgetter("due_at", "id")


class Letters(Claiming):
    """Claims of dead letters, on the connection for claims."""

    recall_script = "recall_dead"

    def __init__(self, lane: Lane, calls: ScriptCalls, max_body_bytes: int) -> None:
        super().__init__(lane, calls, dead_deliveries)
        self._max_body_bytes = max_body_bytes

    async def first_letter(self) -> int:
        """See `Claiming`. These calls make none."""
        return NO_LETTER

    async def prepared(self, wanted: Wanted, *, first: bool) -> Call:
        """See `Claiming`."""
        return self.calls.call(
            "claim_dead",
            self.tags(wanted.queues),
            *limits(wanted, first=first),
            self._max_body_bytes,
            MAX_STORED_HEADERS_BYTES,
        )

    def put_in_order(self, claimed: list[Delivery], queues: Sequence[str]) -> None:
        """The longest due first."""
        claimed.sort(key=_AGE)
