"""Figures in readable form, each next to its bound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """One measured number, and its bound, if there is one."""

    what: str
    value: str
    bound: str = ""
    holds: bool | None = None

    def line(self, width: int) -> str:
        """One row of the report."""
        mark = {None: "", True: "ok", False: "MISSED"}[self.holds]
        return f"  {self.what:<{width}}  {self.value:>14}  {self.bound:<22}{mark}".rstrip()


def show(title: str, figures: Sequence[Figure]) -> None:
    """Print a scenario's figures."""
    print(f"\n{title}")
    width = max(len(figure.what) for figure in figures)
    for figure in figures:
        print(figure.line(width), flush=True)


def at_most(what: str, value: float, bound: float, unit: str, digits: int = 1) -> Figure:
    """A figure that should not be larger than `bound`."""
    return Figure(what, f"{value:.{digits}f} {unit}", f"at most {bound:g} {unit}", value <= bound)


def at_least(what: str, value: float, bound: float, unit: str, digits: int = 1) -> Figure:
    """A figure that should not be smaller than `bound`."""
    return Figure(what, f"{value:.{digits}f} {unit}", f"at least {bound:g} {unit}", value >= bound)


def plain(what: str, value: float, unit: str, digits: int = 0) -> Figure:
    """A figure for the record."""
    return Figure(what, f"{value:,.{digits}f} {unit}")


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which that share of them lies."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]
