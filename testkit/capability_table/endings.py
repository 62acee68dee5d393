"""How a test of the suite can end on a store: as its capabilities predict, and as a run shows."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pkgutil import iter_modules
from typing import Final, TypeAlias

import pytest

from nightmail import stores
from nightmail.store import Capabilities

SUITE: Final = "nightmail.testing.conformance."

_LACKS: Final = re.compile(r"(?:Skipped: )?\S+: no (\w+)")
_OTHER_WAY: Final = re.compile(r".* on this way to the store")
"""Skipped on a second way to the same store, such as a pooler: the first way shows what the store can do."""


@dataclass(frozen=True, slots=True)
class Passed:
    """It ran and passed."""


@dataclass(frozen=True, slots=True)
class Lacking:
    """It was not run: it needs a capability that the store lacks."""

    capability: str


@dataclass(frozen=True, slots=True)
class Missed:
    """It proves nothing: it failed, or was skipped for a reason other than a capability."""

    why: str


Ending: TypeAlias = Passed | Lacking | Missed
Endings: TypeAlias = Mapping[str, Ending]
"""How the tests of the suite ended on one store, by test name."""


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the suite: its tests, and the capabilities that each of them needs."""

    name: str
    meaning: str
    tests: Mapping[str, Sequence[str]]


def ending(report: pytest.TestReport) -> Ending | None:
    """How the test ended, as far as this report, one of three, can tell."""
    if report.failed:
        return Missed(f"failed ({report.when})")
    if report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if _OTHER_WAY.fullmatch(reason):
            return None
        lacks = _LACKS.fullmatch(reason)
        return Lacking(lacks[1]) if lacks else Missed(reason)
    return Passed() if report.when == "call" else None


def together(one: Ending | None, other: Ending) -> Ending:
    """The worse of the two, for a test that ran more than once on a store (parameters, several classes)."""
    return one if isinstance(one, Missed) or (one and isinstance(other, Passed)) else other


def declared() -> list[Capabilities]:
    """What every store in the tree declares. Connects to nothing."""
    packages = {module.name for module in iter_modules(stores.__path__) if module.ispkg}
    names = sorted(packages - {"shared", "sql"})
    # A path that every server accepts, whether as the name or the number of a database.
    urls = {"sqlite": stores.DEFAULT_URL}
    return [stores.open_store(urls.get(name, f"{name}://localhost/0")).capabilities for name in names]


def suite() -> list[Part]:
    """The parts of the suite, in its order."""
    # Not at the top: pytest must be running before the suite is imported, or its assertions show no values.
    from nightmail.testing.conformance import StoreConformance

    parts = [
        Part(
            name=part.__module__.removeprefix(SUITE),
            meaning=(part.__doc__ or "").partition("\n")[0],
            tests={
                name: getattr(test, "needs", ())
                for name, test in vars(part).items()
                if name.startswith("test_")
            },
        )
        for part in StoreConformance.__bases__
    ]
    return [part for part in parts if part.tests]


def expected(store: Capabilities) -> dict[str, Ending]:
    """How the tests end on a store that keeps the contract, given what it declares."""
    return {
        test: next((Lacking(need) for need in needs if not getattr(store, need)), Passed())
        for part in suite()
        for test, needs in part.tests.items()
    }


def complaints(store: Capabilities, opened: Capabilities | None, endings: Endings) -> list[str]:
    """Why a run does not prove what the store declares; `opened` is what it declared in the run."""
    if opened is None:
        return [f"{store.name}: no class under tests/stores ran the suite on it"]
    found = [] if opened == store else [f"{store.name}: it declares {store}, but once it is open {opened}"]
    for test, ends in expected(store).items():
        match endings.get(test):
            case None:
                found.append(f"{store.name}: {test} was not run")
            case Missed(why):
                found.append(f"{store.name}: {test}: {why}")
            case ended if ended != ends:
                found.append(f"{store.name}: {test}: {ended} instead of {ends}")
    return found
