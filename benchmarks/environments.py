"""A virtual environment for each peer, made when it is first needed and kept beside ours."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
REQUIREMENTS: Final = Path(__file__).parent / "adapters" / "requirements"
PLACE: Final = ROOT / ".venv" / "peers"
INSTALL_SECONDS: Final = 900


class NoEnvironment(Exception):
    """A peer could not be installed; it is left out."""


def python_for(environment: str | None) -> str:
    """The interpreter that has this installed: our own, or a peer's, installed now if it is not."""
    if environment is None:
        return sys.executable
    wanted = (REQUIREMENTS / f"{environment}.txt").read_text()
    home = PLACE / f"{environment}-{sys.version_info.major}.{sys.version_info.minor}"
    python, stamp = home / "bin" / "python", home / "installed.txt"
    if not stamp.exists() or stamp.read_text() != wanted:
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
        stamp.write_text(wanted)
    return str(python)


def version_of(environment: str) -> str:
    """The version of the peer that is pinned."""
    for line in (REQUIREMENTS / f"{environment}.txt").read_text().splitlines():
        name, _, version = line.partition("==")
        if name == environment:
            return version
    raise NoEnvironment(f"{environment} is not in its own requirements")
