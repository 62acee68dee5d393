"""A private MariaDB, and cheap databases on any MariaDB or MySQL."""

import asyncio
import signal
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

import asyncmy
from asyncmy.errors import MySQLError

from testkit.servers.base import Server
from testkit.servers.databases import Databases
from testkit.servers.errors import NotReady
from testkit.servers.install import Package

_CONNECT_SECONDS = 5
_STATEMENT_SECONDS = 30.0


class MariaDB(Server, Databases):
    """MariaDB for tests. What was committed survives `kill`, durable or not.

    `durable` is for benchmarks, where a commit must cost what it costs, and for tests of crashes.
    `settings` are those of a server's option file, and win over ours; `None` stands for an option without a value.
    A subclass that needs more, such as a cluster, extends `settings`.
    """

    name = "mysql"
    package = Package("mariadb-server")
    programs = ("mariadb-install-db", "mariadbd")
    user = "mysql"
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM

    def __init__(
        self,
        url: str | None = None,
        *,
        durable: bool = False,
        settings: Mapping[str, str | int | None] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(url, durable=durable, environment=environment)
        self._settings = dict(settings or {})

    # The server

    @property
    def data(self) -> Path:
        return self.directory / "data"

    @property
    def socket(self) -> Path:
        """The unix socket, for clients that prefer it to TCP."""
        return self.directory / "run" / "s"

    def private_url(self) -> str:
        return f"mysql://root@127.0.0.1:{self.port}/mysql"

    def prepare(self) -> None:
        self.make_directory("data")
        self.make_directory("run")
        self.execute(
            "mariadb-install-db",
            "--no-defaults",
            f"--datadir={self.data}",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
            "--skip-name-resolve",
        )

    @property
    def settings(self) -> dict[str, str | int | None]:
        """Every option the server is started with."""
        return {
            "datadir": str(self.data),
            "socket": str(self.socket),
            "pid-file": str(self.directory / "run" / "pid"),
            # Not /tmp: a starting server removes the temporary tables it finds, those of other servers too.
            "tmpdir": str(self.directory / "run"),
            "bind-address": "127.0.0.1",
            "port": self.port,
            "skip-name-resolve": None,
            "max-connections": 300,
            "innodb-buffer-pool-size": "256M",
            "innodb-log-file-size": "96M",
            # Written to the log at each commit either way, so that kill -9 loses nothing; flushed only if durable.
            "innodb-flush-log-at-trx-commit": 1 if self.durable else 2,
            "skip-log-bin": None,
            **self._settings,
        }

    def command(self) -> list[str]:
        options = [
            f"--{name}" if value is None else f"--{name}={value}" for name, value in self.settings.items()
        ]
        # Not the machine's own option files: they belong to a server that is not ours.
        return [self.program("mariadbd"), "--no-defaults", *options]

    def probe(self) -> None:
        try:
            self.sql("select 1")
        except (OSError, MySQLError, TimeoutError) as error:
            raise NotReady(str(error) or type(error).__name__) from error

    # Databases

    def create(self, name: str) -> None:
        self.sql(f"create database `{name}` character set utf8mb4")

    def drop(self, name: str) -> None:
        # A transaction left open would keep its tables locked.
        for (thread,) in self.sql(f"select id from information_schema.processlist where db = '{name}'"):
            self.sql(f"kill {int(thread)}", unless_gone=True)
        self.sql(f"drop database if exists `{name}`")

    def sql(self, statement: str, *, unless_gone: bool = False) -> list[tuple[Any, ...]]:
        """Run one statement as the administrator, and return its rows."""
        # In a thread, where no event loop of the caller's runs: asyncio.run would refuse.
        with ThreadPoolExecutor(max_workers=1) as thread:
            try:
                return thread.submit(asyncio.run, self._sql(statement)).result()
            except MySQLError:
                if unless_gone:
                    return []
                raise

    async def _sql(self, statement: str) -> list[tuple[Any, ...]]:
        async with asyncio.timeout(_STATEMENT_SECONDS):
            connection = await asyncmy.connect(
                **connect_arguments(self.url), connect_timeout=_CONNECT_SECONDS, autocommit=True
            )
            try:
                async with connection.cursor() as cursor:
                    await cursor.execute(statement)
                    return [tuple(row) for row in await cursor.fetchall()] if cursor.description else []
            finally:
                await connection.ensure_closed()


def connect_arguments(url: str) -> dict[str, Any]:
    """What the drivers take instead of a URL."""
    parts = urlsplit(url)
    return {
        "host": parts.hostname or "127.0.0.1",
        "port": parts.port or 3306,
        "user": unquote(parts.username or "root"),
        "password": unquote(parts.password or ""),
        "db": parts.path.removeprefix("/") or None,
    }
