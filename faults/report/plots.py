"""Plots of throughput and lateness through a failover."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from faults.figures import Figures


def plot_failovers(runs: Sequence[Figures], directory: Path) -> list[Path]:
    """A plot of each of these runs."""
    for run in last_failovers(runs):
        _plot(run, directory / _file(run))
    return plots_of(runs, directory)


def plots_of(runs: Sequence[Figures], directory: Path) -> list[Path]:
    """Where these plots are."""
    return [directory / _file(run) for run in last_failovers(runs)]


def _file(run: Figures) -> str:
    return f"failover-{run.store}.svg"


def last_failovers(runs: Sequence[Figures]) -> list[Figures]:
    """The last `failover` run on each store, whatever it found."""
    last = {run.store: run for run in runs if run.scenario == "failover"}
    return [run for _, run in sorted(last.items())]


def title(run: Figures) -> str:
    """What stands above a plot."""
    broken = f"\n{broken_promises(run)}" if run.violations else ""
    return f"{run.server}, {run.store}, seed {run.seed}: the store is hit in the grey times{broken}"


def broken_promises(run: Figures) -> str:
    """How many, in words."""
    count = len(run.violations)
    return f"{count} promise{'s' if count > 1 else ''} broken"


def _plot(run: Figures, path: Path) -> None:
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "nightmail"  # The same results give the same file.
    from matplotlib import pyplot

    seconds = [second for second, _, _ in run.timeline]
    figure, (above, below) = pyplot.subplots(2, 1, sharex=True, figsize=(8, 4), layout="constrained")
    above.step(seconds, [runs for _, runs, _ in run.timeline], where="post")
    above.set_ylabel("runs in a second")
    above.set_title(title(run))
    below.step(seconds, [late for _, _, late in run.timeline], where="post")
    below.set_ylabel("latest, s")
    below.set_xlabel("seconds")
    for axes in (above, below):
        axes.set_ylim(bottom=0)
        for begun, ended in run.outages:
            axes.axvspan(begun, ended, color="0.85")
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
