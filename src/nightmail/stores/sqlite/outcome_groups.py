"""Settlements of a batch, grouped by what has to be written for them."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import assert_never

from nightmail.describing import last_error
from nightmail.outcome import Dead, Done, Outcome, Postpone, Release, Retry, WriteResult
from nightmail.store import Settlement
from nightmail.stores.sqlite.times import after


class OutcomeGroups:
    """The writes for those in a batch whose leases are held, and the write result of each."""

    def __init__(self, batch: Sequence[Settlement], held: Container[int], now: int) -> None:
        self.now = now
        self.results: list[WriteResult] = []
        self.places: list[int] = []
        """The positions in the batch that are written."""
        self.done: list[int] = []
        self.given_up: list[tuple[int, str, str | None, int]] = []
        self.retried: list[tuple[int, int, str | None]] = []
        self.postponed: list[tuple[int, int]] = []
        self.handed_back: list[int] = []
        settled: set[int] = set()
        for place, settlement in enumerate(batch):
            id_ = settlement.delivery.id
            # The first settlement of a message ends its lease, so a second one finds it lost.
            if place in held and id_ not in settled:
                settled.add(id_)
                self.places.append(place)
                self._add(id_, settlement.outcome)
                self.results.append(WriteResult.WRITTEN)
            else:
                self.results.append(WriteResult.UNKNOWN if settlement.repeated else WriteResult.LOST)

    def _add(self, id_: int, outcome: Outcome) -> None:
        match outcome:
            case Done():
                self.done.append(id_)
            case Dead(reason, error, ran):
                self.given_up.append((id_, reason, error, int(ran)))
            case Retry(delay):
                self.retried.append((id_, after(self.now, delay), last_error(outcome)))
            case Postpone(delay):
                self.postponed.append((id_, after(self.now, delay)))
            case Release():
                self.handed_back.append(id_)
            case _:
                assert_never(outcome)


def due_again(outcome: Outcome, now: int) -> int | None:
    """When a message with this outcome is due again; `None` if it does not come back."""
    match outcome:
        case Retry(delay) | Postpone(delay):
            return after(now, delay)
        case Release():
            return now
        case _:
            return None
