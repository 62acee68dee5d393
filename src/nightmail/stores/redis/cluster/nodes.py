"""Which node has a slot."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

from redis.crc import key_slot

from nightmail.errors import StoreUnavailable, UnsuitableServer
from nightmail.stores.redis.connect import CONNECT_SECONDS, Address, Connector
from nightmail.stores.redis.errors import unreachable
from nightmail.stores.shared.to_the_end import forget_error

_Map: TypeAlias = dict[int, Address]

NEXT_AFTER: Final = 0.25
"""When a node has not sent the map after this, the next one is asked, too."""
REMEMBERED: Final = 64
"""How many nodes are remembered to ask for the map."""


class ClusterNodes:
    """The map of a cluster, learned from whichever node answers first and belongs to it.

    Every known node is kept: one that was removed returns an empty map, and then the others are asked.
    """

    def __init__(self, connector: Connector) -> None:
        self._connector = connector
        self._known: list[Address] = list(connector.cluster or ())
        self._slots: _Map = {}
        self._learning: asyncio.Lock = asyncio.Lock()

    def slot(self, key: str) -> int:
        """See `Nodes.slot`."""
        return int(key_slot(key.encode()))

    async def holder(self, key: str) -> Address:
        """See `Nodes.holder`."""
        slot = self.slot(key)
        if slot not in self._slots:
            async with self._learning:
                if slot not in self._slots:
                    await self._learn(slot)
        if slot not in self._slots:
            raise StoreUnavailable("no node of the cluster has this slot: nothing was written")
        return self._slots[slot]

    async def all(self) -> Sequence[Address]:
        """See `Nodes.all`."""
        async with self._learning:
            await self._learn(None)
        return sorted(set(self._slots.values()))

    def moved(self, key: str, to: Address | None) -> None:
        """See `Nodes.moved`."""
        slot = self.slot(key)
        before = self._slots.get(slot)
        # When one slot of a node moves, others usually do too. Those of other nodes stay.
        self._slots = {other: address for other, address in self._slots.items() if address != before}
        if to is not None:
            self._slots[slot] = to

    async def _learn(self, slot: int | None) -> None:
        """Ask node after node, without waiting long for any, until one has a map with this slot."""
        waiting = list(dict.fromkeys([*self._known, *(self._connector.cluster or ())]))
        asked: dict[asyncio.Task[_Map], Address] = {}
        failure: Exception | None = None
        failed_at: Address | None = None
        incomplete: tuple[_Map, Address] | None = None
        try:
            while waiting or asked:
                if waiting:
                    address = waiting.pop(0)
                    asked[asyncio.create_task(self._ask(address))] = address
                done, _ = await asyncio.wait(
                    asked, timeout=NEXT_AFTER if waiting else None, return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    address = asked.pop(task)
                    if (error := task.exception()) is not None:
                        failure, failed_at = _as_exception(error), address
                        continue
                    found = task.result()
                    if found and (slot is None or slot in found):
                        self._take(found, address)
                        return
                    if found:
                        incomplete = found, address
        finally:
            for task in asked:
                task.cancel()
                task.add_done_callback(forget_error)
        if incomplete is not None:
            self._take(*incomplete)
            return
        if failure is not None and "cluster support disabled" in str(failure):
            raise UnsuitableServer("this Redis is not a cluster: use redis:// instead of redis+cluster://")
        if failure is None:
            raise StoreUnavailable("none of the known nodes belongs to a cluster with slots any more")
        raise unreachable(failure, self._connector.place(failed_at)) from failure

    async def _ask(self, address: Address) -> _Map:
        """The map as this node knows it."""
        link = self._connector.connect("map", address)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await link.connect()
                (found,) = await link.ask_or_raise(("CLUSTER", "SLOTS"))
        finally:
            link.terminate()
        slots: _Map = {}
        for first, last, *holders in found:
            addresses = [_address(holder, address) for holder in holders]
            self._known += [each for each in addresses if each not in self._known]
            slots.update(dict.fromkeys(range(first, last + 1), addresses[0]))
        return slots

    def _take(self, found: _Map, asked: Address) -> None:
        self._slots = found
        # Next time, ask the node that answered first, then those that have slots.
        self._known = list(dict.fromkeys([asked, *found.values(), *self._known]))[:REMEMBERED]


def _address(holder: Sequence[Any], asked: Address) -> Address:
    """The address of a node. One that does not state its host is on the host that was asked."""
    host, port = holder[0], int(holder[1])
    if host in (None, b"", b"?"):
        facts = list(holder[3]) if len(holder) > 3 else []
        known = dict(zip(facts[::2], facts[1::2], strict=False)) if host == b"?" else {}
        host = known.get(b"ip") or asked[0].encode()
    return host.decode(), port


def _as_exception(error: BaseException) -> Exception:
    return error if isinstance(error, Exception) else ConnectionError()
