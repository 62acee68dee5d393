"""Which tests run without coverage.

On Python 3.11 the tracer doubles the cost of our code. The conformance suite runs with coverage once for each store;
what is listed here repeats it with another driver or topology or from further away, and reaches no line that nothing
else reaches.
"""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Final

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
    return not any(fnmatchcase(nodeid, pattern) for pattern in _PATTERNS)


@contextmanager
def untraced() -> Iterator[None]:
    """Coverage does not trace the block, nor the threads it starts. A debugger keeps working."""
    here, in_threads = sys.gettrace(), threading.gettrace()
    if type(here).__module__.partition(".")[0] != "coverage":
        yield
        return
    sys.settrace(None)
    threading.settrace(None)
    try:
        yield
    finally:
        threading.settrace(in_threads)
        sys.settrace(here)
        _noticed()


def _noticed() -> None:
    """The tracer notices at the next call that it is back: before the caller returns, or it would count wrongly."""
