"""Plays the scenarios, and compares what they cost with the golden file of the store."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from difflib import unified_diff
from pathlib import Path
from typing import Final

import pytest

from nightmail.outcome import Done
from nightmail.store import FullStore
from tests.golden.causes import causes
from tests.golden.naming import Naming
from tests.golden.record import Record
from tests.golden.scenarios import BY_THE_SERVERS_CLOCK, KEEPING, SCENARIOS, Scenario, verbs
from tests.golden.stage import Database, Entry, Stage

HERE: Final = Path(__file__).parent
UPDATE: Final = "UPDATE_GOLDEN"
WHAT_TO_DO: Final = f"""
What the {{store}} store sends has changed. A line is a round trip: the connection, by the verb that opened it; then
each statement's name, and a digest of its text. If you meant to change that, write the file again, look at its diff,
and commit it with your change:

    {UPDATE}=1 pytest tests/golden -k {{store}}

If you did not, something else is sent than before, or more often: look at these verbs.

"""


async def played(database: Database, record: Record) -> list[Entry]:
    """What every verb costs, with this database: in the order in which the contract has them."""
    entries = await _from_open_to_close(database, record)
    store = database.harness.unopened()
    async with AsyncExitStack() as stack:
        with record.connections_for("publish"):
            keeping = await database.harness.open(keep_delivered=True)
        stack.push_async_callback(keeping.close)
        await store.open()
        stack.push_async_callback(store.close)
        stage = Stage(database, record, store)
        await _warm_up(stage)
        await _play(stage, [each for each in SCENARIOS if each.whole])
        # While there are few queues: what asks about all of them is among it.
        stage_that_keeps = Stage(database, record, keeping, "-kept")
        entries += await _varied(stage_that_keeps, "keeping what was delivered", KEEPING)
        await _play(stage, [each for each in SCENARIOS if not each.whole])
        if database.by_the_servers_clock is not None:
            clockless = database.by_the_servers_clock()
            await clockless.open()
            stack.push_async_callback(clockless.close)
            stage_without_clock = Stage(database, record, clockless, "-by-clock")
            entries += await _varied(stage_without_clock, "by the server's clock", BY_THE_SERVERS_CLOCK)
    order = verbs()
    return sorted([*stage.entries, *entries], key=lambda entry: order.index(entry.title.partition(":")[0]))


def compare(store: str, entries: Iterable[Entry], naming: Naming) -> None:
    """Fail unless they cost what the golden file says; with `UPDATE_GOLDEN` set, write that instead."""
    found = (
        f"# What each verb of the {store} store sends. Written by: {UPDATE}=1 pytest tests/golden\n"
        + "".join(f"\n{_shown(entry, naming)}" for entry in entries)
    )
    check(HERE / f"{store}.txt", found)


def check(file: Path, found: str) -> None:
    """Fail unless this is what the golden file says, with what changed of each verb, and with the lines."""
    if os.environ.get(UPDATE):
        file.write_text(found, "utf-8")
        return
    expected = file.read_text("utf-8") if file.exists() else ""
    if found != expected:
        difference = unified_diff(
            expected.splitlines(), found.splitlines(), f"tests/golden/{file.name}", "sent now", lineterm=""
        )
        said = [*causes(expected, found), "", *difference]
        pytest.fail(WHAT_TO_DO.format(store=file.stem) + "\n".join(said), pytrace=False)


async def _from_open_to_close(database: Database, record: Record) -> list[Entry]:
    """Those verbs that cannot be played twice."""
    store = database.harness.unopened()
    stage = Stage(database, record, store)
    for title, verb in {
        "schema_sql": _schema_sql(store),
        "open": store.open(),
        "migrate: an empty database": store.migrate(),
        "migrate: nothing to do": store.migrate(),
        "migrate: nothing to repair": store.migrate(repair=True),
        "close": store.close(),
    }.items():
        stage.begin(title)
        with record.connections_for(title.partition(":")[0]):
            await stage.recorded(verb)
    return stage.entries


async def _warm_up(stage: Stage) -> None:
    """Open the store's connections, each by the verb for which it is there."""
    stage.begin("")
    with stage.record.connections_for("publish"):
        await stage.publish()
    with stage.record.connections_for("timers"):
        await stage.publish(timer_id="timer")
    with stage.record.connections_for("claim"):
        deliveries = await stage.claim()
    with stage.record.connections_for("settle"):
        await stage.settle(deliveries, Done())
    # The first of a caller may be looked at more closely.
    async with stage.transaction() as own:
        await stage.store.publish(stage.message(), transaction=own)


async def _schema_sql(store: FullStore) -> str:
    return store.schema_sql()


async def _play(stage: Stage, scenarios: Sequence[Scenario]) -> None:
    """Play these, and if they were only rehearsed, again."""
    before = list(stage.entries)
    for _ in range(2 if stage.database.rehearsed else 1):
        stage.entries = []
        for each in scenarios:
            if each.needs and not getattr(stage.store.capabilities, each.needs):
                continue
            stage.begin(each.name)
            with stage.record.connections_for(each.verb):
                await each.play(stage)
    stage.entries = before + stage.entries


async def _varied(stage: Stage, how: str, names: Sequence[str]) -> list[Entry]:
    chosen = [each for each in SCENARIOS if each.name in names]
    assert len(chosen) == len(names)
    await _warm_up(stage)
    await _play(stage, sorted(chosen, key=lambda each: not each.whole))
    return [replace(entry, title=f"{entry.title} ({how})") for entry in stage.entries]


def _shown(entry: Entry, naming: Naming) -> str:
    if entry.refused:
        cost = f"refused with {entry.refused}, {_times(len(entry.trips))}"
    else:
        cost = _times(len(entry.trips)) if entry.counted else "any number of round trips"
    lines = [f"  {line}\n" for line in naming.shown(entry.trips)]
    return f"{entry.title}: {cost}\n{''.join(lines)}"


def _times(count: int) -> str:
    return "1 round trip" if count == 1 else f"{count} round trips"
