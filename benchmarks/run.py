"""One run: every scenario in its turn, results written after each, servers and children ended whatever happens."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.bounds import verdicts
from benchmarks.environments import prepare
from benchmarks.estimate import Estimate, Left
from benchmarks.lab import Lab
from benchmarks.registry import Scenario, full_run, part
from benchmarks.results import Results, machine
from benchmarks.show import conditions, failure_line, summary_lines, table_lines
from testkit.servers.errors import ServerError


def run(
    chosen: Sequence[Scenario], stores: Sequence[str], path: Path, *, quick: bool = False, tiny: bool = False
) -> Results:
    """Run the scenarios on these stores, and print what is found as it is found.

    Until it is over, what was found is in a file beside `path`: a run that is cut off replaces no whole one.
    """
    results = Results(quick=quick, started=datetime.now(UTC).isoformat(timespec="seconds"), machine=machine())
    parts = _parts(chosen, stores, quick)
    results.parts = [part(scenario.name, store) for scenario, store, _ in _parts(chosen, stores, quick=False)]
    results.everything = set(full_run()) <= set(results.parts)
    unfinished = path.with_suffix(f".unfinished{path.suffix}")
    console = Console(highlight=False, soft_wrap=True)
    prepare(
        (name for scenario, store, _ in parts for name in scenario.environments(store)),
        lambda line: console.print(line, markup=False),
    )
    begun = time.monotonic()
    estimate = Estimate([weight for _, _, weight in parts])
    with _progress(estimate, console) as progress:
        bar = progress.add_task("starting", total=sum(weight for _, _, weight in parts))
        lab = Lab(
            results, stores, tiny=tiny, say=lambda text: progress.update(bar, description=f"{text:.60}")
        )
        try:
            lab.measure_disk()
            asyncio.run(
                _run(lab, parts, unfinished, console, estimate, lambda weight: progress.advance(bar, weight))
            )
        except KeyboardInterrupt:
            results.interrupted = True
        finally:
            lab.close()
            results.seconds = time.monotonic() - begun
            results.machine["load average at the end"] = " ".join(f"{load:.1f}" for load in os.getloadavg())
            results.write(unfinished)
    if not results.interrupted:
        unfinished = unfinished.replace(path)
    _conclude(results, console, unfinished)
    return results


def _progress(estimate: Estimate, console: Console) -> Progress:
    """A bar that keeps below what is printed on the same terminal, or else goes where it does not disturb a file."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:.0f} %"),
        TimeElapsedColumn(),
        # Not rich's own: it goes by the last half minute, in which most parts have not ended once.
        Left(estimate),
        console=console if console.is_terminal else Console(stderr=True),
        transient=True,
    )


def _parts(
    chosen: Sequence[Scenario], stores: Sequence[str], quick: bool
) -> list[tuple[Scenario, str, float]]:
    """Each scenario on each of its stores, and about how many seconds that takes."""
    return [
        (scenario, store, (scenario.quick if quick else scenario.seconds)[store])
        for scenario in chosen
        for store in scenario.parts(stores, quick=quick)
    ]


async def _run(
    lab: Lab,
    parts: Sequence[tuple[Scenario, str, float]],
    path: Path,
    console: Console,
    estimate: Estimate,
    advance: Callable[[float], None],
) -> None:
    for number, (scenario, store, weight) in enumerate(parts):
        estimate.begin(number)
        before, begun = len(lab.results.tables), time.monotonic()
        lab.say(f"{scenario.name} on {store}")
        try:
            await scenario.run(lab, store)
        except (KeyboardInterrupt, asyncio.CancelledError):
            raise
        except ServerError as error:
            lab.failed(f"{scenario.name} on {store}: no server", error)
        except Exception as error:  # noqa: BLE001 - noted in the results; the other scenarios go on
            lab.failed(f"{scenario.name} on {store}", error)
        advance(weight)
        took = lab.results.took[part(scenario.name, store)] = time.monotonic() - begun
        console.print(f"\n[bold]{scenario.name} on {store}[/]: {scenario.what}, {took:.0f} s")
        for table in lab.results.tables[before:]:
            for line in table_lines(table):
                console.print(line, markup=False)
        lab.results.write(path)
    estimate.end()


def _conclude(results: Results, console: Console, path: Path) -> None:
    console.print("\n[bold]Conditions[/]")
    for line in conditions(results):
        console.print(f"  {line}", markup=False)
    if results.interrupted:
        console.print("\n[bold]Interrupted[/]: what follows is a part")
    if results.failures:
        console.print("\n[bold]What failed[/]")
        for failure in results.failures:
            console.print(f"  {failure_line(failure)}", markup=False)
    console.print("\n[bold]Figures and their bounds[/]")
    for line in summary_lines(verdicts(results)):
        console.print(line, markup=False)
    console.print(f"\n{results.seconds:.0f} s; written to {path}", markup=False)
