"""One run of a scenario: play it, check its journal, say what was found."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from faults.checker import Violation
from faults.figures import Figures, figures
from faults.journal import read
from faults.ledger import Ledger
from faults.place import Place
from faults.scenarios import Scenario
from faults.stage import EndedByItself, Stage

SHOWN: Final = 3
"""How many violations are shown with their part of the journal."""


async def run(
    scenario: Scenario,
    place: Place,
    directory: Path,
    *,
    seed: int,
    faults: int | None = None,
    bulk: float = 0.0,
    breakage: str | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> tuple[Figures, str]:
    """Its figures, and a report on what it found. `bulk`: so many messages a second besides, published in batches."""
    stage = Stage(
        place,
        directory,
        seed=seed,
        faults=faults or scenario.faults,
        bulk=bulk,
        say=say,
        breakage=breakage,
        worker_options=scenario.worker,
        publisher_options=scenario.publisher,
    )
    begun = time.monotonic()
    try:
        await stage.open()
        try:
            await scenario.play(stage)
        except EndedByItself as what:
            say(f"ended by itself: {what}")  # And it is found: `ends_well`.
        await stage.finish()
    finally:
        await stage.clear()
    ledger = Ledger(read(directory / "journal.jsonl"))
    seconds = time.monotonic() - begun
    found, violations = figures(
        ledger,
        scenario=scenario.name,
        store=place.store,
        seed=seed,
        seconds=seconds,
        forgives=scenario.forgives.get(place.store, ()),
    )
    found = replace(found, asked=stage.faults)
    return found, report(violations, ledger, found)


def report(violations: Sequence[Violation], ledger: Ledger, found: Figures) -> str:
    """The first violations, each with what the journal says about that message, and how to run it again."""
    if not violations:
        return ""
    parts: list[str] = []
    for violation in violations[:SHOWN]:
        lines = ledger.about(violation.key) if violation.key in ledger.messages else []
        parts.append("\n".join([str(violation), *(f"    {line}" for line in lines)]))
    if len(violations) > SHOWN:
        parts.append(f"and {len(violations) - SHOWN} more")
    parts.append(f"again: {again(found)}")
    return "\n\n".join(parts)


def again(found: Figures) -> str:
    """The command that makes the same choices: not only the seed, the number of faults decides on them too."""
    return (
        f"make faults SCENARIO={found.scenario} STORE={found.store} SEED={found.seed} "
        f'ARGS="--faults {found.asked}"'
    )
