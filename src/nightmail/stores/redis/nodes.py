"""Which server has a key: the one there is, or, in a cluster, whoever has its slot."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol, TypeVar

from redis.crc import key_slot

from nightmail.errors import StoreUnavailable
from nightmail.stores.redis.errors import UnsuitableServer, unreachable
from nightmail.stores.redis.source import Address, Source
from nightmail.stores.redis.wire import raised

T = TypeVar("T")

CONNECT_SECONDS: Final = 5.0


class Nodes(Protocol):
    """Where the keys are."""

    def slot(self, key: str) -> int:
        """Keys of one slot may go into one script."""
        ...

    async def holder(self, key: str) -> Address | None:
        """Whom to ask about this key: a node of the cluster, or `None` for the only server."""
        ...

    async def all(self) -> Sequence[Address | None]:
        """Every server that holds keys."""
        ...

    def moved(self, key: str, to: Address | None) -> None:
        """Somebody else has the slot of this key: this one, or nobody knows who."""
        ...


class OneServer:
    """A single server: there is nothing to find out."""

    def slot(self, key: str) -> int:
        """See `Nodes.slot`."""
        return 0

    async def holder(self, key: str) -> None:
        """See `Nodes.holder`."""
        return

    async def all(self) -> Sequence[None]:
        """See `Nodes.all`."""
        return [None]

    def moved(self, key: str, to: Address | None) -> None:
        """See `Nodes.moved`."""


class ClusterNodes:
    """The map of a cluster, learned from whichever node answers first."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._known: list[Address] = list(source.cluster or ())
        self._slots: dict[int, Address] = {}
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
                    await self._learn()
        if slot not in self._slots:
            raise StoreUnavailable("no node of the cluster has this slot: nothing was written")
        return self._slots[slot]

    async def all(self) -> Sequence[Address]:
        """See `Nodes.all`."""
        async with self._learning:
            await self._learn()
        return sorted(set(self._slots.values()))

    def moved(self, key: str, to: Address | None) -> None:
        """See `Nodes.moved`."""
        if to is None:
            self._slots.clear()
        else:
            # Where one slot went others went too, as a rule: the next miss reads the whole map.
            self._slots = {self.slot(key): to}

    async def _learn(self) -> None:
        failure: Exception | None = None
        for address in dict.fromkeys([*self._known, *(self._source.cluster or ())]):
            wire = self._source.connect("map", address)
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    await wire.connect()
                    (found,) = raised(await wire.ask(("CLUSTER", "SLOTS")))
                self._read(found, address)
                return
            except Exception as error:  # noqa: BLE001 - the next node may answer
                failure = error
            finally:
                wire.drop()
        if failure is not None and "cluster support disabled" in str(failure):
            raise UnsuitableServer("this Redis is not a cluster: use redis:// instead of redis+cluster://")
        raise unreachable(failure or ConnectionError()) from failure

    def _read(self, found: Iterable[Any], asked: Address) -> None:
        slots: dict[int, Address] = {}
        known: list[Address] = []
        for first, last, *holders in found:
            # A node may not know its own address: then it is the one under which we found it.
            addresses = [(holder[0].decode() or asked[0], int(holder[1])) for holder in holders]
            known += addresses
            slots.update(dict.fromkeys(range(first, last + 1), addresses[0]))
        self._slots = slots
        self._known = list(dict.fromkeys([asked, *known]))


def by_slot(nodes: Nodes, keyed: Iterable[tuple[str, T]]) -> list[list[tuple[str, T]]]:
    """What belongs to keys of one slot together, in the order in which slots first appear."""
    groups: dict[int, list[tuple[str, T]]] = {}
    for key, value in keyed:
        groups.setdefault(nodes.slot(key), []).append((key, value))
    return list(groups.values())
