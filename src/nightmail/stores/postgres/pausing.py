"""What the pauses of its queues mean for a claim.

A claim asks for them in its own statement, and leaves out what is paused. Only when one is past its end there is
more to do: delete it or, if it is automatic, take a probe.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import Enum, auto
from typing import Any, NamedTuple

from nightmail.clock import Clock
from nightmail.stores.sql.statements import Statement
from nightmail.stores.sql.verbs import Ask, Verb


class Pauses(Enum):
    """What a look makes of the pauses of its queues."""

    HEEDED = auto()
    """If one is past its end, nothing is claimed before that is seen to."""
    SEEN_TO = auto()
    """Those past their ends were seen to: what is still paused is left out."""
    PROBED = auto()
    """One message is to be taken although its queue is paused. Paused ordering keys are left out."""


class Renewal(NamedTuple):
    """An automatic pause that was renewed."""

    queue: str
    before: datetime
    until: datetime


class Pausing:
    """Ends pauses, and renews those that are probed."""

    def __init__(self, statements: Mapping[str, Statement], clock: Clock) -> None:
        self._statements = statements
        self._clock = clock
        self.met: dict[frozenset[str], int] = {}
        """How many pauses the last claim of these queues met, if any."""

    def changed(self, queues: Sequence[str], pauses: int) -> int:
        """Record how many pauses a claim met; return how many more there are than at the last one."""
        before = self.met.pop(frozenset(queues), 0)
        if pauses:
            self.met[frozenset(queues)] = pauses
        return pauses - before

    def see_to(self, queues: Sequence[str]) -> Verb[list[str]]:
        """End those that are over; return the queues to be probed, in the order given."""
        found = yield self._ask("see_to_pauses", {"queues": list(queues)})
        to_probe = {row["queue"] for row in found}
        return [queue for queue in queues if queue in to_probe]

    def renew(self, queue: str) -> Verb[Renewal | None]:
        """Renew the automatic pause of this queue, past its end; `None` if another process did, or ended it."""
        found = yield self._ask("renew_pause", {"queue": queue})
        return Renewal(queue, found[0]["before"], found[0]["until"]) if found else None

    def put_back(self, renewal: Renewal) -> Verb[None]:
        """Undo a renewal: there was nothing to take."""
        yield self._ask("put_pause_back", renewal._asdict())

    def _ask(self, name: str, values: Mapping[str, Any]) -> Ask:
        return Ask(self._statements[name], {**values, "now": self._clock.now()})
