"""Medians, their spread, and ratios of rounds that ran side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class Spread:
    """The median of some rounds, and the least and the most of them."""

    median: float
    low: float
    high: float

    def times(self, factor: float) -> Spread:
        """The same in another unit."""
        return Spread(self.median * factor, self.low * factor, self.high * factor)


def spread(values: Sequence[float]) -> Spread:
    """Of at least one value."""
    return Spread(median(values), min(values), max(values))


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Spread | None:
    """The median of the ratios of each round.

    Round by round and not of the two medians: rounds of all systems are interleaved, so that a slow minute of the
    machine is in both sides of a ratio and cancels out. Where one side has fewer rounds, the others' rest is left out,
    and so are rounds in which theirs is nothing or less, which a difference can be. `None` if no round is left.
    """
    ratios = [one / other for one, other in zip(ours, theirs, strict=False) if other > 0]
    return spread(ratios) if ratios else None


def holds(value: float, *, at_least: float | None = None, at_most: float | None = None) -> bool:
    """Whether a figure keeps within its bounds, which themselves are allowed."""
    return (at_least is None or value >= at_least) and (at_most is None or value <= at_most)
