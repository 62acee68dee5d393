"""The text of RELIABILITY.md. It says only what the results say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final

from faults.figures import Figures
from faults.plan import rows as plan
from faults.report.plots import broken_promises, last_failovers
from faults.report.results import Broken, Results, Simulation, Unplayed
from faults.report.totals import KINDS, Totals
from faults.rules.handling import PICKUP_SECONDS, TAKEOVER_SECONDS
from faults.rules.messages import RETURN_SECONDS
from faults.scenarios import SCENARIOS

HEAD: Final = """\
# Reliability: what was done to it, and what came of it

<!-- Written by `make reliability` from faults/results. Do not edit. -->

Real processes publish and handle messages on real servers while they are killed, frozen, cut off and restarted. A
checker then compares what they wrote down with what is promised ([how](faults/README.md)). Each figure below was
measured in a run whose result line is in [faults/results](faults/results). One `make faults` plays each scenario once
on each of its stores, with new seeds, within an hour; the figures below are of {most} of each.
`make faults SCENARIO=… STORE=… SEED=… ARGS="--faults N"` repeats one run; N is in brackets behind its seed.
"""
PICKED_UP: Final = ("wakeups", "old-snapshot")
"""Where the time to the first claim is what a scenario is about."""
STALLS: Final = """\
Stalls are faults of the machine, which nothing injected: a process did not run for a while, or waited long for a
renewal. They may cause a second run as the others may, so they are in its bound. Lost is what was acknowledged and is
gone; astray is what is there although it is done with, and files that are damaged.

"""
REPLAYS: Final = 10
"""How many of the seeds that broke a promise are named; the others are in the results."""
LIMITS: Final = """\
## What this does not show

- All servers run on one machine, over the loopback interface: no real networks and no broken disks. Power loss is
  played only for Redis, by cutting its file to what was synced; elsewhere kill -9 leaves what the system has in memory.
