"""A private Postgres, and cheap databases on any."""

import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

import psycopg

from testkit.servers.base import Server
from testkit.servers.databases import Databases, new_name
from testkit.servers.errors import NotReady
from testkit.servers.install import Package

_CONNECT_SECONDS = 5
_STATEMENT_SECONDS = 30
_HAS_STRATEGIES = 150_000


class Postgres(Server, Databases):
    """Postgres for tests. What was committed survives `kill`, durable or not.

    `durable` is for benchmarks, where a commit must cost what it costs, and for tests of crashes.
    `settings` are those of postgresql.conf, and win over ours.
    """

    name = "postgres"
    package = Package(
        "postgresql",
        places=("/usr/lib/postgresql/*/bin",),
        while_installing={
            "/etc/postgresql-common/createcluster.d/nightmail-testkit.conf": "create_main_cluster = false\n"
        },
    )
    programs = ("initdb", "postgres")
    user = "postgres"
    stop_signal: ClassVar[signal.Signals] = signal.SIGINT
    # Not SIGKILL: that leaves a segment of shared memory behind, and the machine has only so many.
    farewell_signal: ClassVar[signal.Signals] = signal.SIGQUIT

    def __init__(
        self,
        url: str | None = None,
        *,
        durable: bool = False,
        settings: Mapping[str, str | int] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(url, durable=durable, environment=environment)
        self._settings = dict(settings or {})

    # The server

    @property
    def data(self) -> Path:
        return self.directory / "data"

    @property
    def sockets(self) -> Path:
        """The directory of the unix socket: `host=` for clients that prefer it to TCP."""
        return self.directory / "sockets"

    def private_url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def prepare(self) -> None:
        self.make_directory("data")
        self.make_directory("sockets")
        self.execute(
            "initdb",
            f"--pgdata={self.data}",
            "--username=postgres",
            "--auth=trust",
            "--encoding=UTF8",
            "--locale=C.UTF-8",
            "--no-sync",
        )

    def command(self) -> list[str]:
        settings: dict[str, str | int] = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": str(self.sockets),
            "max_connections": 300,
            # The only safeguard we can drop: without the others kill -9 would lose commits too. It is on unless said
            # otherwise, and what stands on the command line a test could not change.
            **({} if self.durable else {"fsync": "off"}),
            # Keeps what parallel queries share in the data directory, where `close` finds it.
            "dynamic_shared_memory_type": "mmap",
            **self._settings,
        }
        options = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
        return [self.program("postgres"), "-D", str(self.data), *options]

    def probe(self) -> None:
        try:
            self.sql("select 1")
        except psycopg.Error as error:
            raise NotReady(str(error) or type(error).__name__) from error

    def discard(self) -> None:
        # The seventh line of a lock file left by kill -9 names the shared memory: key and id.
        with suppress(FileNotFoundError, IndexError):
            shared_memory = (self.data / "postmaster.pid").read_text().splitlines()[6].split()[1]
            subprocess.run(["ipcrm", "-m", shared_memory], stderr=subprocess.DEVNULL, check=False)

    # Databases

    def copy_database(self, url: str) -> str:
        """Create a database like this one, to which no client is connected, and return its URL."""
        name = new_name()
        self.create(name, like=urlsplit(url).path.removeprefix("/"))
        return self.url_of(name)

    # Not template1: that cannot be copied while anyone is connected to it.
    def create(self, name: str, *, like: str = "template0") -> None:
        with self._administrator() as connection:
            # As files: by way of the log, the default from Postgres 15 on, it takes twice as long.
            strategy = " strategy file_copy" if connection.info.server_version >= _HAS_STRATEGIES else ""
            connection.execute(f'create database "{name}" template "{like}"{strategy}'.encode())

    def drop(self, name: str) -> None:
        self.sql(f'drop database if exists "{name}" with (force)')

    def sql(self, statement: str) -> None:
        """Run one statement as the administrator."""
        with self._administrator() as connection:
            connection.execute(statement.encode())

    def _administrator(self) -> psycopg.Connection:
        return psycopg.connect(
            self.url,
            autocommit=True,
            connect_timeout=_CONNECT_SECONDS,
            options=f"-c statement_timeout={_STATEMENT_SECONDS}s",
        )
