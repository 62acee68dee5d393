"""Compares what was counted with what is written down, and says what to do about a difference."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Final, TypeAlias

import pytest

Costs: TypeAlias = Mapping[str, Mapping[str, float]]
"""By what is done, and by what is counted."""

HERE: Final = Path(__file__).parent
MOST: Final = "most.txt"
UPDATE: Final = "UPDATE_GOLDEN"
VARIES: Final = {
    # From round to round, without a change: a page is full one row earlier, or goes into the WAL as a whole.
    ("postgres", "WAL bytes"): 0.03,
    # From round to round: how much of the index is left of the round before.
    ("postgres", "pages"): 0.03,
}
"""By store and counter: how much more, or less, is no change. Of all others each one is, as they never varied."""
OTHER_PYTHON: Final = 0.03
"""The same for what is counted in this process, on another Python: its library has other functions. On 3.13 a batch of
1,000 on MySQL has ten calls out less than on 3.11."""
OF_MANY: Final = 0.02
"""How many calls for each message are no change where many messages share calls. On a busy machine the event loop may
take a few turns more: a batch of 1,000 had two calls out more."""
NOISE: Final = 0.01
"""What varies, and differs by less, is not written again: a diff shows only what changed."""
FUNCTIONS: Final = frozenset({"functions", "calls out"})
"""What is counted in this process: it does not depend on the server."""
EVERY_RELEASE: Final = frozenset({*FUNCTIONS, "wake-ups", "rows", "rows read", "rows written", "commands"})
"""What does not depend on the release of the server: it was the same on Postgres 13 and 18 as on 15, on MariaDB 11.8 as
on 10.11, and on Redis 8 as on 7."""
OTHER_RELEASE: Final = 0.01
"""How much more, or less, of what a server counts is no change on another release. Postgres 18 reads one row more for a
claim of a hundred."""
PYTHON: Final = f"{sys.version_info.major}.{sys.version_info.minor}"

CAUSES: Final = {
    "functions": "a call more on the way of each message: a wrapper, a property, something done twice",
    "calls out": "more built-in or library calls for each message: something is encoded, checked or copied twice",
    "WAL bytes": "one more index or column, an update that is no longer in place, or one more commit",
    "pages": "a plan that reads more than it needs, or another index",
    "rows": "a plan that reads rows which it does not return",
    "rows read": "a plan that reads rows which it does not return",
    "rows written": "a row is written twice",
    "commands": "a script runs more commands for each message",
    "AOF bytes": "a script writes more keys or fields",
    "pages written": "one more index, larger rows, or one more commit",
    "steps": "a plan that reads rows which it does not return",
    "wake-ups": "a statement rings more often than once for each queue",
    "statements": "an idle worker looks more often, or with more statements",
    "connections": "a verb with a connection of its own, or one for each subscriber",
    "transactions": "smaller batches, or a transaction more for each batch",
    "full scans": "no index has the columns of the condition, or the planner is no longer kept from a scan",
    "joins of all rows": "no index leads to the rows one by one, or the planner is no longer kept from such a join",
    "rows sorted": "no index has them in this order",
    "sorts of what is locked": "no index has the rows in this order, so all that may be taken are locked",
    "other indexes": "the index meant is gone, lacks a column, or is no longer asked for by name",
    "rows updated out of place": "a claim changes a column that is in an index, or a page has no room left",
    "planner's cost": "a guess about the number of rows is gone (`limit 1`): the server compiles the statement",
    "tasks": "something is waited for in a task of its own: a timeout, a shield, a `gather`",
    "shields": "a shield around what is shielded already",
    "greenlets": "one call of SQLAlchemy's asynchronous side more, each of which starts one",
    "type checks": "an array where a plain value would do: the driver checks each element",
    "encoded arguments": "an argument of a script that is neither bytes nor text: the driver encodes it",
    "messages checked": "a batch makes a message of each body, in place of one for all",
    "headers encoded": "the headers are encoded for each message, in place of once",
    "arrays": "a column as an array that is the same for all messages of a batch",
    "conversions": "the constraint has each bound more than once: the server prepares it for every statement",
}

WHAT_TO_DO: Final = f"""
What the {{store}} store costs has changed. If you meant that, or it costs less now, write the file again, look at its
diff, and commit it with your change:

    {UPDATE}=1 pytest tests/golden tests/counters -k {{store}}

If you did not, find out why:

