"""What a run has shown, in numbers."""

from __future__ import annotations

import platform
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from faults.checker import Violation, check
from faults.commits import last_change
from faults.journal import CANCELLED, Line
from faults.ledger import Ledger
from faults.rules.handling import (
    BY_THE_MACHINE,
    PICKUP_SECONDS,
    TAKEOVER_SECONDS,
    duplicates,
    duplicates_bound,
    pickups,
    takeovers,
)
from faults.rules.messages import RETURN_SECONDS, astray, lost, returns
from nightmail import __version__


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One run's."""

    scenario: str
    store: str
    seed: int
    messages: int
    """Acknowledged."""
    uncertain: int
    """Publishes of which their publisher was told that it is unknown."""
    runs: int
    """Of handlers."""
    faults: dict[str, int]
    """Injected, by kind."""
    stalls: int
    """Faults by the machine itself."""
    lost: int
    """Acknowledged, and gone."""
    early: int
    stale_writes: int
    overlaps: int
    duplicates: int
    duplicates_bound: int
    """How many leases faults have hit in flight, after a run: no more than these may have led to a second one."""
    takeover_seconds: float
    """The longest time from a fault that hit a worker to the next claim of a message that it had, if one was free.

    0: there was none."""
    lease_seconds: float
    """How much of that may be its lease."""
    return_seconds: float
    """The longest time from the return of a store to the next claim, or to the next publish that it stored.

    0: it was never away."""
    checked_seconds: float
    """How long the checker took."""
    seconds: float
    """From the first process to the end of the check."""
    violations: list[str]
    forgiven: dict[str, int]
    """What was found that cannot be promised here, by rule."""
    server: str
    """What it says that it is."""
    timeline: list[tuple[int, int, float]]
    """For each second: how many runs began, and how late the latest of them was, in seconds."""
    outages: list[tuple[float, float]]
    """When the whole store was hit, in seconds from the start, and until when."""
    version: str = __version__
    commit: str = ""
    """Of the product."""
    python: str = platform.python_version()
    whole_seconds: float = 0.0
    """With the start and the end of the servers."""
    asked: int = 0
    """How many faults the scenario was to inject: with the seed, what repeats the run."""
    durability: str = ""
    """What the store's acknowledgements wait for, as its server says itself."""
    astray: int = 0
    """What is there although it is done with, and files that are damaged."""
    pickup_seconds: float = 0.0
    """The longest time from when a message was due and stored to its first claim, where no fault explains it."""

    @property
    def takeover_bound(self) -> float:
        """How long a takeover may take."""
        return self.lease_seconds + TAKEOVER_SECONDS

    def as_json(self) -> dict[str, Any]:
        """As one line of the results."""
        return asdict(self)

    def __str__(self) -> str:
        injected = ", ".join(f"{count} {kind}" for kind, count in self.faults.items()) or "none"
        astray = f" and {self.astray} astray" if self.astray else ""
        machine = f", {self.stalls} by the machine" if self.stalls else ""
        return (
            f"{self.messages} messages ({self.uncertain} uncertain), {self.runs} runs in {self.seconds:.0f} s; "
            f"faults: {injected}{machine}\n"
            f"lost {self.lost}{astray}, early {self.early}, stale writes {self.stale_writes}, "
            f"overlaps {self.overlaps}, duplicates {self.duplicates} of at most {self.duplicates_bound}, "
            + _within("taken over", self.takeover_seconds, self.takeover_bound)
            + _within("picked up", self.pickup_seconds, PICKUP_SECONDS)
            + _within("store in use", self.return_seconds, RETURN_SECONDS)
            + f"violations {len(self.violations)}"
            + "".join(f"; {count} of {rule}, not promised here" for rule, count in self.forgiven.items())
        )


def _within(what: str, seconds: float, bound: float) -> str:
    """Nothing, where it did not happen."""
    return f"{what} within {seconds:.1f} s (at most {bound:g} s), " if seconds else ""


def figures(
    ledger: Ledger, *, scenario: str, store: str, seed: int, seconds: float, forgives: Sequence[str] = ()
) -> tuple[Figures, list[Violation]]:
    """Check a run, and count."""
    begun = time.monotonic()
    everything = check(ledger)
    by_rule = Counter(violation.rule for violation in everything)
    violations = [violation for violation in everything if violation.rule not in forgives]
    kinds = Counter(fault.kind or "" for fault in ledger.faults if fault.kind not in BY_THE_MACHINE)
    kinds["SIGTERM"] = sum(
        1 for line in ledger.lines if line.what == "stopping" and _is_before_calm(line, ledger)
    )
    for line in ledger.lines:
        if line.how == CANCELLED:
            kinds["cancelled handler" if line.what == "ended" else "cancelled publish"] += 1
    result = Figures(
        scenario=scenario,
        store=store,
        seed=seed,
        messages=sum(1 for message in ledger.messages.values() if message.acknowledged is not None),
        uncertain=sum(1 for line in ledger.lines if line.what == "uncertain"),
        runs=sum(1 for line in ledger.lines if line.what == "started"),
        faults=dict(+kinds),
        stalls=sum(1 for fault in ledger.faults if fault.kind in BY_THE_MACHINE),
        lost=len({key for key, _ in lost(ledger)}),
        astray=len({key for key, _ in astray(ledger)}),
        early=by_rule["never_early"],
        stale_writes=by_rule["fenced"],
        overlaps=by_rule["one_lease"],
        duplicates=duplicates(ledger),
        duplicates_bound=duplicates_bound(ledger),
        takeover_seconds=max((seconds for seconds, _, _ in takeovers(ledger)), default=0.0),
        lease_seconds=max(
            (process.booted.lease for process in ledger.processes.values() if process.booted), default=0.0
        ),
        return_seconds=max((seconds for seconds, _ in returns(ledger)), default=0.0),
        pickup_seconds=max((seconds for seconds, _ in pickups(ledger)), default=0.0),
        checked_seconds=time.monotonic() - begun,
        seconds=seconds,
        violations=[str(violation) for violation in violations],
        forgiven={rule: count for rule, count in by_rule.items() if rule in forgives},
        server=ledger.over.server or "" if ledger.over is not None else "",
        durability=ledger.over.durability or "" if ledger.over is not None else "",
        timeline=_timeline(ledger),
        outages=[
            (round(begun - ledger.lines[0].at, 2), round(fault.until - ledger.lines[0].at, 2))
            for fault in ledger.faults
            if fault.target is None and fault.until is not None and fault.skew is None
            for begun in (fault.sent or fault.at,)
        ],
        commit=last_change(),
    )
    return result, violations


def _timeline(ledger: Ledger) -> list[tuple[int, int, float]]:
    runs: Counter[int] = Counter()
    latest: dict[int, float] = {}
    for message in ledger.messages.values():
        for lease in message.leases:
            second = int(lease.claimed.at - ledger.lines[0].at)
            runs[second] += len(lease.started)
            if lease.claimed.attempts == 0:
                late = lease.store_at - (lease.claimed.due_at or lease.store_at)
                latest[second] = max(latest.get(second, 0.0), late)
    return [
        (second, runs[second], round(latest.get(second, 0.0), 3))
        for second in range(max(runs, default=-1) + 1)
    ]


def _is_before_calm(line: Line, ledger: Ledger) -> bool:
    return ledger.calm is None or line.at < ledger.calm.at
