"""A private PgBouncer in front of a Postgres of ours."""

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import asyncpg

from testkit.servers.base import Server
from testkit.servers.errors import NotReady
from testkit.servers.install import Package

_SECONDS = 5.0


class PgBouncer(Server):
    """PgBouncer for tests: every database of the server behind it, under the same name.

    `settings` are those of pgbouncer.ini, and win over ours.
    """

    name = "pgbouncer"
    package = Package("pgbouncer")
    programs = ("pgbouncer",)
    # It refuses root. Its package has no user of its own: it runs as that of the server, which it brings along.
    user = "postgres"

    def __init__(
        self,
        behind: str,
        *,
        pool_mode: str = "transaction",
        settings: Mapping[str, str | int] | None = None,
    ) -> None:
        """`behind` is the URL of the Postgres."""
        super().__init__()
        self._behind = urlsplit(behind)
        self._settings = {"pool_mode": pool_mode, **(settings or {})}

    def through(self, url: str) -> str:
        """The URL of a database of the server behind, through this."""
        netloc = f"{self._behind.username}@127.0.0.1:{self.port}"
        # It has no certificate: asking for one would cost each connection a round trip.
        return urlsplit(url)._replace(netloc=netloc, query="sslmode=disable").geturl()

    def private_url(self) -> str:
        return f"postgresql://{self._behind.username}@127.0.0.1:{self.port}/postgres"

    def prepare(self) -> None:
        settings: dict[str, str | int] = {
            "listen_addr": "127.0.0.1",
            "listen_port": self.port,
            "unix_socket_dir": "",
            "auth_type": "any",
            "default_pool_size": 4,
            "max_client_conn": 200,
            # Session settings stay as a client left them: a reset would hide a leak.
            "server_reset_query": "",
            **self._settings,
        }
        lines = [
            "[databases]",
            f"* = host=127.0.0.1 port={self._behind.port} user={self._behind.username}",
            "[pgbouncer]",
            *(f"{name} = {value}" for name, value in settings.items()),
        ]
        file = self.make_directory("settings") / "pgbouncer.ini"
        file.write_text("\n".join([*lines, ""]))
        file.chmod(0o644)

    def command(self) -> list[str]:
        return [self.program("pgbouncer"), str(self.directory / "settings" / "pgbouncer.ini")]

    def probe(self) -> None:
        try:
            with ThreadPoolExecutor(max_workers=1) as thread:
                thread.submit(asyncio.run, self._ask()).result()
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            raise NotReady(str(error) or type(error).__name__) from error

    async def _ask(self) -> None:
        connection = await asyncpg.connect(self.url, timeout=_SECONDS, statement_cache_size=0)
        try:
            await connection.execute("select 1")
        finally:
            await connection.close()
