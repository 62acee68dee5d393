"""A private, throw-away server for a test.

A subclass defines a kind of server: its Debian package, its system user, how to prepare its
files, its command line, when it is ready, its URL. Everything else is here. The life of a server:

    start      first time: find or install, make a directory, choose a port, prepare; then run it and
               wait until it answers. Later: run it again on the same files and the same port
    stop       a clean shutdown                         kill      kill -9 of all its processes
    pause      freeze all its processes                 resume    thaw them
    close      end it and remove every trace; a later start begins from scratch

The calls block; asynchronous tests use `asyncio.to_thread`.
"""

import atexit
import os
import signal
import subprocess
import sys
import time
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

from testkit.processes import Process
from testkit.servers import cleanup
from testkit.servers.account import Account
from testkit.servers.errors import NotOurs, NotReady, ServerFailed, ServerUnavailable
from testkit.servers.install import Package, program
from testkit.servers.lifecycle import START_SECONDS, StartsAndCloses
from testkit.servers.ports import free_port
from testkit.servers.supervised import Supervised

_EXTERNAL_SECONDS = 10.0
_FAREWELL_SECONDS = 10.0
_LOOK_AGAIN_SECONDS = 0.02
_EXECUTION_SECONDS = 240.0
"""As long as a start may take: a program that hangs fails its test instead of the whole run."""
_LOG_TAIL_LINES = 30


@dataclass(frozen=True, slots=True)
class _Home:
    """What a server keeps from its first start until it is closed."""

    owner: int
    account: Account
    directory: Path
    port: int


