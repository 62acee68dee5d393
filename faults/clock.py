"""Wall clocks that are wrong: of processes of the workload, or of a server."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from typing import Final

from faults.workload.config import Config

_WORKLOAD: Final = Path(__file__).parent / "workload"
_ROOT: Final = Path(__file__).parents[1]
_INACCURACY_SECONDS: Final = 5.0
"""The machine's own clock may be set between two looks at it."""


class NotOff(Exception):
    """A process does not go by the clock that it was given: what its run would show is nothing."""


def ahead() -> float:
    """How far the wall clock of this process is ahead of CLOCK_MONOTONIC, which all share and no library moves."""
    return time.time() - time.monotonic()


class Clock:
    """The wall clock of all processes that are started with its environment. It can be moved while they run."""

    def __init__(self, directory: Path, name: str, *, seconds: int = 0) -> None:
        self._file: Final = directory / f"{name}.skew"
        self._library: Final = library("skew", directory)
        self._file.write_bytes(bytes(8))
        self.set(seconds)

    def set(self, seconds: int) -> None:
        """From now on it is so many seconds ahead."""
        # In place: the processes have mapped the file.
        with self._file.open("r+b") as file:
            file.write(seconds.to_bytes(8, sys.byteorder, signed=True))
        self.seconds = seconds

    def check(self, told: float, name: str) -> None:
        """Raise unless a process goes by it, which says that it is so far `ahead`: LD_PRELOAD fails in silence."""
        off = told - ahead()
        if abs(off - self.seconds) > _INACCURACY_SECONDS:
            raise NotOff(f"the clock of {name} is {off:+.1f} s off, and was to be {self.seconds:+} s off")

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to go by it."""
        return {"LD_PRELOAD": str(self._library), "SKEW_FILE": str(self._file)}


class Skewed:
    """A process of the workload that goes by such a clock. Looks like one of `multiprocessing`."""

    def __init__(self, config: Config, clock: Clock) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "faults.clock", pickle.dumps(config).hex()],
            cwd=_ROOT,
            env=os.environ | clock.environment,
        )
        self.pid: Final = self._process.pid

    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    @property
    def exitcode(self) -> int | None:
        return self._process.poll()

    def join(self, timeout: float) -> None:
        """Wait for its end."""
        self._process.wait(timeout)


def library(name: str, directory: Path) -> Path:
    """A library for LD_PRELOAD, compiled from its source in `workload`."""
    # A server has a user of its own, who must get to it.
    directory.chmod(0o711)
    path = directory / f"{name}.so"
    if not path.exists():
        source = _WORKLOAD / f"{name}.c"
        subprocess.run([compiler(), "-shared", "-fPIC", "-o", path, source, "-ldl"], check=True)
    return path


@cache
def compiler() -> str:
    """A C compiler."""
    found = shutil.which("cc") or shutil.which("gcc")
    if found is None:
        raise FileNotFoundError("this scenario needs a C compiler: on Debian, apt install gcc libc6-dev")
    return found


def main(config: bytes) -> None:
    """The process itself."""
    from faults.workload import publisher, worker
    from faults.workload.config import PublisherConfig, WorkerConfig

    told = pickle.loads(config)  # noqa: S301 - from the process that started this one
    if isinstance(told, WorkerConfig):
        worker.main(told)
    elif isinstance(told, PublisherConfig):
        publisher.main(told)


if __name__ == "__main__":
    main(bytes.fromhex(sys.argv[1]))
