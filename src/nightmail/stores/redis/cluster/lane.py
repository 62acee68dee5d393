"""One connection to each node of a cluster that is needed.

A node that does not answer does not hold up calls to another. Redirections are followed, for a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from redis.exceptions import MovedError

from nightmail.errors import StoreUnavailable
from nightmail.stores.redis.connect import Address, Connector
from nightmail.stores.redis.errors import REDIRECTIONS, Moving
from nightmail.stores.redis.lane import ServerLane
from nightmail.stores.redis.link import Link
from nightmail.stores.redis.nodes import Nodes
from nightmail.stores.redis.requests import Request

T = TypeVar("T")

REDIRECTED_SECONDS: Final = 0.5
"""How long to wait for a slot that is migrating."""
PAUSE_SECONDS: Final = 0.02


class ClusterLane:
    """See `Lane`: requests go to the node that has their key."""

    def __init__(self, role: str, connector: Connector, nodes: Nodes) -> None:
        self._role = role
        self._connector = connector
        self._nodes = nodes
        self._lanes: dict[Address | None, ServerLane] = {}
        self._closed = False

    async def run(self, request: Request[T], *, lost: type[StoreUnavailable] = StoreUnavailable) -> T:
        """See `Lane.run`. One that is cancelled between two redirections has done nothing."""
        key = request.key
        deadline = asyncio.get_running_loop().time() + REDIRECTED_SECONDS
        while True:
            address = await self._nodes.holder(key)
            try:
                return await self._to(address).run(request, lost=lost)
            except MovedError as error:
                # A reply without a host means the host that was asked.
                host = error.host or (address[0] if address is not None else "")
                self._nodes.moved(key, (host, error.port))
            except REDIRECTIONS as error:
                # ASK is not followed: while a slot migrates its keys are on two nodes, and a script on the second would
                # take a queue for empty whose messages are still on the first.
                self._nodes.moved(key, None)
                if asyncio.get_running_loop().time() > deadline:
                    raise Moving from error
                await asyncio.sleep(PAUSE_SECONDS)
            except StoreUnavailable:
                # The node that had this slot is gone: look the slot up again before the next call.
                self._nodes.moved(key, None)
                raise

    async def run_here(self, request: Request[T], *, lost: type[StoreUnavailable]) -> T:
        """See `Lane.run_here`."""
        return await self.run(request, lost=lost)

    async def run_at(self, address: Address | None, work: Callable[[Link], Awaitable[T]]) -> T:
        """See `Lane.run_at`."""
        return await self._to(address).run(work)

    async def losses(self, key: str) -> int:
        """See `Lane.losses`."""
        return self._to(await self._nodes.holder(key)).lost

    async def close(self) -> None:
        """See `Lane.close`."""
        self._closed = True
        await asyncio.gather(*(lane.close() for lane in self._lanes.values()))

    def terminate(self) -> None:
        """See `Lane.terminate`."""
        self._closed = True
        for lane in self._lanes.values():
            lane.terminate()

    def _to(self, address: Address | None) -> ServerLane:
        lane = self._lanes.get(address)
        if lane is None:
            if self._closed:
                # It would open a connection that nothing closes.
                raise StoreUnavailable("the store was closed")
            lane = self._lanes[address] = ServerLane(self._role, self._connector, address)
        return lane
