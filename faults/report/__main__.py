"""`python -m faults.report`: write RELIABILITY.md and its plots from what runs have written to `faults/results`."""

from __future__ import annotations

import sys
from typing import Final

from faults.commits import ROOT
from faults.report.pages import page
from faults.report.plots import plot_failovers, plots_of
from faults.report.results import RESULTS, Results, read_results

LEFT_OUT: Final = RESULTS / "left_out.md"
"""Runs that were made and are not among the results, each with the reason: a page that hid them would not be true."""
PAGE: Final = ROOT / "RELIABILITY.md"
PLOTS: Final = ROOT / "docs" / "reliability"


def whole(results: Results) -> str:
    """The whole page. Its plots are drawn apart."""
    plots = [plot.relative_to(ROOT) for plot in plots_of(results.runs, PLOTS)]
    left_out = LEFT_OUT.read_text() if LEFT_OUT.exists() else ""
    return page(results, plots, left_out=left_out)


def main() -> int:
    """Write all of it again."""
    results = read_results(RESULTS)
    if not results.runs:
        print(
            f"no results in {RESULTS}: make faults ARGS='--results faults/results/runs.jsonl'",
            file=sys.stderr,
        )
        return 1
    PLOTS.mkdir(parents=True, exist_ok=True)
    plot_failovers(results.runs, PLOTS)
    PAGE.write_text(whole(results))
    print(
        f"RELIABILITY.md, from {len(results.runs)} runs and {sum(each.seeds for each in results.simulations):,} seeds"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
