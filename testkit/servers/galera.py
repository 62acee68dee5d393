"""A private Galera cluster: several MariaDB servers that hold the same data, each of which may be written to.

Every node has four ports of 127.0.0.1: its own for clients, one for the group, and two on which a node that
joins receives what it missed. A node that comes back is told where its files stop, as Debian's service does
it, so that it gets the missing writes (IST) and not a copy of everything (SST).

The first node founds the cluster and the others are copies of it: only the first needs files of its own.
"""

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from asyncmy.errors import MySQLError

from testkit.servers.errors import NotReady, ServerFailed, ServerUnavailable
from testkit.servers.lifecycle import START_SECONDS, StartsAndCloses
from testkit.servers.mariadb import MariaDB
from testkit.servers.ports import free_port
from testkit.waiting import wait_until

_AGREE_SECONDS = 120.0
_PROVIDERS = "/usr/lib/galera/libgalera_smm.so", "/usr/lib64/galera-4/libgalera_smm.so"
_RECOVERED = re.compile(r"WSREP: Recovered position: ([0-9a-f-]{36}):(-?\d+)")
_NOWHERE = "00000000-0000-0000-0000-000000000000", -1


class GaleraNode(MariaDB):
    """One MariaDB server of a cluster. What was committed survives `kill`, durable or not."""

    name = "galera"

    def __init__(
        self,
        url: str | None = None,
        *,
        peers: Sequence["GaleraNode"] = (),
        durable: bool = False,
        settings: Mapping[str, str | int | None] | None = None,
    ) -> None:
        super().__init__(url, durable=durable, settings=settings)
        self._peers = peers
        self._ports: list[int] = []
        self.founding = False
        """Whether its next start makes a cluster instead of joining one."""

    # The server

    @property
    def ports(self) -> list[int]:
        """All that it listens on, at times: for clients, for the group, and for what it missed."""
        return [self.port, *self._ports] if self._ports else []

    @property
    def group_address(self) -> str:
        return f"127.0.0.1:{self._ports[0]}"

    def prepare(self) -> None:
        if self.founding:
            super().prepare()
        else:
            self.make_directory("data")
            self.make_directory("run")
        taken = {self.port, *(port for peer in self._peers for port in peer.ports)}
        self._ports = _free_ports(3, besides=taken)

    @property
    def settings(self) -> dict[str, str | int | None]:
        group, missed_writes, whole_copy = self._ports
        others = [peer.group_address for peer in self._peers if peer is not self and peer.ports]
        provider = {
            "gmcast.listen_addr": f"tcp://127.0.0.1:{group}",
            "ist.recv_addr": f"127.0.0.1:{missed_writes}",
            "gcache.size": "32M",
            # A dead node is noticed after 2 s instead of 5: until then no commit gets through.
            "evs.keepalive_period": "PT0.5S",
            "evs.suspect_timeout": "PT2S",
            "evs.inactive_timeout": "PT6S",
        }
        return {
            **super().settings,
            "character-set-server": "utf8mb4",
            "performance-schema": "OFF",
            "innodb-buffer-pool-size": "32M",
            "innodb-log-file-size": "16M",
            "innodb-autoinc-lock-mode": 2,
            "binlog-format": "ROW",
            "wsrep-on": "ON",
            "wsrep-provider": _provider(),
            "wsrep-provider-options": ";".join(f"{name}={value}" for name, value in provider.items()),
            "wsrep-cluster-name": "nightmail",
            "wsrep-cluster-address": f"gcomm://{','.join(others)}",
            "wsrep-node-address": self.group_address,
            "wsrep-sst-method": "rsync",
            "wsrep-sst-receive-address": f"127.0.0.1:{whole_copy}",
            **self._settings,
        }

    def command(self) -> list[str]:
        if self.founding:
            return [*super().command(), "--wsrep-new-cluster"]
        uuid, number = self.position()
        return [*super().command(), f"--wsrep-start-position={uuid}:{number}"]

    def probe(self) -> None:
        state = self.state()
        if state.get("wsrep_ready") != "ON" or state.get("wsrep_local_state_comment") != "Synced":
            raise NotReady(f"the node is {state.get('wsrep_local_state_comment', 'no part of a cluster')}")

    def state(self) -> dict[str, str]:
        """What the node thinks of itself and of the cluster; `NotReady` when it does not answer."""
        try:
            return {str(name): str(value) for name, value in self.sql("show status like 'wsrep\\_%'")}
        except (OSError, MySQLError, TimeoutError) as error:
            raise NotReady(str(error) or type(error).__name__) from None

    def position(self) -> tuple[str, int]:
        """The last write in the files of a stopped node: the history's id, and the write's number in it."""
        if not (self.data / "grastate.dat").exists():
            return _NOWHERE
        log = self.directory / "run" / "position.log"
        log.unlink(missing_ok=True)
        _program, *options = super().command()
        self.execute("mariadbd", *options, "--wsrep-recover", f"--log-error={log}")
        found = _RECOVERED.search(log.read_text(errors="replace"))
        return (found[1], int(found[2])) if found else _NOWHERE

    def may_found(self) -> None:
        """Let it found a cluster on its old files even if it was not the last to leave."""
        path = self.data / "grastate.dat"
        path.write_text(path.read_text().replace("safe_to_bootstrap: 0", "safe_to_bootstrap: 1"))


