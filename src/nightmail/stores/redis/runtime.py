"""What exists while a store is open: connections, and what is remembered from one call to the next."""

from __future__ import annotations

import asyncio

from nightmail.stores.redis.acking import Acking
from nightmail.stores.redis.claiming import Claims
from nightmail.stores.redis.coalescing import CoalescerBySlot
from nightmail.stores.redis.connect import Connector
from nightmail.stores.redis.inspecting import Inspecting
from nightmail.stores.redis.joining import Joining
from nightmail.stores.redis.keys import Keys
from nightmail.stores.redis.lane import Lane
from nightmail.stores.redis.letters import Letters
from nightmail.stores.redis.listen import Listener
from nightmail.stores.redis.nodes import ClusterNodes, Nodes, OneServer
from nightmail.stores.redis.publishing import Publishing
from nightmail.stores.redis.redriving import Redriving
from nightmail.stores.redis.registry import Registry
from nightmail.stores.redis.script_calls import ScriptCalls
from nightmail.stores.redis.settling import Settling
from nightmail.stores.redis.sweeping import Sweeping
from nightmail.stores.redis.timers import Timers
from nightmail.stores.redis.whole import Whole
from nightmail.stores.shared.keeper_thread import KeeperThread


class Runtime:
    """On one event loop, until it is closed."""

    def __init__(
        self,
        connector: Connector,
        keys: Keys,
        calls: ScriptCalls,
        *,
        keep_delivered: bool,
        max_body_bytes: int,
    ) -> None:
        self.whole = Whole()
        self.nodes = nodes_of(connector)
        self.claim, self.settle, self.publish = (
            Lane(role, connector, self.nodes) for role in ("claim", "settle", "publish")
        )
        self.registry = Registry(self.publish, calls, self.nodes)
        self.publishing = Publishing(self.publish, self.registry, calls, self.nodes, connector.waiting)
        self.coalescer = CoalescerBySlot(self.publishing.publish_batch, self.nodes, keys)
        self.joining = Joining(self.publish, self.registry, self.publishing, self.nodes, keys)
        self.claims = Claims(self.claim, self.registry, calls, self.nodes, max_body_bytes)
        self.letters = Letters(self.claim, calls, self.nodes)
        self.settling = Settling(calls, self.nodes, keep_delivered=keep_delivered)
        self.acking = Acking(
            self.settle,
            self.registry,
            calls,
            self.nodes,
            self.settling,
            self.joining,
            clustered=connector.cluster is not None,
        )
        self.timers = Timers(self.publish, self.registry, calls)
        self.inspecting = Inspecting(self.publish, self.registry, calls)
        self.redriving = Redriving(self.publish, self.registry, calls, self.nodes)
        self.sweeping = Sweeping(self.publish, self.registry, calls)
        self.listener = Listener(connector, self.nodes, keys)
        # The thread has its own event loop, and so its own map of the cluster.
        self.keeper = KeeperThread(
            lambda: Lane("keeper", connector, nodes_of(connector)), self.settling.extend
        )

    async def close(self) -> None:
        """Close every connection and the thread: in two seconds at most, even if the server does not answer."""
        await asyncio.gather(self.whole.close(), self.listener.close(), self.keeper.close())
        await asyncio.gather(self.claim.close(), self.publish.close(), self.settle.close())


def nodes_of(connector: Connector) -> Nodes:
    """Where the keys are."""
    return OneServer() if connector.cluster is None else ClusterNodes(connector)
