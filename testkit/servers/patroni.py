"""Postgres under Patroni: a primary, a standby that takes over, etcd in which they agree, and HAProxy in front.

    clients ── HAProxy ──> the primary ──replication──> the standby
                  └─ asks ─> Patroni of each node <─── agree in ───> etcd

A node is Patroni with the Postgres it runs; to kill it is to kill both.
"""

import json
import shutil
import signal
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Self

import psycopg

from testkit.servers.base import Server
from testkit.servers.errors import NotReady, ServerFailed
from testkit.servers.install import Package, program
from testkit.servers.lifecycle import START_SECONDS, StartsAndCloses
from testkit.servers.ports import free_port
from testkit.servers.postgres import Postgres
from testkit.waiting import wait_until

_ANSWER_SECONDS = 5.0
_SECONDS = 90.0


class Etcd(Server):
    """Where the nodes agree on who is the primary. A single one: what is tested is Postgres."""

    name = "etcd"
    package = Package("etcd-server")
    programs = ("etcd",)
    user = "nobody"

    def prepare(self) -> None:
        self.make_directory("data")
        self._peers = f"http://127.0.0.1:{free_port()}"

    def private_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        return [
            self.program("etcd"),
            "--name=only",
            f"--data-dir={self.directory / 'data'}",
            f"--listen-client-urls={self.url}",
            f"--advertise-client-urls={self.url}",
            f"--listen-peer-urls={self._peers}",
            f"--initial-advertise-peer-urls={self._peers}",
            f"--initial-cluster=only={self._peers}",
        ]

    def probe(self) -> None:
        _ask(f"{self.url}/health")


class PatroniNode(Server):
    """One Postgres with the Patroni that runs it."""

    name = "patroni"
    package = Package("patroni")
    programs = ("patroni",)
    user = "postgres"
    farewell_signal: ClassVar[signal.Signals] = signal.SIGTERM

    def __init__(
        self, number: int, etcd: Etcd, *, synchronous: bool, settings: Mapping[str, str | int]
    ) -> None:
        super().__init__(durable=True)
        self.member = f"node-{number}"
        self._etcd = etcd
        self._synchronous = synchronous
        self._settings = dict(settings)

    @property
    def data(self) -> Path:
        return self.directory / "node" / "data"

    def private_url(self) -> str:
        """Of its Patroni."""
        return f"http://127.0.0.1:{self.port}"

    def prepare(self) -> None:
        self.postgres_port = free_port()
        home = self.make_directory("node")
        trusted = ["local all all trust", "host all all 127.0.0.1/32 trust"]
        config: dict[str, Any] = {
            "scope": "nightmail",
            "name": self.member,
            "restapi": {
                "listen": f"127.0.0.1:{self.port}",
                "connect_address": f"127.0.0.1:{self.port}",
            },
            "etcd3": {"host": f"127.0.0.1:{self._etcd.port}"},
            "bootstrap": {
                "dcs": {
                    # The shortest that Patroni takes: a node that is gone is replaced after 20 s.
                    "ttl": 20,
                    "loop_wait": 1,
                    "retry_timeout": 3,
                    "synchronous_mode": self._synchronous,
                    "postgresql": {"use_pg_rewind": False, "parameters": self._settings},
                },
                "initdb": [{"encoding": "UTF8"}, {"locale": "C.UTF-8"}],
            },
            "postgresql": {
                "listen": f"127.0.0.1:{self.postgres_port}",
                "connect_address": f"127.0.0.1:{self.postgres_port}",
                "data_dir": str(self.data),
                # At once, not spread over minutes; and what is killed is a process, not the machine.
                "basebackup": [{"checkpoint": "fast"}, "no-sync"],
                # Where its other programs are, too: what PATH leads to may be a link.
                "bin_dir": str(program("postgres", Postgres.package).resolve().parent),
                "pgpass": str(home / "pgpass"),
                "pg_hba": [*trusted, "host replication all 127.0.0.1/32 trust"],
                "authentication": {
                    "superuser": {"username": "postgres"},
                    "replication": {"username": "replicator", "password": "replicator"},
                },
                "parameters": {
                    "unix_socket_directories": str(home),
                    "dynamic_shared_memory_type": "mmap",
                },
            },
            "watchdog": {"mode": "off"},
        }
        # JSON is YAML.
        (home / "patroni.yml").write_text(json.dumps(config))
        (home / "patroni.yml").chmod(0o644)

    def command(self) -> list[str]:
        return [self.program("patroni"), str(self.directory / "node" / "patroni.yml")]

    def probe(self) -> None:
        state = self.state()
        if state.get("state") != "running":
            raise NotReady(f"its Postgres is {state.get('state')}")

    def state(self) -> dict[str, Any]:
        """What its Patroni says about itself."""
        return _ask(f"{self.url}/patroni")

    def wipe(self) -> None:
        """Remove the data of a node that was killed: when it is started it takes those of the primary.

        What it has and the primary lacks must go; pg_rewind sees to that as well, but can take minutes.
        """
        shutil.rmtree(self.data)

    def drop_standbys(self) -> None:
        """Cut the connections on which standbys follow it."""
        own = Postgres(f"postgresql://postgres@127.0.0.1:{self.postgres_port}/postgres")
        own.sql("select pg_terminate_backend(pid) from pg_stat_replication")