- A seed repeats the choices of a run, not its timing.
- Nothing was found is not the same as nothing is there.
"""


def page(results: Results, plots: Sequence[Path], *, left_out: str = "") -> str:
    """All of it. `left_out` tells of runs that are not among the results, and why."""
    promised = [run for run in results.runs if not _is_forgiven(run)]
    measured = [run for run in results.runs if run.scenario in MEASURED]
    parts = [
        HEAD.format(most=_at_most(results.runs)),
        "## In short\n\n" + _short(results) + _simulated(results.simulations),
        "## Versions\n\n" + _versions(results.runs),
        "## By scenario and store\n\n" + _by_scenario(promised),
        "## Faults by kind and store\n\n" + _by_kind(results.runs),
        "## Durability, measured\n\n" + _measured(measured),
        "## Through a failover\n\n" + _pictures(plots, results.runs),
        "## What it finds when something is wrong\n\n" + _found(results.broken),
        *(
            ["## Could not be played to its end\n\n" + _unplayed(results.unplayed)]
            if results.unplayed
            else []
        ),
        *(["## Not run yet\n\n" + not_run] if (not_run := _not_run(results)) else []),
        *(["## Left out\n\n" + left_out] if left_out else []),
        LIMITS,
    ]
    return "\n".join(parts)


def _at_most(runs: Sequence[Figures]) -> str:
    most = max(Counter((run.scenario, run.store) for run in runs).values(), default=0)
    return f"up to {most} runs" if most > 1 else "one run"


def _is_forgiven(run: Figures) -> bool:
    """Whether its faults may cost its store what it acknowledged. All that does not follow from this is promised."""
    return run.store in SCENARIOS[run.scenario].forgives


def _short(results: Results) -> str:
    everything = results.runs
    runs = [run for run in everything if not _is_forgiven(run)]
    totals = Totals.of(runs)
    stores = ", ".join(dict.fromkeys(run.store for run in runs))
    rows = [
        ("runs", f"{len(runs)}, on {stores}"),
        ("messages acknowledged", f"{_sum(runs, 'messages'):,}"),
        ("runs of handlers", f"{_sum(runs, 'runs'):,}"),
        ("faults injected", f"{totals.faults.total():,}"),
        *((name, f"{totals.count(name):,}") for name in KINDS),
        ("publishes told as uncertain", f"{_sum(runs, 'uncertain'):,}"),
        ("**acknowledged and lost**", f"**{_sum(runs, 'lost')}**"),
        ("there although it is done with, or damaged", str(_sum(runs, "astray"))),
        ("delivered early", str(_sum(everything, "early"))),
        ("writes of late workers that changed something", str(_sum(runs, "stale_writes"))),
        ("overlapping leases", str(_sum(runs, "overlaps"))),
        (
            "runs again, of those that a fault may have caused",
            f"{_sum(runs, 'duplicates'):,} of {_sum(runs, 'duplicates_bound'):,}",
        ),
        (
            f"longest time from the return of a store to its next use (bound: {RETURN_SECONDS:g} s)",
            f"{_most(everything, 'return_seconds'):.1f} s",
        ),
        (
            "longest time from a fault to the next claim of what a worker had, where another was free "
            f"(bound: the lease and {TAKEOVER_SECONDS:g} s)",
            f"{_most(everything, 'takeover_seconds'):.1f} s",
        ),
        (
            "longest time to the first claim of a message, where no wake-up came or nothing could be cleaned away "
            f"(bound: {PICKUP_SECONDS:g} s)",
            _picked_up(everything) or "not measured",
        ),
        ("promises broken", str(_broken(everything))),
        *(
            [("runs that could not be played to their end", str(len(results.unplayed)))]
            if results.unplayed
            else []
        ),
    ]
    return _table(("", ""), rows) + _others(len(everything) - len(runs))


def _others(count: int) -> str:
    """What of the runs where a loss is forgiven is in the table above."""
    if not count:
        return ""
    return (
        f"\n{count} more {'runs were' if count > 1 else 'run was'} made where no promise is made about losses "
        "([durability](#durability-measured)). What they broke of all else, what they delivered early and the longest "
        "times are counted here too.\n"
    )


def _simulated(simulations: Sequence[Simulation]) -> str:
    if not simulations:
        return "\nNo simulated seeds are among the results.\n"
    seeds = sum(each.seeds for each in simulations)
    hours = sum(each.hours for each in simulations)
    faults = sum(sum(each.faults.values()) for each in simulations)
    broken = sum(each.violations for each in simulations)
    versions = ", ".join(_unique(f"{each.version} at {each.commit}" for each in simulations))
    return (
        f"\nBesides, `make simulate` ran the engine on virtual time for {seeds:,} seeds: {hours:,.0f} virtual hours, "
        f"{faults:,} faults, {broken} broken promises (Nightmail {versions}).\n" + _failing(simulations)
    )


def _failing(simulations: Sequence[Simulation]) -> str:
    seeds = [seed for each in simulations for seed in each.failing]
    commands = ", ".join(f"`make simulate REPLAY={seed}`" for seed in seeds[:REPLAYS])
    more = f" and {len(seeds) - REPLAYS} more" if len(seeds) > REPLAYS else ""
    return f"How they were broken is shown by {commands}{more}.\n" if seeds else ""


def _versions(runs: Sequence[Figures]) -> str:
    rows = [
        (
            store,
            ", ".join(_unique(run.server for run in each)),
            ", ".join(_unique(run.python for run in each)),
        )
        for store, each in _groups(runs, lambda run: run.store)
    ]
    commits = ", ".join(_unique(run.commit for run in runs))
    return f"Nightmail {', '.join(_unique(run.version for run in runs))} at {commits}.\n\n" + _table(
        ("store", "server", "Python"), rows
    )


def _by_scenario(runs: Sequence[Figures]) -> str:
    columns = (
        "scenario", "store", "seeds (N)", "messages", "faults", "stalls", "lost", "astray", "early", "stale writes",
        "overlapping leases", "run again (bound)", "taken over within (bound)",
        f"picked up within (bound {PICKUP_SECONDS:g} s)", f"store in use within (bound {RETURN_SECONDS:g} s)", "broken",
    )  # fmt: skip
    rows = []
    for scenario in SCENARIOS:
        of_scenario = [run for run in runs if run.scenario == scenario]
        for store, each in _groups(of_scenario, lambda run: run.store):
            rows.append(
                (
                    scenario,
                    store,
                    _seeds(each),
                    f"{_sum(each, 'messages'):,}",
                    f"{Totals.of(each).faults.total():,}",
                    f"{_sum(each, 'stalls'):,}",
                    str(_sum(each, "lost")),
                    str(_sum(each, "astray")),
                    str(_sum(each, "early")),
                    str(_sum(each, "stale_writes")),
                    str(_sum(each, "overlaps")),
                    f"{_sum(each, 'duplicates')} ({_sum(each, 'duplicates_bound')})",
                    _taken_over(each),
                    _picked_up(each),
                    _returned(each),
                    str(_broken(each)),
                )
            )
    about = [
        (name, scenario.about)
        for name, scenario in SCENARIOS.items()
        if any(run.scenario == name for run in runs)
    ]
    return STALLS + _table(columns, rows) + "\n" + _table(("scenario", "what is done"), about)


def _by_kind(runs: Sequence[Figures]) -> str:
    stores = _unique(run.store for run in runs)
    counts: dict[str, Counter[str]] = {}
    for run in runs:
        for kind, count in run.faults.items():
            counts.setdefault(kind, Counter())[run.store] += count
    rows = [
        (kind, *(str(by_store[store] or "") for store in stores), str(by_store.total()))
        for kind, by_store in sorted(counts.items())
    ]
    return _table(("fault", *stores, "all"), rows)


def _measured(runs: Sequence[Figures]) -> str:
    if not runs:
        return "Not measured yet.\n"
    rows = []
    for scenario in MEASURED:
        of_scenario = [run for run in runs if run.scenario == scenario]
        for durability, each in _groups(of_scenario, _durability):
            others: Counter[str] = Counter()
            for run in each:
                others.update({rule: count for rule, count in run.forgiven.items() if rule != "nothing_lost"})
                others.update({"astray": run.astray} if run.astray else {})
            rows.append(
                (
                    durability,
                    SCENARIOS[scenario].about,
                    _seeds(each),
                    str(sum(sum(run.faults.values()) for run in each)),
                    f"{_sum(each, 'messages'):,}",
                    str(_sum(each, "lost")),
                    ", ".join(f"{count} {rule}" for rule, count in others.items()) or "none",
                    _returned(each),
                    str(_broken(each)),
                )
            )
    columns = (
        "durability", "what is done", "seeds (N)", "times", "acknowledged", "lost", "other findings, not promised",
        f"store in use within (bound {RETURN_SECONDS:g} s)", "promises broken",
    )  # fmt: skip
    return MEASURED_TEXT + _table(columns, rows)


MEASURED: Final = ("cut-off", "all-lost", "power-loss", "crashes")
MEASURED_TEXT: Final = """\
Whether an acknowledged message survives is decided by how the server is set up. Here a server is lost together with
what is nowhere else: a master or primary whose copy was cut off for 0.3 s before, a Redis with all that it had not
synced to its disk, or the memory of a server that is killed, or of all nodes of a cluster at once (what they gave to
the system survives that, and would not survive a power cut). Where an acknowledgement waits for none of these, this is
no promise but a measurement.

