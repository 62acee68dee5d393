"""A private Redis Cluster: masters that share the slots, and a replica for each of them.

Which node is a master changes with every failover, so nothing here goes by a node's number: ask
`master_of(slot)` and `replica_of(node)`. A slot is what Redis calls the 16384th part of all keys.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import urlsplit

import redis

from testkit.servers.errors import NotOurs, ServerFailed
from testkit.servers.lifecycle import START_SECONDS, StartsAndCloses
from testkit.servers.ports import free_port
from testkit.servers.redis import Redis
from testkit.waiting import wait_until

SLOTS = 16384
_NODE_TIMEOUT_MILLISECONDS = 1000
_SECONDS = 120.0
_ANSWER_SECONDS = 5.0
_REVIVAL_SECONDS = 10.0
_KEYS_AT_ONCE = 100


@dataclass(frozen=True, slots=True)
class Member:
    """One node, as a node of the cluster sees it."""

    id: str
    address: str
    flags: frozenset[str]
    master: str | None
    """The id of the node that it copies, if it is a replica."""
    epoch: int
    connected: bool
    slots: tuple[int, ...]
    moving: bool
    """Whether some slot is on its way from or to this node. Only the node itself tells."""

    @classmethod
    def parse(cls, line: str) -> Self:
        """A line of `CLUSTER NODES`."""
        ident, address, flags, master, _ping, _pong, epoch, link, *slots = line.split()
        return cls(
            id=ident,
            address=address.partition("@")[0],
            flags=frozenset(flags.split(",")),
            master=None if master == "-" else master,
            epoch=int(epoch),
            connected=link == "connected",
            # In brackets: a slot on its way from or to another node.
            slots=tuple(slot for part in slots if not part.startswith("[") for slot in _range(part)),
            moving=any(part.startswith("[") for part in slots),
        )


class RedisNode(Redis):
    """One Redis server of a cluster. What it has answered survives `kill`, durable or not."""

    name = "redis_cluster"

    def __init__(
        self,
        url: str | None = None,
        *,
        durable: bool = False,
        options: Mapping[str, str | int] | None = None,
    ) -> None:
        ours: dict[str, str | int] = {
            "databases": 1,
            "cluster-enabled": "yes",
            "cluster-node-timeout": _NODE_TIMEOUT_MILLISECONDS,
            # Each master keeps its own replica, whatever becomes of the others.
            "cluster-allow-replica-migration": "no",
            "repl-diskless-sync-delay": 0,
            "repl-ping-replica-period": 1,
        }
        super().__init__(url, durable=durable, options={**ours, **(options or {})})
        self.bus = 0
        """The port on which the nodes talk to one another. Chosen by the first `start`."""

    # The server

    @property
    def address(self) -> str:
        at = urlsplit(self.url)
        return f"{at.hostname}:{at.port}"

    def prepare(self) -> None:
        super().prepare()
        while (bus := free_port()) == self.port:
            pass
        self.bus = bus

    def command(self) -> list[str]:
        return [*super().command(), "--cluster-port", str(self.bus)]

    def private_url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    # Conversation

    def ask(self, *words: str | int) -> Any:
        """Send one command to this node, and return its answer as it comes."""
        at = urlsplit(self.url)
        with redis.Redis(
            host=at.hostname or "127.0.0.1",
            port=at.port or 6379,
            username=at.username,
            password=at.password,
            socket_timeout=_ANSWER_SECONDS,
            decode_responses=True,
        ) as client:
            return client.execute_command(*words)

    @property
    def id(self) -> str:
        return str(self.ask("CLUSTER", "MYID"))

    def members(self) -> list[Member]:
        """The cluster as this node sees it."""
        return [Member.parse(line) for line in self.ask("CLUSTER", "NODES").splitlines()]

    def myself(self) -> Member:
        """This node, as it sees itself."""
        return next(member for member in self.members() if "myself" in member.flags)

    def healthy(self, *, members: int) -> bool:
        """Whether it serves, moves no slot, knows so many living nodes, and hears its master if it has one."""
        found = self.members()
        replication = self.ask("INFO", "replication")
        return (
            "cluster_state:ok" in self.ask("CLUSTER", "INFO").split()
            and len(found) == members
            and not any(member.moving for member in found)
            and all(member.connected or "myself" in member.flags for member in found)
            and not any(member.flags & {"fail", "fail?", "handshake", "noaddr"} for member in found)
            and (replication["role"] == "master" or replication["master_link_status"] == "up")
        )


class RedisCluster(StartsAndCloses):
    """Three masters and three replicas, ours, or, with `urls`, a cluster of the user's that is only ever used.

    The life of a cluster is that of a server (see `base`); single nodes are killed and restarted.
    """

    def __init__(
        self,
        urls: Sequence[str] = (),
        *,
        masters: int = 3,
        durable: bool = False,
        options: Mapping[str, str | int] | None = None,
    ) -> None:
        self._masters = masters
        self._joined = False
        found: Sequence[str | None] = urls or [None] * (2 * masters)
        self.nodes = [RedisNode(url, durable=durable, options=options) for url in found]

    @classmethod
    def from_environment(cls) -> Self:
        """The user's own cluster if the environment names its nodes, separated by commas, else a private one."""
        return cls(os.environ.get(RedisNode.url_variable(), "").replace(",", " ").split())

    @property
    def ours(self) -> bool:
        return all(node.ours for node in self.nodes)

    @property
    def running(self) -> list[RedisNode]:
        return [node for node in self.nodes if node.running]

    @property
    def url(self) -> str:
        """Any node will do: it names the others."""
        at = urlsplit(self.running[0].url)
        return at._replace(scheme="redis+cluster").geturl()

    # Its life

    def start(self, *, within: float = START_SECONDS) -> Self:
        """Run every node that does not run yet, and return once all of them agree."""
        try:
            for node in self.nodes:
                node.start(within=within)
            if self.ours and not self._joined:
                self._join()
            self.wait_until_settled()
        except BaseException:
            self.close()
            raise
        return self

    def kill(self, node: RedisNode) -> None:
        """kill -9 of one node. If it is a master, its replica takes over a little later: see `wait_for_heir`."""
        node.kill()

    def restart(self, node: RedisNode) -> None:
        """Run one node again, stopping it first if it still runs, and return once all nodes agree."""
        node.stop()
        node.start()
        self.wait_until_settled()

    def stop(self) -> None:
        """Shut all nodes down cleanly."""
        for node in self.nodes:
            node.stop()

    def revive(self) -> None:
        """Make it usable whatever an earlier test did to it; if need be, start from scratch."""
        for node in self.nodes:
            if node.ours:
                node.resume()
        try:
            for node in self.nodes:
                node.start()
            self.wait_until_settled(within=_REVIVAL_SECONDS)
        except TimeoutError:
            self.close()
            self.start()

    def close(self) -> None:
        """End it and remove every trace. Does nothing to a cluster of the user's, or a second time."""
        for node in self.nodes:
            node.close()
        self._joined = False

    # Who is who

    def slot_of(self, key: str) -> int:
        return int(self.running[0].ask("CLUSTER", "KEYSLOT", key))

    def master_of(self, slot: int) -> RedisNode:
        """The node that answers for this slot."""
        owners = [(node.myself(), node) for node in self.running]
        found = [(member.epoch, node) for member, node in owners if slot in member.slots]
        if not found:
            raise ServerFailed(f"no living node answers for slot {slot}")
        # A master that was replaced while it was paused does not know it yet: the newer epoch counts.
        return max(found, key=lambda each: each[0])[1]

    def masters(self) -> list[RedisNode]:
        """The nodes that answer for at least one slot."""
        return [node for node in self.running if node.myself().slots]

    def replica_of(self, master: RedisNode) -> RedisNode:
        ident = master.id
        for node in self.running:
            if node.myself().master == ident:
                return node
        raise ServerFailed("this node has no living replica")

    def settled(self) -> bool:
        """Whether all nodes live, serve, and agree on who answers for which slot."""
        try:
            views = {_owners(node.members()) for node in self.nodes}
            return len(views) == 1 and all(node.healthy(members=len(self.nodes)) for node in self.nodes)
        except redis.RedisError:
            return False

    def wait_until_settled(self, *, within: float = _SECONDS) -> None:
        wait_until(self.settled, within=within, what="all nodes of the Redis cluster to agree")

    # What happens to a cluster

    def failover(self, slot: int) -> RedisNode:
        """Let the replica take over from a living master, losing nothing; the new master of this slot."""
        old = self.master_of(slot)
        self.replica_of(old).ask("CLUSTER", "FAILOVER")
        heir = self.wait_for_heir(slot, of=old)
        self.wait_until_settled()
        return heir

    def wait_for_heir(self, slot: int, *, of: RedisNode) -> RedisNode:
        """Wait until another node than this one answers for the slot, and all living nodes serve again."""

        def inherited() -> bool:
            try:
                return self.master_of(slot) is not of and all(
                    "cluster_state:ok" in node.ask("CLUSTER", "INFO").split() for node in self.running
                )
            except (redis.RedisError, ServerFailed):
                return False

        wait_until(inherited, within=_SECONDS, what=f"a new master of slot {slot}")
        return self.master_of(slot)

    @contextmanager
    def cut_off(self, replica: RedisNode) -> Iterator[None]:
        """Until the block is left, the replica gets nothing of what its master acknowledges.

        Freezing it alone would not do: the system keeps what is sent to it, and it reads that in the end.
        """
        master = replica.myself().master
        [source] = [node for node in self.running if node.id == master]
        replica.pause()
        try:
            source.ask("CLIENT", "KILL", "TYPE", "replica")
            yield
        finally:
            replica.resume()

    def move_slots(self, source: RedisNode, target: RedisNode, count: int) -> list[int]:
        """Move this many slots with all their keys, while clients go on using them; which ones."""
        slots = list(source.myself().slots[:count])
        for slot in slots:
            self.move_slot(slot, target)
        return slots

    def move_slot(self, slot: int, target: RedisNode) -> None:
        """Move one slot with all its keys to another master, while clients go on using it."""
        source = self.master_of(slot)
        if source is target:
            return
        giver, taker = source.id, target.id
        target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", giver)
        source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", taker)

        def emptied() -> bool:
            keys = source.ask("CLUSTER", "GETKEYSINSLOT", slot, _KEYS_AT_ONCE)
            if keys:
                host, _, port = target.address.partition(":")
                source.ask("MIGRATE", host, port, "", 0, int(_ANSWER_SECONDS * 1000), "KEYS", *keys)
            return not keys

        wait_until(emptied, within=_SECONDS, what=f"the keys of slot {slot} to move")
        # The new owner first: told last, a client sent there would be sent back.
        for node in (target, source, *(node for node in self.masters() if node not in (source, target))):
            node.ask("CLUSTER", "SETSLOT", slot, "NODE", taker)

    def flush(self) -> None:
        """Remove everything from a cluster of ours."""
        if not self.ours:
            raise NotOurs(
                f"the Redis cluster of {RedisNode.url_variable()} cannot be emptied by a test; "
                "unset the variable to use a private one"
            )
        for node in self.running:
            answer = node.execute_command("FLUSHALL")
            # Replicas follow their masters, and refuse the command themselves.
            if not answer.startswith(("+OK", "-READONLY")):
                raise ServerFailed(f"a node of the cluster could not be emptied: {answer}")

    # How it is done

    def _join(self) -> None:
        masters, replicas = self.nodes[: self._masters], self.nodes[self._masters :]
        for number, node in enumerate(self.nodes, start=1):
            # Set by hand: else nodes with the same epoch argue about it until one gives way.
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", number)
        for number, node in enumerate(masters):
            first, end = (SLOTS * part // len(masters) for part in (number, number + 1))
            node.ask("CLUSTER", "ADDSLOTSRANGE", first, end - 1)
        for node in self.nodes[1:]:
            self.nodes[0].ask("CLUSTER", "MEET", "127.0.0.1", node.port, node.bus)
        wait_until(
            lambda: all(len(_met(node.members())) == len(self.nodes) for node in self.nodes),
            within=_SECONDS,
            what="the nodes to meet",
        )
        for master, replica in zip(masters, replicas, strict=True):
            replica.ask("CLUSTER", "REPLICATE", master.id)
        self._joined = True


def _range(part: str) -> range:
    first, _, last = part.partition("-")
    return range(int(first), int(last or first) + 1)


def _met(members: list[Member]) -> list[Member]:
    return [member for member in members if "handshake" not in member.flags]


def _owners(members: list[Member]) -> frozenset[tuple[str, str | None, tuple[int, ...]]]:
    return frozenset((member.id, member.master, member.slots) for member in members)
