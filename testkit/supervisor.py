"""A program that runs one server for a test run, and ends it when the run is gone, however it went.

    test run  <--pidfd--  supervisor  --parent of-->  server  --parent of-->  its own processes

- The supervisor sleeps until the run dies (kill -9 included) or the server exits, whichever is first.
  Asking the server to die with its parent would not do: PR_SET_PDEATHSIG fires when the *thread* that
  started it ends, and a test may well start a server from a worker thread.
- It is a session of its own, so that Ctrl-C in a terminal reaches the tests and not the server.
- It adopts every process below it whose parent dies (PR_SET_CHILD_SUBREAPER). The processes of the
  server are therefore exactly the supervisor's descendants, even after kill -9 of the server's main
  process and though each Postgres backend has a process group of its own.
- It exits only when all of them are gone: once the supervisor has exited, the data is free to use.

Standard output carries one line, the server's identity as JSON; everything else goes to the log.
"""

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from testkit.processes import Process, descendants

_FAREWELL_SECONDS = 5.0
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, slots=True)
class Launch:
    """What to run and for whom."""

    owner: int
    command: Sequence[str]
    directory: str
    environment: Mapping[str, str]
    uid: int | None
    gid: int | None
    farewell: int
    """The signal that ends the server quickly when its data is no longer needed."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Launch":
        return cls(**json.loads(text))


def main() -> int:
    launch = Launch.from_json(sys.argv[1])
    owner = os.pidfd_open(launch.owner)
    if os.getppid() != launch.owner:
        return 1  # The run died before we could watch it, and its pid may be reused by now.
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)

    server = _spawn(launch)
    exited = os.pidfd_open(server.pid)
    print(json.dumps(asdict(Process.of(server.pid))), flush=True)

    if exited not in _first_of(owner, exited):
        for process in descendants(os.getpid()):
            process.signal(signal.SIGCONT)  # A paused server would not receive the signal.
        server.send_signal(launch.farewell)
        _first_of(exited, timeout=_FAREWELL_SECONDS)
        server.kill()
    code = server.wait()
    _kill_the_rest()
    return code if code >= 0 else 128 - code


def _spawn(launch: Launch) -> subprocess.Popen[bytes]:
    supervisor = os.getpid()

    def die_with_supervisor() -> None:
        _prctl(_PR_SET_PDEATHSIG, launch.farewell)
        if os.getppid() != supervisor:
            os._exit(1)

    return subprocess.Popen(
        launch.command,
        cwd=launch.directory,
        env=launch.environment,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr.fileno(),
        user=launch.uid,
        group=launch.gid,
        extra_groups=None if launch.uid is None else [],
        start_new_session=True,
        preexec_fn=die_with_supervisor,  # noqa: PLW1509 - safe here: this process has a single thread
    )


def _first_of(*pidfds: int, timeout: float | None = None) -> list[int]:
    """Wait for one of these processes to end, and return those that have."""
    return select.select(pidfds, [], [], timeout)[0]


def _kill_the_rest() -> None:
    while True:
        for process in descendants(os.getpid()):
            process.signal(signal.SIGKILL)
        try:
            os.wait()
        except ChildProcessError:
            return


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value})")


_libc = ctypes.CDLL(None, use_errno=True)

if __name__ == "__main__":
    sys.exit(main())