"""


def compare(store: str, server: str, costs: Costs) -> None:
    """Fail unless this is what the file of the store says; with `UPDATE_GOLDEN` set, write that instead."""
    file = HERE / f"{store}.txt"
    head, known = _read(file)
    known_server, known_python = head.get("server", ""), head.get("python", "")
    found, before = _flat(costs), _flat(known)
    if os.environ.get(UPDATE):
        file.write_text(_written(store, server, costs, before), "utf-8")
        return
    same_release = server == known_server
    if not same_release:
        # Another release reads other pages and writes other records; another server counts in another way.
        same_server = server.split()[:1] == known_server.split()[:1]
        kept = EVERY_RELEASE if same_server else FUNCTIONS
        found, before = _only(kept, found), _only(kept, before)
    tolerances = {
        (done, counter): _tolerance(store, counter, same_release=same_release, known_python=known_python)
        for done, counter in found
    }
    differences = [*_lacking(found, before), *_changed(found, before, tolerances)]
    if differences:
        pytest.fail(WHAT_TO_DO.format(store=store) + "\n".join(differences), pytrace=False)
    if not same_release:
        pytest.skip(f"counted on {known_server}; of {server} only what is the same there was compared")


def at_most(done: str, counter: str, value: float) -> None:
    """Fail if more was counted than is written down. Less is no change: a busy machine counts less."""
    known = most(done, counter)
    if value > known:
        pytest.fail(f"{done}: {more(counter, known, value)}", pytrace=False)


def most(done: str, counter: str) -> float:
    """The most that is written down."""
    _, written = _read(HERE / MOST)
    return written[done][counter]


def within(counter: str, value: float, bound: float, where: object = "") -> None:
    """Fail if there was more than there is reason for."""
    if value > bound:
        pytest.fail(f"{counter}: {value:.7g}, at most {bound:.7g} wanted. Likely: {CAUSES[counter]}. {where}")


def exactly(counter: str, value: float, wanted: float) -> None:
    """Fail unless it was this, which has a reason: less is no improvement before someone has looked at it."""
    within(counter, value, wanted)
    if value < wanted:
        pytest.fail(
            f"{counter}: {value:.7g}, {wanted:.7g} wanted. Less: write it down, or something was left out"
        )


def more(counter: str, known: float, value: float) -> str:
    """What to say of a counter that rose."""
    return f"{counter} {known:g} -> {value:g}, more than before. Likely: {CAUSES[counter]}"


def _tolerance(store: str, counter: str, *, same_release: bool, known_python: str) -> float:
    if counter in FUNCTIONS and known_python != PYTHON:
        return OTHER_PYTHON
    if counter not in FUNCTIONS and not same_release:
        return OTHER_RELEASE
    return VARIES.get((store, counter), 0.0)


def _changed(
    found: Mapping[tuple[str, str], float],
    before: Mapping[tuple[str, str], float],
    tolerances: Mapping[tuple[str, str], float],
) -> list[str]:
    lines = []
    for (done, counter), value in found.items():
        known = before.get((done, counter), value)
        room = known * tolerances[done, counter]
        if counter in FUNCTIONS and not float(known).is_integer():
            room = max(room, OF_MANY)
        if value > known + room:
            lines.append(f"{done}: {more(counter, known, value)}")
        elif value < known - room:
            lines.append(f"{done}: {counter} {known:g} -> {value:g}, less than before: write it down")
    return lines


def _lacking(found: Mapping[tuple[str, str], float], before: Mapping[tuple[str, str], float]) -> list[str]:
    lines = [f"{done}: {counter} is not written down" for done, counter in found.keys() - before.keys()]
    lines += [f"{done}: {counter} is no longer counted" for done, counter in before.keys() - found.keys()]
    return sorted(lines)


def _only(counters: Set[str], costs: Mapping[tuple[str, str], float]) -> dict[tuple[str, str], float]:
    return {(done, counter): value for (done, counter), value in costs.items() if counter in counters}


def _flat(costs: Costs) -> dict[tuple[str, str], float]:
    return {(done, counter): value for done, counted in costs.items() for counter, value in counted.items()}


def _written(store: str, server: str, costs: Costs, before: Mapping[tuple[str, str], float]) -> str:
    def kept(done: str, counter: str, value: float) -> float:
        known = before.get((done, counter), value)
        varies = (store, counter) in VARIES
        return known if varies and abs(value - known) <= known * NOISE else value

    lines = [
        f"# What the {store} store costs, per message; wake-ups per call of the verb.",
        f"# Written by: {UPDATE}=1 pytest tests/golden tests/counters",
        f"server: {server}",
        f"python: {PYTHON}",
    ]
    for done, counted in costs.items():
        lines += ["", done]
        lines += [f"  {counter}: {kept(done, counter, value):g}" for counter, value in counted.items()]
    return "\n".join(lines) + "\n"


def _read(file: Path) -> tuple[Mapping[str, str], Costs]:
    """What it was counted on, and what was counted."""
    head, costs, counted = dict[str, str](), dict[str, dict[str, float]](), dict[str, float]()
    for line in file.read_text("utf-8").splitlines() if file.exists() else []:
        name, _, value = line.strip().rpartition(": ")
        if name in ("server", "python") and not line.startswith(" "):
            head[name] = value
        elif line.strip().startswith("#"):
            continue
        elif line.startswith("  "):
            counted[name] = float(value)
        elif line:
            counted = costs.setdefault(line, {})
    return head, costs
