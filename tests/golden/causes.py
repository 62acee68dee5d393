"""Says of each verb what of its statements changed, in one line: both numbers, and the likely cause."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Final

_TIMES: Final = re.compile(r" \(× (\d+)\)$")
_DIGEST: Final = re.compile(r" [0-9a-f]{12}\b")
_COUNT: Final = re.compile(r"(\d+) round trips?$")
_REFUSED: Final = re.compile(r"refused with (\w+)")
PREPARE: Final = "prepare "


@dataclass(frozen=True, slots=True)
class Cost:
    """An entry of a golden file."""

    cost: str
    trips: tuple[tuple[str, tuple[str, ...]], ...]
    """Each with its connection, and its statements."""

    @property
    def statements(self) -> list[str]:
        """All of them, in their order."""
        return [statement for _, sent in self.trips for statement in sent]

    @property
    def counted(self) -> bool:
        """Whether the number of round trips is fixed."""
        return _COUNT.search(self.cost) is not None

    @property
    def refused(self) -> str:
        """The error that refused it, if one did."""
        refused = _REFUSED.match(self.cost)
        return refused[1] if refused else ""


def causes(before: str, after: str) -> list[str]:
    """Of two texts of a golden file: what changed, a line for each verb, or one for all to which the same happened."""
    known, found = read(before), read(after)
    changes: dict[str, list[str]] = {}
    for title, cost in found.items():
        if title not in known:
            changes.setdefault("it is not written down", []).append(title)
        elif cost != known[title]:
            change = f"{_numbers(known[title], cost)}. Likely: {_cause(known[title], cost)}"
            changes.setdefault(change, []).append(title)
    for title in known:
        if title not in found:
            changes.setdefault("it is no longer recorded", []).append(title)
    return [f"{_first(titles)}: {change}" for change, titles in changes.items()]


def _first(titles: list[str]) -> str:
    return titles[0] if len(titles) == 1 else f"{titles[0]} (and {len(titles) - 1} more)"


def read(text: str) -> dict[str, Cost]:
    """What a golden file says, by title."""
    entries: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.startswith("  "):
            entries[next(reversed(entries))].append(line.strip())
        elif line and not line.startswith("#"):
            entries[line] = []
    costs = {}
    for head, lines in entries.items():
        title, _, cost = head.rpartition(": ")
        count = _COUNT.search(cost)
        costs[title] = Cost(cost, _trips(lines, int(count[1]) if count else len(lines)))
    return costs


def _trips(lines: list[str], count: int) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The round trips of these lines.

    A number at the end of a line says how often the round trip was made, or its last statement. The number of all
    round trips tells which.
    """
    times = {number: int(match[1]) for number, line in enumerate(lines) if (match := _TIMES.search(line))}
    missing = count - len(lines)
    repeated = next(
        (
            chosen
            for size in range(len(times) + 1)
            for chosen in combinations(times, size)
            if sum(times[number] - 1 for number in chosen) == missing
        ),
        (),
    )
    trips = []
    for number, line in enumerate(lines):
        once = _TIMES.sub("", line) if number in repeated else line
        connection, _, sent = once.partition(": ")
        trips += [(connection, tuple(_each(sent)))] * (times[number] if number in repeated else 1)
    return tuple(trips)


def _each(sent: str) -> Iterable[str]:
    for part in sent.split("; "):
        match = _TIMES.search(part)
        yield from [_TIMES.sub("", part)] * (int(match[1]) if match else 1)


def _numbers(known: Cost, found: Cost) -> str:
    statements = f"statements {len(known.statements)} -> {len(found.statements)}"
    if not (known.counted and found.counted):
        return statements
    return f"round trips {len(known.trips)} -> {len(found.trips)}, {statements}"


def _cause(known: Cost, found: Cost) -> str:
    if known.refused != found.refused:
        return f"refused with {known.refused or 'nothing'} before, with {found.refused or 'nothing'} now"
    before, after = Counter(known.statements), Counter(found.statements)
    if before == after:
        return _as_sent(known, found)
    names, new_names = Counter(map(_name, before.elements())), Counter(map(_name, after.elements()))
    more, less = new_names - names, names - new_names
    if more and less:
        return f"{_listed(more)} in place of {_listed(less)}{_in_trips(known, found)}"
    if more:
        return f"{_number_of(more, 'more')}: {_listed(more)}{_why_more(more, names)}{_in_trips(known, found)}"
    if less:
        return f"{_number_of(less, 'less')}: {_listed(less)}: write it down"
    changed = Counter({_name(each): 1 for each in after - before})
    return f"another text: {_listed(changed)}{_in_trips(known, found)}"


def _as_sent(known: Cost, found: Cost) -> str:
    """What changed in how the same statements are sent."""
    if len(found.trips) > len(known.trips):
        return "the same statements in more round trips: one is no longer sent in the same packet"
    if len(found.trips) < len(known.trips):
        return "the same statements in fewer round trips: write it down"
    if known.trips == found.trips:
        return f"{found.cost!r} in place of {known.cost!r}"
    if sorted(sent for _, sent in known.trips) == sorted(sent for _, sent in found.trips):
        if Counter(connection for connection, _ in known.trips) != Counter(c for c, _ in found.trips):
            return "the same statements on another connection"
        return "the same round trips in another order"
    return "the same statements in another order"


def _in_trips(known: Cost, found: Cost) -> str:
    if not (known.counted and found.counted) or len(known.trips) == len(found.trips):
        return ""
    return ", in more round trips" if len(found.trips) > len(known.trips) else ", in fewer round trips"


def _number_of(names: Mapping[str, int], how: str) -> str:
    count = sum(names.values())
    return f"a statement {how}" if count == 1 else f"{count} statements {how}"


def _why_more(more: Mapping[str, int], names: Mapping[str, int]) -> str:
    if all(name.startswith(PREPARE) for name in more):
        return ", prepared each time: its text is another each time, or its connection is new"
    if all(name in names for name in more):
        return ", which is sent more often: in smaller parts, or for what is known already"
    return ""


def _listed(names: Mapping[str, int]) -> str:
    return ", ".join(name if times == 1 else f"{name} (× {times})" for name, times in names.items())


def _name(statement: str) -> str:
    """A statement without the digest of its text."""
    return _DIGEST.sub("", statement)
