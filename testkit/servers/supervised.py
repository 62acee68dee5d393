"""A running server, seen from the tests: the near side of `testkit.supervisor`."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from testkit.processes import Process, descendants
from testkit.servers.account import Account
from testkit.servers.errors import ServerFailed
from testkit.supervisor import Launch
from testkit.waiting import wait_until

_REPOSITORY = Path(__file__).parents[2]
_SIGNAL_SECONDS = 10.0


class Supervised:
    """One run of a server, from its start to its end."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        directory: Path,
        environment: Mapping[str, str],
        account: Account,
        farewell: signal.Signals,
        log: Path,
    ) -> None:
        launch = Launch(
            owner=os.getpid(),
            command=command,
            directory=str(directory),
            environment=environment,
            uid=account.uid,
            gid=account.gid,
            farewell=farewell,
        )
        with log.open("ab") as sink:
            self._supervisor = subprocess.Popen(
                [sys.executable, "-E", "-S", "-m", "testkit.supervisor", launch.to_json()],
                cwd=_REPOSITORY,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=sink,
                text=True,
                start_new_session=True,
            )
        assert self._supervisor.stdout is not None
        with self._supervisor.stdout as answer:
            line = answer.readline()
        if not line:
            self._supervisor.wait()
            raise ServerFailed(f"could not run {command[0]}")
        self.supervisor = Process.of(self._supervisor.pid)
        self._paused = False
        self.main = Process(**json.loads(line))

    @property
    def running(self) -> bool:
        return self._supervisor.poll() is None and self.main.alive

    @property
    def processes(self) -> list[Process]:
        """The living processes of the server, the main one first."""
        return descendants(self._supervisor.pid)

    @property
    def exit_status(self) -> int | None:
        """How it ended; 128 and the signal's number when a signal ended it."""
        return self._supervisor.poll()

    def pause(self) -> None:
        """Freeze every process of the server, and return once all of them are."""
        self._paused = True

        def frozen() -> bool:
            # Again for those forked meanwhile. The main process is first, and forks no more.
            processes = self.processes
            for process in processes:
                process.signal(signal.SIGSTOP)
            return all(process.stopped or not process.alive for process in processes)

        wait_until(frozen, within=_SIGNAL_SECONDS, what="the server to freeze")

    @property
    def paused(self) -> bool:
        return self._paused

    def resume(self) -> None:
        # Before every test: finding the processes means reading all of /proc.
        if not self._paused:
            return
        for process in self.processes:
            process.signal(signal.SIGCONT)
        self._paused = False

    def end(self, signum: signal.Signals, *, within: float) -> bool:
        """Ask the main process to end, and return whether everything ended in time."""
        self.resume()
        self.main.signal(signum)
        return self._ended(within)

    def kill(self) -> None:
        """kill -9 of the main process; the supervisor does the same to all others."""
        self.main.signal(signal.SIGKILL)
        if not self._ended(_SIGNAL_SECONDS):
            raise ServerFailed("processes of the server survived kill -9")

    def _ended(self, within: float) -> bool:
        try:
            self._supervisor.wait(within)
        except subprocess.TimeoutExpired:
            return False
        return True
