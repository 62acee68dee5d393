"""How a delivery ended: one `Result` for each, set while its handler runs, and read once, by `Attempt.settlement`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TypeAlias

from nightmail.outcome import Done, Outcome


@dataclass(frozen=True, slots=True)
class Nacked:
    """Failed: the retry policy decides what follows; the handler may have given the delay of a retry."""

    delay: timedelta | None = None


@dataclass(frozen=True, slots=True)
class PausesQueue:
    """Not yet: look again after `delay`, and give out nothing else of its queue until then."""

    delay: timedelta
    reason: str | None = None


Decision: TypeAlias = Outcome | Nacked | PausesQueue
"""What is to become of a delivery, as its handler says or its acknowledgement policy."""


@dataclass(slots=True, eq=False)
class Result:
    """What is known of how one delivery ended."""

    decision: Decision | None = None
    error: Exception | None = None
    """What went wrong: the handler raised it, or could not acknowledge in its own transaction because of it."""
    acked_in_transaction: bool = False
    """Acknowledged in the handler's own transaction. Whether that commits is not known here."""

    def decide(self, decision: Decision) -> None:
        """Keep this decision unless there is one already: the first counts.

        After an acknowledgement in a transaction, or one that was refused, nothing is left to be called done: only
        another decision counts then.
        """
        if self.decision is None and not (
            (self.acked_in_transaction or self.error is not None) and isinstance(decision, Done)
        ):
            self.decision, self.error = decision, None

    def refuse(self, error: Exception) -> None:
        """Its acknowledgement in a transaction was refused: it is not done, even if its handler ignores that."""
        if self.may_be_done:
            self.decision, self.error = None, error

    def undo(self) -> None:
        """Its handler's writes are undone, so it is not done either."""
        if isinstance(self.decision, Done) or (self.decision is None and self.acked_in_transaction):
            self.decision = Nacked()

    def void(self, error: Exception) -> None:
        """Whatever was decided could not be written: it has failed."""
        self.decision, self.error = Nacked(), error

    @property
    def may_be_done(self) -> bool:
        """Whether nothing was decided yet that keeps it from being done."""
        return self.decision is None or isinstance(self.decision, Done)
