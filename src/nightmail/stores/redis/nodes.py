"""Which server has a key: the only one, or, in a cluster, the node that has its slot."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

from nightmail.stores.redis.connect import Address

T = TypeVar("T")


class Nodes(Protocol):
    """Where the keys are."""

    def slot(self, key: str) -> int:
        """Keys of one slot may go into one script."""
        ...

    async def holder(self, key: str) -> Address | None:
        """The server that has this key: a node of the cluster, or `None` for the only server."""
        ...

    async def all(self) -> Sequence[Address | None]:
        """Every server that holds keys."""
        ...

    def moved(self, key: str, to: Address | None) -> None:
        """The slot of this key has moved: to this node, or `None` if unknown."""
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


def by_slot(nodes: Nodes, keyed: Iterable[tuple[str, T]]) -> list[list[tuple[str, T]]]:
    """Group items by the slot of their keys, in the order in which slots first appear."""
    groups: dict[int, list[tuple[str, T]]] = {}
    for key, value in keyed:
        groups.setdefault(nodes.slot(key), []).append((key, value))
    return list(groups.values())
