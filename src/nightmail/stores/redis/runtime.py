"""What exists while a store is open: connections, and what is remembered from one call to the next."""

from __future__ import annotations

import asyncio
from functools import partial

from nightmail.stores.redis.acking import Acking
from nightmail.stores.redis.claiming import Claiming, Claims
from nightmail.stores.redis.cluster.claiming import ClusterClaiming, ClusterClaims
from nightmail.stores.redis.cluster.lane import ClusterLane
from nightmail.stores.redis.cluster.nodes import ClusterNodes
from nightmail.stores.redis.cluster.publishing import ClusterPublishing
from nightmail.stores.redis.cluster.settling import ClusterSettling
from nightmail.stores.redis.coalescing import CoalescerBySlot
from nightmail.stores.redis.connect import Connector
from nightmail.stores.redis.controlling import Controlling
from nightmail.stores.redis.inspecting import Inspecting
from nightmail.stores.redis.joining import Joining
from nightmail.stores.redis.keys import Keys
from nightmail.stores.redis.lane import Lane, ServerLane
from nightmail.stores.redis.letters import Letters
from nightmail.stores.redis.listen import Listener
from nightmail.stores.redis.nodes import Nodes, OneServer
from nightmail.stores.redis.publishing import Publishing
from nightmail.stores.redis.redriving import Redriving
from nightmail.stores.redis.registry import Registry
from nightmail.stores.redis.script_calls import ScriptCalls
from nightmail.stores.redis.settling import Settling
from nightmail.stores.redis.sweeping import Sweeping
from nightmail.stores.redis.timers import Timers
from nightmail.stores.shared.keeper_thread import KeeperThread
from nightmail.stores.shared.to_the_end import ToTheEnd


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
        self.to_the_end = ToTheEnd()
        self.nodes = nodes_of(connector)
        self.claim, self.settle, self.publish = (
            lane_of(role, connector, self.nodes) for role in ("claim", "settle", "publish")
        )
        self.registry = Registry(self.publish, calls)
        claims = Claims(self.claim, self.registry, calls, max_body_bytes)
        letters = Letters(self.claim, calls, max_body_bytes)
        self.claims: Claims | ClusterClaims = claims
        self.letters: Claiming | ClusterClaiming = letters
        self.settling = Settling(calls, keep_delivered=keep_delivered)
        self.publishing = Publishing(self.publish, self.registry, calls, self.nodes, connector.waiting)
        if connector.cluster is not None:
            self.claims = ClusterClaims(claims, self.nodes, self.to_the_end)
            self.letters = ClusterClaiming(letters, self.nodes, self.to_the_end)
            self.settling = ClusterSettling(calls, self.nodes, self.to_the_end, keep_delivered=keep_delivered)
            self.publishing = ClusterPublishing(
                self.publish, self.registry, calls, self.nodes, connector.waiting, self.to_the_end
            )
        send = partial(self.publishing.publish_batch, here=True)
        self.coalescer = CoalescerBySlot(send, self.nodes, keys)
        self.joining = Joining(self.publish, self.registry, self.publishing, self.nodes, keys)
        self.acking = Acking(
            self.settle,
            self.registry,
            keys,
            self.nodes,
            self.settling,
            self.joining,
            clustered=connector.cluster is not None,
        )
        self.timers = Timers(self.publish, self.registry, calls)
        self.inspecting = Inspecting(self.publish, self.registry, calls, self.nodes)
        self.controlling = Controlling(self.publish, self.registry, calls, self.nodes)
        self.redriving = Redriving(self.publish, self.registry, calls, self.nodes)
        self.sweeping = Sweeping(self.publish, self.registry, calls)
        self.listener = Listener(connector, self.nodes, keys)
        # The thread has its own event loop, and so its own map of the cluster.
        self.keeper = KeeperThread(
            lambda: lane_of("keeper", connector, nodes_of(connector)), self.settling.extend
        )

    async def close(self) -> None:
        """Close every connection and the thread: in two seconds at most, even if the server does not answer."""
        await asyncio.gather(self.to_the_end.close(), self.listener.close(), self.keeper.close())
        await asyncio.gather(self.claim.close(), self.publish.close(), self.settle.close())

    def terminate(self) -> None:
        """See `shared.server_store.Runtime.terminate`."""
        for lane in (self.claim, self.publish, self.settle):
            lane.terminate()


def lane_of(role: str, connector: Connector, nodes: Nodes) -> Lane:
    """The connections for this role."""
    if connector.cluster is None:
        return ServerLane(role, connector)
    return ClusterLane(role, connector, nodes)


def nodes_of(connector: Connector) -> Nodes:
    """Where the keys are."""
    return OneServer() if connector.cluster is None else ClusterNodes(connector)