class Server(StartsAndCloses):
    """One server of some kind: ours, or, with `url`, one of the user's that is only ever used."""

    name: ClassVar[str]
    package: ClassVar[Package]
    programs: ClassVar[tuple[str, ...]]
    """Those of the package that are needed."""

    user: ClassVar[str]
    """The system user to become when root runs the tests."""

    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    """Asks for a clean shutdown that does not wait for clients."""

    farewell_signal: ClassVar[signal.Signals] = signal.SIGKILL
    """Ends the server fastest when its files will be thrown away."""

    root: Path | None = None
    """Where its directory is made, if that matters; set it before the first start."""

    def __init__(
        self,
        url: str | None = None,
        *,
        durable: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`durable`: on a disk, and as careful with it as in production. Else in memory, if there is room.

        Either way the server's processes may be killed and find everything again.
        """
        self.durable = durable
        self._external_url = url
        self._environment = dict(environment or {})
        self._programs: dict[str, Path] = {}
        self._home: _Home | None = None
        self._run: Supervised | None = None

    # What a kind of server says about itself

    @abstractmethod
    def prepare(self) -> None:
        """Make the files the server needs before its first start."""

    @abstractmethod
    def command(self) -> list[str]:
        """The program, in the foreground, and its arguments."""

    @abstractmethod
    def probe(self) -> None:
        """Return if the server is ready, else raise `NotReady`. Must not wait long."""

    @abstractmethod
    def private_url(self) -> str:
        """The URL of the server we run."""

    def discard(self) -> None:
        """Give back what would outlive both the processes and the directory. Called by `close`."""

    # Whose it is

    @classmethod
    def url_variable(cls) -> str:
        """The environment variable that names a server of the user's own."""
        return f"NIGHTMAIL_TEST_{cls.name.upper()}_URL"

    @classmethod
    def from_environment(cls) -> Self:
        """The user's own server if the environment names one, else a private one. Not started yet."""
        return cls(os.environ.get(cls.url_variable()))

    @property
    def ours(self) -> bool:
        return self._external_url is None

    @property
    def url(self) -> str:
        return self.private_url() if self._external_url is None else self._external_url

    # Where it is

    @property
    def directory(self) -> Path:
        """Everything the server writes is below. Exists from the first `start` to `close`."""
        return self._settled().directory

    @property
    def port(self) -> int:
        """On 127.0.0.1. Chosen by the first `start`, kept until `close`."""
        return self._settled().port

    @property
    def processes(self) -> list[Process]:
        """Its living processes, the main one first."""
        return self._run.processes if self._run else []

    # Its life

    @property
    def running(self) -> bool:
        """Whether its main process is there, paused or not."""
        return not self.ours or (self._run is not None and self._run.running)

    def start(self, *, within: float = START_SECONDS) -> Self:
        """Run it, if it does not run yet, and return once it answers.

        When it cannot be started nothing is left behind; the error carries the end of its log.
        """
        try:
            if self.ours and not self.running:
                if self._home is None:
                    self._settle()
                self._launch()
            self._wait_until_ready(within if self.ours else min(within, _EXTERNAL_SECONDS))
        except BaseException:
            self.close()
            raise
        return self

    def stop(self, *, within: float = 60.0) -> None:
        """Shut it down cleanly; kill it and raise if it has not ended after `within` seconds."""
        run = self._ours("stopped")
        if run and not run.end(self.stop_signal, within=within):
            run.kill()
            raise ServerFailed(f"{self.name} did not stop within {within:g} s and was killed")
        self._run = None

    def kill(self) -> None:
        """kill -9 of all its processes. The files stay as they are and are free to be used."""
        run = self._ours("killed")
        if run:
            run.kill()
        self._run = None

    def restart(self) -> None:
        """Stop it cleanly and start it again."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Freeze all its processes: connections stay open, and nothing answers."""
        run = self._ours("paused")
        if run is None:
            raise ServerFailed(f"{self.name} does not run, so it cannot be paused")
        run.pause()

    def resume(self) -> None:
        """Undo `pause`."""
        run = self._ours("resumed")
        if run:
            run.resume()

    def revive(self) -> None:
        """Make it usable whatever an earlier test did to it."""
        if self.running and not (self._run and self._run.paused):
            return  # As every test but a few leaves it: asking it costs more than many a test.
        self.resume()
        self.start()

    def close(self) -> None:
        """End it and remove every trace. Does nothing to a server of the user's, or a second time."""
        # A forked child has a copy of this object, but the server still belongs to its parent.
        if self._home is None or self._home.owner != os.getpid():
            return
        if self._run and not self._run.end(self.farewell_signal, within=_FAREWELL_SECONDS):
            self._run.kill()
        self._run = None
        self.discard()
        cleanup.remove(self._home.directory)
        self._home = None
        atexit.unregister(self.close)

    # For subclasses

    def program(self, name: str) -> str:
        """Where a program of the package is."""
        return str(self._programs[name])

    def make_directory(self, name: str) -> Path:
        """A directory that only the server's own user can access."""
        path = self.directory / name
        path.mkdir(mode=0o700)
        self._settled().account.own(path)
        return path

    def execute(self, name: str, *arguments: str) -> None:
        """Run a program of the package to its end, as the server's own user."""
        account = self._settled().account
        running = subprocess.Popen(
            [self.program(name), *arguments],
            cwd=self.directory,
            env=self._complete_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            user=account.uid,
            group=account.gid,
            extra_groups=account.groups,
            process_group=0,
        )
        try:
            said, _ = running.communicate(timeout=_EXECUTION_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, signal.SIGKILL)
            said, _ = running.communicate()
            raise ServerFailed(f"{name} did not end within {_EXECUTION_SECONDS} s:\n{said}") from None
        if running.returncode != 0:
            raise ServerFailed(f"{name} failed with status {running.returncode}:\n{said}")

    # How it is done

    def _ours(self, deed: str) -> Supervised | None:
        if not self.ours:
            raise NotOurs(
                f"the {self.name} server of {self.url_variable()} cannot be {deed} by a test; "
                "unset the variable to use a private one"
            )
        return self._run

    def _settled(self) -> _Home:
        if self._home is None:
            raise ServerFailed(f"{self.name} has not been started, or is not ours")
        return self._home

    def _settle(self) -> None:
        if sys.platform != "linux":
            raise ServerUnavailable(f"private servers need Linux; set {self.url_variable()} instead")
        try:
            self._programs = {name: program(name, self.package) for name in self.programs}
            account = Account.named(self.user)
        except ServerUnavailable as error:
            raise ServerUnavailable(f"{error}, or set {self.url_variable()}") from None
        directory = cleanup.create(self.name, in_memory=not self.durable, root=self.root)
        self._home = _Home(os.getpid(), account, directory, free_port())
        atexit.register(self.close)
        self.prepare()

    def _launch(self) -> None:
        try:
            self._run = Supervised(
                self.command(),
                directory=self.directory,
                environment=self._complete_environment(),
                account=self._settled().account,
                farewell=self.farewell_signal,
                log=self._log,
            )
        except ServerFailed as error:
            raise ServerFailed(f"{error}{self._log_tail()}") from None
        cleanup.record(self.directory, [self._run.supervisor, self._run.main])

    def _wait_until_ready(self, within: float) -> None:
        deadline = time.monotonic() + within
        while True:
            try:
                return self.probe()
            except NotReady as error:
                reason = str(error)
            if not self.running:
                status = self._run.exit_status if self._run else None
                raise ServerFailed(f"{self.name} exited with status {status}{self._log_tail()}")
            if time.monotonic() > deadline:
                raise ServerFailed(
                    f"{self.name} was not ready within {within:g} s: {reason}{self._log_tail()}"
                )
            time.sleep(_LOOK_AGAIN_SECONDS)

    def _complete_environment(self) -> dict[str, str]:
        # Not the caller's: PGDATA, MYSQL_HOME and the like would change what is started.
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(self.directory),
            "LC_ALL": "C.UTF-8",
            "TZ": "UTC",
            **self._environment,
        }

    @property
    def _log(self) -> Path:
        return self.directory / "server.log"

    def _log_tail(self) -> str:
        if not self.ours:
            return ""
        lines = self._log.read_text(errors="replace").splitlines()
        return "\n".join(["; the end of its log:", *lines[-_LOG_TAIL_LINES:]])
