"""Runs the tests of a mutant, and decides whether it was killed.

A mutant is killed when one of its tests fails while it runs, or hangs: where nothing is broken, each test takes less
than a third of the time after which it counts as hung. A test that cannot be set up, and a run that ends in another
way, say nothing about the mutant, and so it counts as alive.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Final, NoReturn

import pytest

from mutants import recorder
from mutants.mutant import Mutant
from mutants.recorder import VARIABLE, Phase, read
from mutants.tree import ROOT, broken

HUNG_SECONDS: Final = 30.0
LIMIT_SECONDS: Final = 240.0
"""For the tests of one mutant, with the servers that they need."""
_TAIL: Final = 30
_PACKAGES: Final = (
    *(
        "asyncmy",
        "asyncpg",
        "aiomysql",
        "aiosqlite",
        "redis.asyncio",
        "sqlalchemy.ext.asyncio",
        "sqlalchemy.orm",
    ),
    *(
        "faststream",
        "faststream.asgi",
        "faststream.prometheus",
        "faststream.opentelemetry",
        "pydantic",
        "typer.testing",
    ),
    *(
        "rich.console",
        "rich.table",
        "opentelemetry.sdk.trace",
        "opentelemetry.sdk.metrics",
        "prometheus_client",
    ),
    *(
        "hypothesis",
        "hypothesis.stateful",
        "pytest_asyncio",
        "pytest_cov.plugin",
        "pytest_timeout",
        "xdist.scheduler",
    ),
)


@dataclass(frozen=True, slots=True)
class Killed:
    """A test has noticed."""

    by: str
    hung: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class Alive:
    """No test has noticed, or it is not known."""

    why: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Ran:
    """One run of pytest."""

    phases: Sequence[Phase]
    ended: str
    """How it ended, and its last lines."""
    seconds: float

    @property
    def passed(self) -> dict[str, float]:
        """Those that passed, and the seconds that each took."""
        return {each.test: each.seconds for each in self.phases if each[1:3] == ("call", "passed")}

    @property
    def failed(self) -> list[str]:
        """Those that failed while they ran."""
        return [each.test for each in self.phases if each[1:3] == ("call", "failed")]

    @property
    def hung(self) -> str | None:
        """The one that was set up and did not end: pytest ends with it."""
        last = self.phases[-1] if self.phases else None
        return last.test if last is not None and last[1:3] == ("setup", "passed") else None


def judge(copy: Path, mutant: Mutant) -> Killed | Alive:
    """Break the copy, run the tests, mend it."""
    with broken(copy, mutant):
        ran = run(copy, mutant.killers, stop_at_first=True)
    if ran.failed:
        return Killed(ran.failed[0], hung=False, seconds=ran.seconds)
    if ran.hung is not None:
        return Killed(ran.hung, hung=True, seconds=ran.seconds)
    return Alive(ran.ended, ran.seconds)


def complaints(copy: Path, mutants: Sequence[Mutant]) -> list[str]:
    """What is wrong with these tests where nothing is broken: each of them has to pass there, and soon."""
    killers = list(dict.fromkeys(killer for mutant in mutants for killer in mutant.killers))
    ran = run(copy, killers, limit=LIMIT_SECONDS + HUNG_SECONDS * len(killers))
    found = [f"{test} fails without a mutant" for test in ran.failed]
    for killer in killers:
        times = [seconds for test, seconds in ran.passed.items() if of(test, killer)]
        if not times and not any(of(test, killer) for test in ran.failed):
            found.append(f"{killer} did not run, or not to its end")
        elif times and max(times) > HUNG_SECONDS / 3:
            found.append(f"{killer} takes {max(times):.0f} s: too long to tell when it hangs")
    return [*found, ran.ended] if found else []


def of(test: str, killer: str) -> bool:
    """Whether this test is the killer, or one of its cases."""
    return test == killer or test.startswith(f"{killer}[")


def run(
    copy: Path, tests: Sequence[str], *, stop_at_first: bool = False, limit: float = LIMIT_SECONDS
) -> Ran:
    """Run these tests on the copy, with the packages of the environment we run in."""
    record, said = copy / "mutants-record.jsonl", copy / "mutants-said.txt"
    record.unlink(missing_ok=True)
    begun = time.monotonic()
    # Forked, with all packages imported and nothing of ours: starting an interpreter takes longer than most tests.
    _warm()
    child = os.fork()
    if child == 0:
        _run_here(copy, [*(["-x"] if stop_at_first else []), *tests], record, said)
    ended = _wait(child, limit)
    lines = [ended, *said.read_text(errors="replace").splitlines()[-_TAIL:]]
    return Ran(read(record), "\n".join(lines), time.monotonic() - begun)


@cache
def _warm() -> None:
    """Import what the tests import, but for our own modules: those are the copy's."""
    for module in _PACKAGES:
        with suppress(ImportError):
            import_module(module)
    if ours := {"nightmail", "testkit", "tests"} & sys.modules.keys():
        raise RuntimeError(f"{', '.join(ours)} must not be imported here: the copy would not be used")


def _run_here(copy: Path, arguments: Sequence[str], record: Path, said: Path) -> NoReturn:
    """Run pytest in this process, which ends with it."""
    code = 3
    try:
        with said.open("wb") as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        os.chdir(copy)
        # The copy comes before what is installed, here and in the processes that tests start.
        ours = [str(copy / "src"), str(copy)]
        sys.path[:] = [*ours, *(path for path in sys.path if Path(path or ".").resolve() != ROOT)]
        # As on CI: a server that cannot be started fails its tests.
        os.environ.update({"PYTHONPATH": os.pathsep.join(ours), VARIABLE: str(record), "CI": "1"})
        options = ["-q", "--no-header", "--tb=line", "-p", "no:cacheprovider"]
        # Imported before pytest could rewrite them; they have no assertions of ours.
        options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
        # Servers may take their time to start.
        options += [f"--timeout={HUNG_SECONDS:.0f}", "-o", "timeout_func_only=true"]
        code = int(pytest.main([*options, *arguments], plugins=[recorder]))
    except BaseException:  # noqa: BLE001 - whatever it is, this process must not go on with its parent's work
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _wait(child: int, limit: float) -> str:
    """How it ended, at the latest after so many seconds."""
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return f"pytest ended with {os.waitstatus_to_exitcode(status)}"
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return f"stopped after {limit:.0f} s"
