"""A private NATS with JetStream."""

import json
import socket
from pathlib import Path
from urllib.parse import urlsplit

from testkit.servers.base import Server
from testkit.servers.errors import NotReady
from testkit.servers.install import Package

_SECONDS = 5.0


class Nats(Server):
    """NATS for tests. What JetStream acknowledged survives `kill`; `durable` only means that it lies on a disk."""

    name = "nats"
    package = Package("nats-server")
    programs = ("nats-server",)
    user = "nats"

    @property
    def data(self) -> Path:
        return self.directory / "data"

    def private_url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def prepare(self) -> None:
        self.make_directory("data")

    def command(self) -> list[str]:
        return [
            self.program("nats-server"),
            "--addr=127.0.0.1",
            f"--port={self.port}",
            "--jetstream",
            f"--store_dir={self.data}",
        ]

    def probe(self) -> None:
        """A server speaks first: one line that says, among much else, whether JetStream is there."""
        at = urlsplit(self.url)
        try:
            with socket.create_connection((at.hostname or "127.0.0.1", at.port or 4222), _SECONDS) as line:
                line.settimeout(_SECONDS)
                with line.makefile("rb") as stream:
                    greeting = stream.readline()
        except OSError as error:
            raise NotReady(str(error) or type(error).__name__) from error
        verb, _, said = greeting.partition(b" ")
        if verb != b"INFO" or not json.loads(said).get("jetstream"):
            raise NotReady("it answers, but has no JetStream")
