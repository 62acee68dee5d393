"""`python -m benchmarks [scenario ...] [--quick] [--store NAME]`: run, and print the figures."""

from __future__ import annotations

import argparse
import asyncio
import logging
import platform
import sys
from collections.abc import Awaitable, Callable

from benchmarks.batches import batches
from benchmarks.connections import connections
from benchmarks.drain import drain
from benchmarks.future import future
from benchmarks.keys import keys
from benchmarks.latency import lateness, pick_up
from benchmarks.parameter import parameter
from benchmarks.places import PLACES, Place, places
from benchmarks.report import Figure, show
from benchmarks.year import year

Scenario = Callable[[Place, bool], Awaitable[list[Figure]]]

SCENARIOS: dict[str, Scenario] = {
    "drain": lambda place, quick: drain(place, 5_000 if quick else 50_000),
    "pick-up": lambda place, quick: pick_up(place, 50 if quick else 300),
    "lateness": lambda place, quick: lateness(place, 50 if quick else 300),
    "future": lambda place, quick: future(place, 20_000 if quick else 1_000_000),
    "batches": lambda place, quick: batches(place, 5_000 if quick else 50_000),
    "keys": lambda place, quick: keys(place, 1_000 if quick else 10_000),
    "parameter": lambda _place, quick: parameter(2_000 if quick else 10_000),
    "year": lambda _place, quick: year(30 if quick else 365),
    "connections": lambda place, _quick: connections(place),
}
NEED_A_SERVER = {"connections"}
ON_NO_STORE = {"parameter", "year"}


def main() -> int:
    """Run the scenarios; 1 if a figure missed its bound."""
    parser = argparse.ArgumentParser(prog="make bench", description="Measure throughput and latency.")
    parser.add_argument("scenarios", nargs="*", choices=[[], *SCENARIOS], help="which ones (default: all)")
    parser.add_argument("--quick", action="store_true", help="fewer messages: for a first look")
    parser.add_argument("--store", choices=[*PLACES], action="append", help="which stores (default: all)")
    given = parser.parse_args()
    # Each round has its own store in memory, and would log a warning about the one before.
    logging.getLogger("nightmail").setLevel(logging.ERROR)
    print(f"Python {platform.python_version()}, default settings, servers on loopback with fsync on")
    missed = 0
    with places(*(given.store or PLACES)) as found:
        for name in given.scenarios or SCENARIOS:
            for place in found[:1] if name in ON_NO_STORE else found:
                if name in NEED_A_SERVER and place.name == "sqlite":
                    continue
                figures = asyncio.run(_run(SCENARIOS[name], place, quick=given.quick))
                show(name if name in ON_NO_STORE else f"{name} on {place.name}", figures)
                missed += sum(figure.holds is False for figure in figures)
    print(f"\n{missed} missed" if missed else "\nall bounds hold")
    return 1 if missed else 0


async def _run(scenario: Scenario, place: Place, *, quick: bool) -> list[Figure]:
    return await scenario(place, quick)


if __name__ == "__main__":
    sys.exit(main())
