"""Places with more than one server: what they do when one of them is lost."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from compat.obtain import CannotBeHad, programs
from compat.targets import Debian
from faults.place import SERVER_CONNECTIONS, Place
from testkit.servers.errors import ServerUnavailable
from testkit.servers.galera import Galera
from testkit.servers.patroni import Patroni
from testkit.servers.redis_cluster import RedisCluster

CUT_SECONDS: Final = 0.3
"""For how long a master goes on alone before it is killed."""


@dataclass(frozen=True, slots=True)
class ClusterPlace(Place):
    """An empty store on several servers."""

    cluster: Any = None

    @property
    def needs_copies(self) -> bool:
        """Whether a server without its copy acknowledges nothing: then the store is back once it is mended."""
        return False

    async def fail_over(self, choice: random.Random) -> bool:
        """kill -9 of a server that is written to, until another has taken over, or it is back itself.

        Whether another has: a cluster may wait for the one that was lost.
        """
        raise NotImplementedError

    async def cut_off_and_fail_over(self, choice: random.Random) -> bool:
        """The same, but the one that could take over was cut off before: it lacks what was acknowledged since."""
        raise NotImplementedError

    async def lose_all(self) -> None:
        """kill -9 of all servers at once, and a new start on their files."""
        raise NotImplementedError

    async def mend(self) -> None:
        """Start what was killed, and wait until all agree."""
        raise NotImplementedError


class RedisClusterPlace(ClusterPlace):
    """Three masters, and a replica of each."""

    cluster: RedisCluster

    @property
    def needs_copies(self) -> bool:
        # The first refuses every write, the second calls every publish uncertain.
        return self.store in ("redis-cluster-guarded", "redis-cluster-waiting")

    def url_for(self, process: int) -> str:
        """Of a node that runs: it names the others."""
        return urlsplit(self.cluster.url)._replace(query=urlsplit(self.url).query).geturl()

    async def fail_over(self, choice: random.Random) -> bool:
        master = choice.choice(await asyncio.to_thread(self.cluster.masters))
        await self._kill(master)
        return True

    async def cut_off_and_fail_over(self, choice: random.Random) -> bool:
        master = choice.choice(await asyncio.to_thread(self.cluster.masters))
        replica = await asyncio.to_thread(self.cluster.replica_of, master)
        with self.cluster.cut_off(replica):
            await asyncio.sleep(CUT_SECONDS)
            slot = (await asyncio.to_thread(master.myself)).slots[0]
            await asyncio.to_thread(self.cluster.kill, master)
        await asyncio.to_thread(self.cluster.wait_for_heir, slot, of=master)
        return True

    async def _kill(self, master: Any) -> None:
        slot = (await asyncio.to_thread(master.myself)).slots[0]
        await asyncio.to_thread(self.cluster.kill, master)
        await asyncio.to_thread(self.cluster.wait_for_heir, slot, of=master)

    async def mend(self) -> None:
        for node in self.cluster.nodes:
            await asyncio.to_thread(node.start)
        await asyncio.to_thread(self.cluster.wait_until_settled)


class GaleraPlace(ClusterPlace):
    """Three nodes, each of which is written to."""

    cluster: Galera

    def url_for(self, process: int) -> str:
        """The processes take the nodes in turn."""
        nodes = self.cluster.nodes
        return self.url.replace(f":{nodes[0].port}/", f":{nodes[process % len(nodes)].port}/")

    async def fail_over(self, choice: random.Random) -> bool:
        # Whichever: `mend` brings it back before the end of the run asks the first what is left.
        number = choice.randrange(len(self.cluster.nodes))
        await asyncio.to_thread(self.cluster.kill, number)
        await asyncio.to_thread(self.cluster.wait_until_it_is_missed)
        return True

    async def lose_all(self) -> None:
        await asyncio.gather(*(asyncio.to_thread(node.kill) for node in self.cluster.nodes))
        await asyncio.to_thread(self.cluster.start)

    async def mend(self) -> None:
        await asyncio.to_thread(self.cluster.start)


class PatroniPlace(ClusterPlace):
    """A primary and its standby, behind HAProxy."""

    cluster: Patroni

    async def fail_over(self, choice: random.Random) -> bool:
        primary = await asyncio.to_thread(lambda: self.cluster.primary)
        await asyncio.to_thread(primary.kill)
        await asyncio.to_thread(self.cluster.wait_for_heir, of=primary)
        return True

    async def cut_off_and_fail_over(self, choice: random.Random) -> bool:
        primary = await asyncio.to_thread(lambda: self.cluster.primary)
        standby = await asyncio.to_thread(lambda: self.cluster.standby)
        await asyncio.to_thread(standby.pause)
        try:
            await asyncio.to_thread(primary.drop_standbys)
            await asyncio.sleep(CUT_SECONDS)
            await asyncio.to_thread(primary.kill)
        finally:
            await asyncio.to_thread(standby.resume)
        if not await asyncio.to_thread(self.cluster.may_inherit, standby):
            # Patroni had let the primary go on alone: what it acknowledged since is nowhere else.
            await asyncio.to_thread(primary.start)
            # Running it may still be a standby: until HAProxy leads to it and it takes writes.
            await asyncio.to_thread(self.cluster.proxy.start)
            return False
        await asyncio.to_thread(self.cluster.wait_for_heir, of=primary)
        return True

    async def mend(self) -> None:
        for node in self.cluster.nodes:
            if not node.running:
                await asyncio.to_thread(node.wipe)
            await asyncio.to_thread(node.start)
        await asyncio.to_thread(self.cluster.wait_until_settled)


@contextmanager
def clustered(store: str, directory: Path) -> Iterator[Place]:
    """An empty store on several servers, each as careful as in production."""
    match store:
        case "galera" | "galera-unsynced":
            # With 2 a commit is given to the system, and kill -9 loses nothing.
            settings = {"innodb-flush-log-at-trx-commit": 1 if store == "galera" else 0}
            with Galera(durable=True, settings=settings) as galera:
                yield GaleraPlace(store, galera.create_database()[0], cluster=galera)
        case "patroni" | "patroni-async":
            settings = {"max_connections": SERVER_CONNECTIONS}
            with Patroni(synchronous=store == "patroni", settings=settings) as patroni:
                yield PatroniPlace(store, patroni.create_database(), cluster=patroni)
        case "valkey-cluster":
            with ExitStack() as stack:
                with _first_in_path(_valkey()):
                    cluster = stack.enter_context(RedisCluster(durable=True))
                yield RedisClusterPlace(store, cluster.url, cluster=cluster)
        case "redis-cluster-waiting":
            with RedisCluster(durable=True) as cluster:
                yield RedisClusterPlace(store, f"{cluster.url}?wait_replicas=1", cluster=cluster)
        case _:
            # Of a master without a replica that answers, `redis-cluster-guarded` takes no writes.
            options = (
                {"min-replicas-to-write": 1, "min-replicas-max-lag": 1} if store.endswith("guarded") else {}
            )
            with RedisCluster(durable=True, options=options) as cluster:
                yield RedisClusterPlace(store, cluster.url, cluster=cluster)


def _valkey() -> Path:
    """Where the Valkey of a newer Debian is, under the name of Redis: `compat` gets it the first time."""
    try:
        [place] = programs(Debian("trixie", "valkey-server", "valkey-server"))
    except CannotBeHad as why:
        raise ServerUnavailable(f"no Valkey: {why}") from why
    return place


@contextmanager
def _first_in_path(directory: Path) -> Iterator[None]:
    before = os.environ.get("PATH", os.defpath)
    os.environ["PATH"] = f"{directory}{os.pathsep}{before}"
    try:
        yield
    finally:
        os.environ["PATH"] = before
