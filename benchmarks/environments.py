"""A virtual environment for each peer, made when it is first needed and kept beside ours."""

from __future__ import annotations

import subprocess
import sys
import time
import venv
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
REQUIREMENTS: Final = Path(__file__).parent / "adapters" / "requirements"
PLACE: Final = ROOT / ".venv" / "peers"
STAMP: Final = "installed.txt"
INSTALL_SECONDS: Final = 900


_given_up: Final[dict[str, NoEnvironment]] = {}
"""What could not be installed before the run, which does not try again: that may take minutes."""


class NoEnvironment(Exception):
    """A peer could not be installed; it is left out."""


def prepare(names: Iterable[str], say: Callable[[str], None]) -> None:
    """Install what is not there yet, so that a run need not. What fails is left out when it is its turn."""
    _given_up.clear()
    for name in dict.fromkeys(names):
        if _installed(name):
            continue
        say(f"installing {name}, once")
        begun = time.monotonic()
        try:
            python_for(name)
        except NoEnvironment as error:
            _given_up[name] = error
            say(f"  that failed, and {name} is left out")
        else:
            say(f"  {time.monotonic() - begun:.0f} s")


def python_for(environment: str | None) -> str:
    """The interpreter that has this installed: our own, or a peer's, installed now if it is not."""
    if environment is None:
        return sys.executable
    if environment in _given_up:
        raise _given_up[environment]
    home = _home(environment)
    python = home / "bin" / "python"
    if not _installed(environment):
        try:
            venv.create(home, clear=True, with_pip=True)
            subprocess.run(
                [python, "-m", "pip", "install", "-q", "-r", REQUIREMENTS / f"{environment}.txt"],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=INSTALL_SECONDS,
                check=True,
            )
        except (OSError, subprocess.SubprocessError) as error:
            said = f"\n{str(output)[-2000:]}" if (output := getattr(error, "output", None)) else ""
            raise NoEnvironment(f"{environment} could not be installed: {error}{said}") from error
        (home / STAMP).write_text(_wanted(environment))
    return str(python)


def _installed(environment: str) -> bool:
    stamp = _home(environment) / STAMP
    return stamp.exists() and stamp.read_text() == _wanted(environment)


def _home(environment: str) -> Path:
    return PLACE / f"{environment}-{sys.version_info.major}.{sys.version_info.minor}"


def _wanted(environment: str) -> str:
    return (REQUIREMENTS / f"{environment}.txt").read_text()


def version_of(environment: str) -> str:
    """The version of the peer that is pinned."""
    for line in (REQUIREMENTS / f"{environment}.txt").read_text().splitlines():
        name, _, version = line.partition("==")
        if name == environment:
            return version
    raise NoEnvironment(f"{environment} is not in its own requirements")