class Galera(StartsAndCloses):
    """A cluster of MariaDB servers, ours, or, with `urls`, one of the user's that is only ever used.

    The life of a cluster is that of a server (see `base`); single nodes are killed and restarted by number.
    """

    def __init__(
        self,
        urls: Sequence[str] = (),
        *,
        size: int = 3,
        durable: bool = False,
        settings: Mapping[str, str | int | None] | None = None,
    ) -> None:
        self.nodes: list[GaleraNode] = []
        nodes: Sequence[str | None] = urls or [None] * size
        for url in nodes:
            self.nodes.append(GaleraNode(url, peers=self.nodes, durable=durable, settings=settings))

    @classmethod
    def from_environment(cls) -> Self:
        """The user's own cluster if the environment names its nodes, separated by commas, else a private one."""
        return cls(os.environ.get(GaleraNode.url_variable(), "").replace(",", " ").split())

    @property
    def ours(self) -> bool:
        return all(node.ours for node in self.nodes)

    # Its life

    def start(self, *, within: float = START_SECONDS) -> Self:
        """Run every node that does not run yet, and return once all of them know of one another."""
        deadline = time.monotonic() + within
        try:
            if self.ours and not any(node.running for node in self.nodes):
                self._found(within=within)
            for node in self.nodes:
                node.start(within=max(deadline - time.monotonic(), 0))
            wait_until(self.complete, within=_AGREE_SECONDS, what="all nodes to be in one cluster")
        except BaseException:
            self.close()
            raise
        return self

    def complete(self) -> bool:
        """Whether every node is ready and counts all the others."""
        try:
            states = [node.state() for node in self.nodes]
        except NotReady:
            return False
        return all(
            state.get("wsrep_ready") == "ON" and state.get("wsrep_cluster_size") == str(len(self.nodes))
            for state in states
        )

    def kill(self, number: int) -> None:
        """kill -9 of one node."""
        self.nodes[number].kill()

    def wait_until_it_is_missed(self) -> None:
        """Wait until the living nodes count only themselves: from then on commits get through again."""
        living = [node for node in self.nodes if node.running]

        def counted() -> bool:
            try:
                return all(node.state().get("wsrep_cluster_size") == str(len(living)) for node in living)
            except NotReady:
                return False

        wait_until(counted, within=_AGREE_SECONDS, what="the living nodes to go on without the dead one")

    def restart(self, number: int, *, within: float = START_SECONDS) -> None:
        """Run one node again, stopping it first if it still runs, and return once the cluster is complete."""
        self.nodes[number].stop()
        self.start(within=within)

    def stop(self) -> None:
        """Shut all nodes down cleanly, the first one last: it founds the cluster when it is started again."""
        for node in reversed(self.nodes):
            node.stop()

    def revive(self) -> None:
        """Make it usable whatever an earlier test did to it."""
        for node in self.nodes:
            if node.ours:
                node.resume()
        self.start()

    def close(self) -> None:
        """End it and remove every trace. Does nothing to a cluster of the user's, or a second time."""
        for node in self.nodes:
            node.close()

    # Databases

    @contextmanager
    def fresh_database(self) -> Iterator[list[str]]:
        """An empty database for as long as the block lasts: its URLs, one for each node."""
        urls = self.create_database()
        try:
            yield urls
        finally:
            self.drop_database(urls)

    def create_database(self) -> list[str]:
        """Create an empty database with a name of its own; its URLs, one for each node, all usable."""
        path = urlsplit(self.nodes[0].create_database()).path
        for node in self.nodes:
            # Waits until this node has caught up with the first: one that lags does not have the database yet.
            if not node.sql(
                "set statement wsrep_sync_wait = 1 for select 1 from information_schema.schemata "
                f"where schema_name = '{path.removeprefix('/')}'"
            ):
                raise ServerFailed("a new database did not reach every node")
        return [urlsplit(node.url)._replace(path=path).geturl() for node in self.nodes]

    def drop_database(self, urls: Sequence[str]) -> None:
        """Drop a database made by `create_database`, even if clients are still connected to it."""
        self.nodes[0].drop_database(urls[0])

    # How it is done

    def _found(self, *, within: float) -> None:
        """Run the node that is to found the cluster: the first, or the one with the most writes in its files."""
        founder = self.nodes[0]
        if founder.ports:
            founder = max(self.nodes, key=lambda node: node.position()[1])
            founder.may_found()
        founder.founding = True
        try:
            founder.start(within=within)
        finally:
            founder.founding = False


def _provider() -> str:
    for path in _PROVIDERS:
        if Path(path).exists():
            return path
    raise ServerUnavailable("libgalera_smm.so was not found: install Debian package galera-4")


def _free_ports(count: int, *, besides: set[int]) -> list[int]:
    """Ports that nothing listens on, and that no stopped node will want back."""
    ports: set[int] = set()
    while len(ports) < count:
        ports |= {free_port()} - besides
    return list(ports)
