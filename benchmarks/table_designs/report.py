"""Medians, ranges and tables, in Markdown."""

import statistics
from collections.abc import Iterable, Sequence

_FINE = 100


def spread(values: Sequence[float]) -> str:
    """The median, and the range of what was seen if that differs."""
    digits = 1 if abs(statistics.median(values)) < _FINE else 0
    middle, low, high = (
        f"{value:,.{digits}f}" for value in (statistics.median(values), min(values), max(values))
    )
    return middle if low == high else f"{middle} ({low}–{high})"


def print_table(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    print(f"\n### {title}\n")
    print("| " + " | ".join(head) + " |")
    print("|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print(end="", flush=True)
