"""What runs without coverage.

On Python 3.11 the tracer makes all code take two to three times as long, pytest's too. So it is on only for fixtures
and tests, and not for all of these: a test is traced with its first parameters only, and the conformance suite once for
each store. What is listed here repeats it with another driver or topology or from further away, and reaches no line
that nothing else reaches.
"""

import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib import import_module
from pkgutil import walk_packages
from typing import Any, Final

UNTRACED: Final = {
    "the contract, once more: with another caller's driver": (
        "tests/stores/postgres/test_conformance.py::TestPostgresWith*",
        "tests/stores/mysql/test_conformance.py::TestMySQLWith*",
        "tests/stores/mysql/test_conformance.py::TestMySQLBlocking*",
        "tests/stores/sqlite/test_conformance.py::TestSQLiteInTheDriversTransactions::*",
    ),
    "the contract, once more: with another topology or setting of the server": (
        "tests/stores/postgres/test_pgbouncer.py::TestPgBouncer::*",
        "tests/stores/postgres/test_pgbouncer.py::TestListenerBesidePgBouncer::*",
        "tests/stores/mysql/test_galera.py::TestGalera*",
        "tests/stores/redis/test_cluster.py::TestRedisCluster::*",
        "tests/stores/postgres/test_ordering_backlogs.py::TestWithANarrowWindow::*",
    ),
    "the contract, once more: beside the memory store": ("tests/model/*",),
    "the engine, once more: thousands of times": ("tests/simulation/*",),
    "tests of something else than the library": (
        "tests/kit/*",
        "tests/docs/*",
        "tests/examples/*",
        "tests/plans/*",
        "tests/counters/*",
        "tests/typing/*",
        "tests/mutants/*",
        "tests/security/test_source.py::*",
    ),
    "on Python 3.11 nothing is raised in a thread while the event loop is traced": (
        "tests/broker/test_def_handlers.py::*",
    ),
}
"""Patterns of the tests' names, by the reason."""

_PATTERNS: Final = tuple(pattern for patterns in UNTRACED.values() for pattern in patterns)


def is_traced(nodeid: str) -> bool:
    """Whether it is not listed above."""
    return not any(fnmatchcase(nodeid, pattern) for pattern in _PATTERNS)


def worth_tracing(nodeids: Iterable[str]) -> frozenset[str]:
    """Each test once, with its first parameters: the others seldom reach another line."""
    first: dict[str, str] = {}
    for nodeid in nodeids:
        name = nodeid.partition("[")[0]
        if name not in first and is_traced(nodeid):
            first[name] = nodeid
    return frozenset(first.values())


def import_all_of(package: str) -> None:
    """Import it if coverage looks: what a module does when it is imported, it does once."""
    if not _is_tracer(sys.gettrace()):
        return
    for module in walk_packages(import_module(package).__path__, f"{package}."):
        if not module.name.endswith(".__main__"):
            import_module(module.name)


@dataclass(frozen=True, slots=True)
class _Tracers:
    """What coverage has set, here and for threads to come."""

    here: Any
    in_threads: Any


_NONE: Final = _Tracers(None, None)
_aside: list[_Tracers] = []
"""What `traced` may bring back, the innermost last."""


@contextmanager
def untraced(*, wholly: bool = True) -> Iterator[None]:
    """Coverage does not trace the block, nor the threads it starts. A debugger keeps working.

    Unless `wholly`, it traces those parts of the block that are in `traced`.
    """
    found = _Tracers(sys.gettrace(), threading.gettrace())
    if not _is_tracer(found.here):
        yield
        return
    _set(_NONE)
    if not wholly:
        _aside.append(found)
    try:
        yield
    finally:
        if not wholly:
            _aside.pop()
        _set(found)
        _noticed()


@contextmanager
def traced() -> Iterator[None]:
    """Inside `untraced(wholly=False)`, coverage traces the block."""
    if not _aside or sys.gettrace() is not None:
        yield
        return
    _set(_aside[-1])
    _noticed()
    try:
        yield
    finally:
        _set(_NONE)


def _is_tracer(function: object) -> bool:
    return type(function).__module__.partition(".")[0] == "coverage"


def _set(tracers: _Tracers) -> None:
    threading.settrace(tracers.in_threads)
    sys.settrace(tracers.here)


def _noticed() -> None:
    """The tracer notices at the next call that it is back: before the caller returns, or it would count wrongly."""