class HAProxy(Server):
    """Leads every connection to the primary."""

    name = "haproxy"
    package = Package("haproxy")
    programs = ("haproxy",)
    user = "haproxy"

    def __init__(self, nodes: list[PatroniNode]) -> None:
        super().__init__()
        self._nodes = nodes

    def private_url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def prepare(self) -> None:
        check = "inter 500ms fall 2 rise 1 on-marked-down shutdown-sessions"
        lines = [
            "defaults",
            "    mode tcp",
            "    timeout connect 2s",
            "    timeout client 1h",
            "    timeout server 1h",
            "listen postgres",
            f"    bind 127.0.0.1:{self.port}",
            "    option httpchk GET /primary",
            "    http-check expect status 200",
            *(
                f"    server {node.member} 127.0.0.1:{node.postgres_port} check port {node.port} {check}"
                for node in self._nodes
            ),
        ]
        file = self.make_directory("settings") / "haproxy.cfg"
        file.write_text("\n".join([*lines, ""]))
        file.chmod(0o644)

    def command(self) -> list[str]:
        return [self.program("haproxy"), "-db", "-f", str(self.directory / "settings" / "haproxy.cfg")]

    def probe(self) -> None:
        # Until its first checks are over it leads to one node after the other.
        try:
            for _ in self._nodes:
                Postgres(self.url).sql("create temporary table if not exists writable ()")
        except psycopg.Error as error:
            raise NotReady(str(error) or type(error).__name__) from None


class Patroni(StartsAndCloses):
    """A primary and a standby. With `synchronous` a commit is answered when both have it.

    `settings` are those of postgresql.conf.
    """

    def __init__(
        self, *, synchronous: bool, size: int = 2, settings: Mapping[str, str | int] | None = None
    ) -> None:
        self.synchronous = synchronous
        self.etcd = Etcd()
        self.nodes = [
            PatroniNode(number, self.etcd, synchronous=synchronous, settings=settings or {})
            for number in range(1, size + 1)
        ]
        self.proxy = HAProxy(self.nodes)

    @property
    def url(self) -> str:
        """Of whichever node is the primary."""
        return self.proxy.url

    def start(self, *, within: float = START_SECONDS) -> Self:
        """Run what does not run yet, and return once the standby follows the primary."""
        try:
            for server in (self.etcd, *self.nodes, self.proxy):
                server.start(within=within)
            self.wait_until_settled()
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """End it and remove every trace."""
        for server in (self.proxy, *self.nodes, self.etcd):
            server.close()

    def create_database(self) -> str:
        """An empty database on the primary, through the proxy; its URL."""
        return Postgres(self.url).create_database()

    # Who is who

    @property
    def primary(self) -> PatroniNode:
        """The node that holds the lock in etcd, and has opened for writes."""
        for node in self.nodes:
            with suppress(NotReady):
                if node.running and node.state().get("role") in ("master", "primary"):
                    return node
        raise ServerFailed("there is no primary")

    @property
    def standby(self) -> PatroniNode:
        """A node that follows."""
        primary = self.primary
        return next(node for node in self.nodes if node is not primary)

    def settled(self) -> bool:
        """Whether a primary has all the others behind it, synchronous where they should be."""
        try:
            primary = self.primary
            followers = primary.state().get("replication", [])
            # Its Postgres may wait for a standby that Patroni has not written down yet: that one could not take over.
            roles = [member["role"] for member in _ask(f"{primary.url}/cluster")["members"]]
        except (NotReady, ServerFailed):
            return False
        wanted = "sync_standby" if self.synchronous else "replica"
        streaming = [each for each in followers if each["state"] == "streaming"]
        copies = len(self.nodes) - 1
        return all(node.running for node in self.nodes) and len(streaming) == roles.count(wanted) == copies

    def wait_until_settled(self) -> None:
        wait_until(self.settled, within=_SECONDS, what="the standby to follow the primary")

    def may_inherit(self, standby: PatroniNode) -> bool:
        """Whether it may take over from a primary that is gone: not if that had gone on without it."""
        if not self.synchronous:
            return True
        members = _ask(f"{standby.url}/cluster")["members"]
        return any(each["name"] == standby.member and each["role"] == "sync_standby" for each in members)

    def wait_for_heir(self, *, of: PatroniNode) -> PatroniNode:
        """Wait until another node than this one is the primary, and the proxy knows."""

        def inherited() -> bool:
            try:
                if self.primary is of:
                    return False
                self.proxy.probe()
            except (NotReady, ServerFailed):
                return False
            return True

        wait_until(inherited, within=_SECONDS, what="a new primary")
        return self.primary


def _ask(url: str) -> dict[str, Any]:
    try:
        with urllib.request.urlopen(url, timeout=_ANSWER_SECONDS) as answer:  # noqa: S310 - one of our own
            found: dict[str, Any] = json.load(answer)
            return found
    except urllib.error.HTTPError as error:
        # Patroni answers 503 with all the rest while its Postgres does not run.
        with suppress(json.JSONDecodeError):
            told: dict[str, Any] = json.load(error)
            return told
        raise NotReady(str(error)) from None
    except (OSError, json.JSONDecodeError) as error:
        raise NotReady(str(error) or type(error).__name__) from None
