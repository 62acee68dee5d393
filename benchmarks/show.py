"""Results as plain text, for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.bounds import Verdict
from benchmarks.results import Results, Row, Table
from benchmarks.statistics import Spread, ratio


def table_lines(table: Table) -> list[str]:
    """A table, with what each system is to the first."""
    title = f"{table.scenario} on {table.store}: {table.case}, {table.unit}".rstrip(", ")
    lines = [f"{title} ({table.note})" if table.note else title]
    first = table.rows[0] if table.rows else None
    width = max((len(row.system) for row in table.rows), default=0)
    ratios = [compared(first, row) for row in table.rows]
    wide = max(8, *map(len, ratios)) if ratios else 0
    lines += [
        f"  {row.system:<{width}} {value(row.spread):>12}  {times:<{wide}}  {extent(row)}".rstrip()
        for row, times in zip(table.rows, ratios, strict=True)
    ]
    return lines


def compared(first: Row | None, row: Row) -> str:
    """How many times the first system's figure is that of another: `x 2.30`, of several rounds `x 2.30 (2.11 to 2.61)`.

    The spread is that of the ratios, each of one round.
    """
    if first is None or row is first:
        return ""
    found = ratio(first.values, row.values)
    if found is None:
        return ""
    several = min(len(first.values), len(row.values)) > 1
    return f"x {found.median:.2f}" + (f" ({found.low:.2f} to {found.high:.2f})" if several else "")


def extent(row: Row) -> str:
    """From the worst to the best round, or why there is none."""
    if row.spread is None or row.note:
        return row.note
    if len(row.values) == 1:
        return ""
    return f"{number(row.spread.low)} to {number(row.spread.high)}, {len(row.values)} rounds"


def value(found: Spread | None) -> str:
    """A median."""
    return "-" if found is None else number(found.median)


def number(amount: float) -> str:
    """As many digits as mean something."""
    if abs(amount) >= 100:
        return f"{amount:,.0f}"
    return f"{amount:.1f}" if abs(amount) >= 10 else f"{amount:.3g}"


def verdict_line(verdict: Verdict, width: int) -> str:
    """One line of the summary."""
    unit = verdict.bound.unit
    found = verdict.value
    measured = "" if found is None else f"{number(found.median)} {unit}"
    rounds = (
        "" if found is None or found.low == found.high else f"({number(found.low)} to {number(found.high)})"
    )
    note = f"[{verdict.note}]" if verdict.note and found is not None else ""
    why = f"why: {verdict.why}" if verdict.why else ""
    line = f"  {verdict.word:<12} {verdict.bound.what:<{width}}  {measured:>18}  {verdict.bound!s:<24}"
    return " ".join([line, *filter(None, (rounds, note, why))]).rstrip()


def summary_lines(verdicts: Sequence[Verdict]) -> list[str]:
    """Every bound, and how many hold."""
    width = max((len(verdict.bound.what) for verdict in verdicts), default=0)
    counts = {word: sum(verdict.holds is word for verdict in verdicts) for word in (True, False, None)}
    return [
        *(verdict_line(verdict, width) for verdict in verdicts),
        f"{counts[True]} hold, {counts[False]} missed, {counts[None]} not measured",
    ]


def conditions(results: Results) -> list[str]:
    """Where and on what it ran."""
    lines = [f"{name}: {what}" for name, what in results.machine.items()]
    for server, settings in results.servers.items():
        lines.append(f"{server}: " + ", ".join(f"{name} {what}" for name, what in settings.items()))
    lines.append("peers: " + ", ".join(f"{name} {version}" for name, version in results.peers.items()))
    return lines


def failure_line(failure: dict[str, str]) -> str:
    """What failed, and the first line of its error: what follows is the end of a log."""
    return f"{failure['what']}: {failure['error'].partition(chr(10))[0]}"
