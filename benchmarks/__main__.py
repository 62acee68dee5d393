"""`python -m benchmarks run`, `report` or `list`; `make bench` is the first of them."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
from pathlib import Path

from benchmarks import report
from benchmarks.registry import NO_STORE, SCENARIOS, chosen
from benchmarks.results import FULL, LAST, OPERATING, TEN_MILLION
from benchmarks.run import run
from benchmarks.systems import STORES


def main() -> int:
    """0 unless the run was cut off: a figure that misses its bound is a finding, not a failure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run", help="measure, print, write JSON and plots")
    running.add_argument(
        "--quick", action="store_true", help="a few minutes: does it work, and roughly how fast?"
    )
    running.add_argument(
        "--scenario", action="append", choices=[one.name for one in SCENARIOS], help="only this"
    )
    running.add_argument("--store", action="append", choices=STORES, help="only on this store")
    running.add_argument("--out", type=_results, help="where to write the results; pictures go beside it")
    commands.add_parser("report", help="plots and docs/performance.md from the results that are committed")
    commands.add_parser("list", help="the scenarios")
    given = parser.parse_args()
    match given.command:
        case "run":
            return _measure(given, running)
        case "report":
            report.write(report.committed())
        case "list":
            for one in SCENARIOS:
                stores = ", ".join(store for store in one.seconds if store != NO_STORE)
                print(f"{one.name:<16} {one.what}" + (f" ({stores})" if stores else ""))
    return 0


def _results(name: str) -> Path:
    path = Path(name)
    # The pictures have the same name without it.
    if path.suffix != ".json":
        raise argparse.ArgumentTypeError("it is a file whose name ends in .json")
    return path


def _measure(given: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    stores = [store for store in STORES if not given.store or store in given.store]
    scenarios = chosen(given.scenario)
    if given.scenario:
        left_out = [why for one in scenarios if (why := one.why_not(stores, quick=given.quick))]
        if len(left_out) == len(scenarios):
            parser.exit(2, "there is nothing to run: " + "; ".join(left_out) + "\n")
        for why in left_out:
            print(f"left out: {why}", file=sys.stderr)
    # A terminal that is closed, or `kill`, ends the run like Ctrl-C: children and servers are ended in order.
    for sign in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(sign, signal.default_int_handler)
    # Each round has its own store in memory, and would log a warning about the one before.
    logging.getLogger("nightmail").setLevel(logging.ERROR)
    path = given.out or _place(given)
    try:
        results = run(scenarios, stores, path, quick=given.quick)
    except KeyboardInterrupt:  # While peers are installed: there is nothing to keep.
        return 130
    if results.interrupted:
        return 130
    report.plot(results, path)
    return 0


def _place(given: argparse.Namespace) -> Path:
    """Where the results go: those of a part, or of a quick run, are not for the documentation."""
    if given.quick or given.store:
        return LAST
    places = {None: FULL, ("operating",): OPERATING, ("ten-million",): TEN_MILLION}
    return places.get(given.scenario and tuple(given.scenario), LAST)


if __name__ == "__main__":
    sys.exit(main())
