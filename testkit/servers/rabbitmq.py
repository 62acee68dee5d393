"""A private RabbitMQ."""

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from testkit.servers.base import Server
from testkit.servers.errors import NotReady
from testkit.servers.install import Package
from testkit.servers.ports import free_port

_SECONDS = 5.0
_GREETING: Final = b"AMQP\x00\x00\x09\x01"
_A_METHOD: Final = b"\x01"


class RabbitMQ(Server):
    """RabbitMQ for tests. A persistent message that was confirmed survives `kill`, if its queue is durable.

    A node of Erlang needs two ports more than the one that clients use: one to be reached by other nodes, and one for
    epmd, which tells them where. All three are on the loopback, and stay the same until `close`.
    """

    name = "rabbitmq"
    # The program on the path is a wrapper that writes to /var/log and becomes a user by itself. The one beside this
    # file, which is on no path, does neither.
    package = Package("rabbitmq-server", places=("/usr/lib/rabbitmq/bin",))
    programs = ("rabbitmq-env",)
    user = "rabbitmq"

    def __init__(
        self,
        url: str | None = None,
        *,
        durable: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(url, durable=durable, environment=environment)
        self._given = dict(environment or {})
        self.node_ports: tuple[int, ...] = ()

    @property
    def data(self) -> Path:
        return self.directory / "data"

    def private_url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"

    def prepare(self) -> None:
        self.make_directory("data")
        home = self.make_directory("home")
        config = self.directory / "rabbitmq.conf"
        config.write_text(
            f"listeners.tcp.1 = 127.0.0.1:{self.port}\n"
            # Below this much free disk it would stop taking messages, and ours may be a small one in memory.
            "disk_free_limit.absolute = 1MB\n"
            "log.console.level = warning\n"
        )
        plugins = self.directory / "enabled_plugins"
        plugins.write_text("[].\n")
        nothing = self.directory / "rabbitmq-env.conf"
        nothing.write_text("")
        self.node_ports = distribution, epmd = free_port(), free_port()
        self._environment = {
            "HOME": str(home),  # Where Erlang keeps its cookie.
            "RABBITMQ_NODENAME": f"nightmail-{self.port}@localhost",
            "RABBITMQ_MNESIA_BASE": str(self.data),
            "RABBITMQ_GENERATED_CONFIG_DIR": str(home),
            "RABBITMQ_CONFIG_FILE": str(config),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(home / "none.config"),
            "RABBITMQ_CONF_ENV_FILE": str(nothing),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(plugins),
            "RABBITMQ_PID_FILE": str(home / "pid"),
            "RABBITMQ_LOG_BASE": str(home),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_DIST_PORT": str(distribution),
            "ERL_EPMD_PORT": str(epmd),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_CRASH_DUMP_SECONDS": "0",
            # Two threads and not two per processor; and room for fewer processes than a data centre needs.
            "RABBITMQ_MAX_NUMBER_OF_PROCESSES": "65536",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
                "+S 2:2 +SDcpu 2:2 +A 1 -kernel inet_dist_use_interface {127,0,0,1}"
            ),
            # The script execs the server. Else it stays as the parent, and kill -9 of that does not kill the server.
            "RUNNING_UNDER_SYSTEMD": "true",
            **self._given,
        }

    def command(self) -> list[str]:
        return [str(Path(self.program("rabbitmq-env")).with_name("rabbitmq-server"))]

    def probe(self) -> None:
        """A server that accepts connections answers our greeting with a method frame: `connection.start`."""
        at = urlsplit(self.url)
        try:
            with socket.create_connection((at.hostname or "127.0.0.1", at.port or 5672), _SECONDS) as line:
                line.settimeout(_SECONDS)
                line.sendall(_GREETING)
                answer = line.recv(1)
        except OSError as error:
            raise NotReady(str(error) or type(error).__name__) from error
        if answer != _A_METHOD:
            raise NotReady("it does not speak AMQP 0-9-1")