"""


def _durability(run: Figures) -> str:
    """What its server said of itself. Of an older run it is not known: then the name of the place."""
    return run.durability or f"`{run.store}`, of which the run did not write it down"


def _found(broken: Sequence[Broken]) -> str:
    if not broken:
        return "Not tried yet.\n"
    rows = [
        (each.name, each.scenario, each.store, f"`{each.said}`" if each.said else "**not found**")
        for each in broken
    ]
    commits = ", ".join(_unique(each.commit for each in broken))
    return (
        "A suite that cannot fail shows nothing. So the product was broken on purpose, in one way at a time "
        f'(`make faults ARGS="--breakages all"`, at {commits}):\n\n'
        + _table(("broken", "scenario", "store", "the rule that said so"), rows)
    )


def _unplayed(runs: Sequence[Unplayed]) -> str:
    return "These runs crashed or hung, and have no figures.\n\n" + _table(
        ("scenario", "store", "seed (N)", "ended by"),
        [(run.scenario, run.store, f"{run.seed} ({run.asked})", f"`{run.error}`") for run in runs],
    )


def _not_run(results: Results) -> str:
    """The scenarios of the plan without a result, each with its stores."""
    done = {(run.scenario, run.store) for run in results.runs}
    done |= {(run.scenario, run.store) for run in results.unplayed}
    missing: dict[str, list[str]] = {}
    for scenario, store in (row.pair for row in plan()):
        if (scenario, store) not in done:
            missing.setdefault(scenario, []).append(store)
    return "".join(f"- {scenario}: {', '.join(stores)}\n" for scenario, stores in missing.items())


def _pictures(plots: Sequence[Path], runs: Sequence[Figures]) -> str:
    if not plots:
        return "No failover is among the results.\n"
    broken = "".join(
        f"- {run.store}, seed {run.seed}: {broken_promises(run)}\n"
        for run in last_failovers(runs)
        if run.violations
    )
    drawn = "\n".join(f"![{plot.stem}]({plot})\n" for plot in plots)
    return (f"Not all that is drawn here was as promised:\n\n{broken}\n" if broken else "") + drawn


def _seeds(runs: Iterable[Figures]) -> str:
    """Each with the number of faults that was asked for: together they make the choices of a run."""
    return ", ".join(f"{run.seed} ({run.asked})" if run.asked else str(run.seed) for run in runs)


def _taken_over(runs: Sequence[Figures]) -> str:
    """With its bound; nothing, where nothing was taken over."""
    seconds = _most(runs, "takeover_seconds")
    return f"{seconds:.1f} s ({_most(runs, 'takeover_bound'):g} s)" if seconds else ""


def _picked_up(runs: Sequence[Figures]) -> str:
    """Only where a scenario is about it: elsewhere it is the time that a worker was busy."""
    seconds = _most([run for run in runs if run.scenario in PICKED_UP], "pickup_seconds")
    return f"{seconds:.1f} s" if seconds else ""


def _returned(runs: Sequence[Figures]) -> str:
    """Nothing, where the store was never away."""
    seconds = _most(runs, "return_seconds")
    return f"{seconds:.1f} s" if seconds else ""


def _broken(runs: Iterable[Figures]) -> int:
    return sum(len(run.violations) for run in runs)


def _sum(runs: Iterable[Figures], name: str) -> int:
    return sum(getattr(run, name) for run in runs)


def _most(runs: Iterable[Figures], name: str) -> float:
    return max((getattr(run, name) for run in runs), default=0.0)


def _unique(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(value for value in values if value))


def _groups(runs: Sequence[Figures], key: Callable[[Figures], str]) -> Iterator[tuple[str, list[Figures]]]:
    for name, each in groupby(sorted(runs, key=key), key):
        yield name, list(each)


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
