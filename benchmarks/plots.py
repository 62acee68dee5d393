"""Pictures of results. matplotlib is imported only here, and only when something is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.registry import NO_STORE, SCENARIOS
from benchmarks.results import Course, Results, Table
from benchmarks.scenarios import steady
from benchmarks.scenarios.dispatch import ALONE
from benchmarks.scenarios.drain import BATCH, DEFAULT, PLAIN, PROCESSOR, TRIPS, TYPED
from benchmarks.scenarios.latency import LEAST, MACHINE
from benchmarks.scenarios.parameter import STOCK
from benchmarks.scenarios.publish import OWN_BULK, SESSION, SESSION_BULK, case
from benchmarks.show import number
from benchmarks.systems import BEST, DEFAULTS, STORES

OURS_COLOR, OTHERS_COLOR, LIMIT_COLOR = "#1b6ca8", "#b8b8b8", "#e0b04c"
FORMATS = ("png", "svg")
OVERVIEW = "overview"
HEADLINES = (
    ("publish", SESSION, "postgres"),
    ("publish", case(SESSION, 16), "postgres"),
    ("publish", SESSION_BULK, "postgres"),
    ("publish", OWN_BULK, "postgres"),
    ("drain", DEFAULT, "postgres"),
    ("drain", TYPED, "postgres"),
    ("drain", PLAIN, "postgres"),
    ("drain", BATCH, "postgres"),
)
"""The tables of the overview: where we lead, and where we do not."""
_OTHERS = (*(system.label for system in (*DEFAULTS, *BEST)), ALONE, MACHINE, STOCK)


def draw(results: Results, directory: Path) -> list[str]:
    """Write a picture for each comparison and each course over time; their names."""
    import matplotlib as mpl

    mpl.use("Agg")
    # Text stays text, and the same results give the same file.
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "nightmail", "font.size": 9})
    directory.mkdir(parents=True, exist_ok=True)
    clear(directory)
    names = []
    for (scenario, store), tables in _comparisons(results).items():
        names.append(picture_of(scenario, store))
        _save(_bars(tables), directory / names[-1])
    headlines = [table for place in HEADLINES if (table := results.table(*place)) is not None]
    if len(headlines) == len(HEADLINES):
        names.append(OVERVIEW)
        _save(_bars(headlines), directory / OVERVIEW)
    for course in results.courses:
        names.append(picture_of(course.scenario, course.store, course.case))
        _save(_lines(course), directory / names[-1])
    return names


def clear(directory: Path) -> None:
    """Remove pictures of an earlier run, and nothing else that may be there."""
    names = [picture_of(scenario.name, store) for scenario in SCENARIOS for store in (*STORES, NO_STORE)]
    for name in (*names, OVERVIEW):
        for old in directory.glob(f"{name}*"):
            if old.suffix.removeprefix(".") in FORMATS:
                old.unlink()


def picture_of(scenario: str, store: str, case: str = "") -> str:
    """The name of a file, without its suffix."""
    words = f"{scenario} {store} {case}".replace(",", " ").split()
    return "-".join(words)


def _comparisons(results: Results) -> dict[tuple[str, str], list[Table]]:
    """Tables in which several systems have figures, by scenario and store."""
    found: dict[tuple[str, str], list[Table]] = {}
    for table in results.tables:
        if _is_drawn(table) and sum(bool(row.values) for row in table.rows) > 1:
            found.setdefault((table.scenario, table.store), []).append(table)
    return found


def _is_drawn(table: Table) -> bool:
    """Not the earliest timer, which is a matter of zero or more, and not what explains other figures."""
    return table.case not in (LEAST, TRIPS, steady.WANTED, steady.BEHIND) and not table.case.startswith(
        PROCESSOR.partition(",")[0]
    )


def _bars(tables: Sequence[Table]) -> Any:
    import matplotlib.pyplot as plt

    heights = [0.6 + 0.26 * len(table.rows) for table in tables]
    figure, axes = plt.subplots(
        len(tables), 1, figsize=(7.5, sum(heights) + 0.35 * len(tables)), squeeze=False, height_ratios=heights
    )
    for axis, table in zip(axes[:, 0], tables, strict=True):
        rows = list(reversed(table.rows))
        for place, row in enumerate(rows):
            if (spread := row.spread) is None:
                note = f" {row.note or 'not measured'}"
                axis.annotate(note, (0, place), xycoords=("axes fraction", "data"), va="center", fontsize=8)
                continue
            axis.barh(place, spread.median, color=_color(row.system), height=0.7)
            axis.plot([spread.low, spread.high], [place, place], color="#444444", linewidth=1)
            axis.annotate(
                f" {number(spread.median)}", (max(spread.high, spread.median), place), va="center", fontsize=8
            )
        axis.set_yticks(range(len(rows)), [row.system for row in rows])
        if table.less_is_better and _wide(table):
            axis.set_xscale("log")
        axis.set_ylim(-0.6, len(rows) - 0.4)
        axis.margins(x=0.12)
        axis.spines[["top", "right"]].set_visible(False)
        better = "less is better" if table.less_is_better else "more is better"
        axis.set_title(
            f"{table.scenario} on {table.store}: {table.case}\n{table.unit or 'count'}, {better}",
            fontsize=9,
            loc="left",
            # From where the names begin: a long title would be wider than the picture.
            x=-0.2,
        )
    figure.tight_layout()
    return figure


def _wide(table: Table) -> bool:
    """Whether the figures are too far apart for one scale."""
    values = [row.spread.median for row in table.rows if row.spread is not None]
    return min(values) > 0 and max(values) / min(values) > 30


def _color(system: str) -> str:
    """Rows that name no other system are ours, whatever they are called: a part of a million, a command."""
    if system.startswith(_OTHERS):
        return OTHERS_COLOR
    return LIMIT_COLOR if system == "by hand" else OURS_COLOR


def _lines(course: Course) -> Any:
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(7.5, 2.6))
    for name, values in course.lines.items():
        axis.plot(course.seconds, values, label=name, linewidth=1.2)
    for name, (since, until) in course.spans.items():
        axis.axvspan(since, until, color="#eeeeee", label=name)
    axis.set_ylim(bottom=0)
    axis.set_xlabel("seconds")
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(fontsize=8, frameon=False)
    axis.set_title(
        f"{course.scenario} on {course.store}: {course.case}, {course.unit}", fontsize=9, loc="left"
    )
    figure.tight_layout()
    return figure


def _save(figure: Any, path: Path) -> None:
    import matplotlib.pyplot as plt

    for suffix in FORMATS:
        # No date in it, or the file would change with every run of the report.
        metadata = {"Date": None} if suffix == "svg" else {"Software": None}
        # Titles begin to the left of the axes: what stands out belongs to the picture.
        figure.savefig(f"{path}.{suffix}", dpi=110, metadata=metadata, bbox_inches="tight")
    plt.close(figure)
