"""A private Redis: a single server, or a node of a setup that its options define."""

import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from testkit.servers.base import Server
from testkit.servers.errors import NotReady
from testkit.servers.install import Package

_SECONDS = 5.0


class Redis(Server):
    """Redis for tests. What was answered survives `kill`, durable or not.

    `durable` is for benchmarks, where a write must cost what it costs, and for tests of crashes: every write is on the
    disk before it is answered. `options` are directives of redis.conf, and win over ours.
    """

    name = "redis"
    package = Package("redis-server")
    programs = ("redis-server",)
    user = "redis"

    def __init__(
        self,
        url: str | None = None,
        *,
        durable: bool = False,
        options: Mapping[str, str | int | Sequence[str | int]] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(url, durable=durable, environment=environment)
        self._options = dict(options or {})

    # The server

    @property
    def data(self) -> Path:
        return self.directory / "data"

    def private_url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def prepare(self) -> None:
        self.make_directory("data")

    def command(self) -> list[str]:
        options: dict[str, str | int | Sequence[str | int]] = {
            "bind": "127.0.0.1",
            "port": self.port,
            "dir": str(self.data),
            "daemonize": "no",
            "save": "",
            # In the page cache before it is answered: enough to survive kill -9.
            "appendonly": "yes",
            "appendfsync": "always" if self.durable else "everysec",
            "databases": 64,
            # Tests make a server slow or deaf on purpose.
            "enable-debug-command": "local",
            **self._options,
        }
        arguments: list[str] = []
        for name, value in options.items():
            values = [value] if isinstance(value, str | int) else value
            arguments += [f"--{name}", *(str(part) for part in values)]
        return [self.program("redis-server"), *arguments]

    def probe(self) -> None:
        try:
            answer = self.execute_command("PING")
        except OSError as error:
            raise NotReady(str(error) or type(error).__name__) from error
        if not answer.startswith("+PONG"):
            raise NotReady(answer)

    # Commands, without a driver: fixtures are not asynchronous

    def execute_command(self, *words: str | int, database: int = 0) -> str:
        """Send one command, and return the first line of the answer."""
        parts = urlsplit(self.url)
        with socket.create_connection((parts.hostname or "127.0.0.1", parts.port or 6379), _SECONDS) as line:
            line.settimeout(_SECONDS)
            with line.makefile("rwb") as stream:
                if parts.password:
                    user = [unquote(parts.username)] if parts.username else []
                    _ask(stream, "AUTH", *user, unquote(parts.password))
                if database:
                    _ask(stream, "SELECT", database)
                return _ask(stream, *words)

    def flush(self, database: int) -> None:
        """Empty one of the server's databases."""
        # In the background: a million keys take longer than an answer may.
        self.execute_command("FLUSHDB", "ASYNC", database=database)


def _ask(stream: Any, *words: str | int) -> str:
    encoded = [str(word).encode() for word in words]
    parts = [b"*%d\r\n" % len(encoded), *(b"$%d\r\n%s\r\n" % (len(word), word) for word in encoded)]
    stream.write(b"".join(parts))
    stream.flush()
    return str(stream.readline().decode(errors="replace").strip())
