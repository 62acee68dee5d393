"""The connections for one kind of work: one to the only server, or to each node of a cluster (see `cluster.lane`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ClassVar, Final, Protocol, TypeVar

from nightmail.errors import StoreUnavailable
from nightmail.stores.redis.connect import Address, Connector
from nightmail.stores.redis.errors import REDIRECTIONS, leaves_connection_usable, translated
from nightmail.stores.redis.link import Link
from nightmail.stores.redis.nodes import Nodes
from nightmail.stores.redis.requests import Call, Pipelined, Reply, Request
from nightmail.stores.shared import lane
from nightmail.stores.shared.driver_errors import below

T = TypeVar("T")

PATIENCE_SECONDS: Final = 10.0
"""Stop waiting for a reply after this: the network or the server must be gone."""
AT_ONCE: Final = 100
"""How many calls are pipelined at once."""


class Lane(Protocol):
    """What verbs need of it."""

    async def run(self, request: Request[T], *, lost: type[StoreUnavailable] = StoreUnavailable) -> T:
        """The answer to this request; raise `lost` if it is unknown whether it was carried out.

        If cancelled before its turn, it is not sent; after that its answer is read even if the caller is cancelled.
        """
        ...

    async def run_here(self, request: Request[T], *, lost: type[StoreUnavailable]) -> T:
        """Like `run`, for a caller whose task is never cancelled."""
        ...

    async def run_at(self, address: Address | None, work: Callable[[Link], Awaitable[T]]) -> T:
        """Run this on one server."""
        ...

    async def losses(self, key: str) -> int:
        """How often a connection to the server with this key was lost: what was learned there may no longer hold."""
        ...

    async def close(self) -> None:
        """Finish what has begun, within a time limit, and close for good."""
        ...

    def terminate(self) -> None:
        """Drop every connection at once, for good."""
        ...


class ServerLane(lane.Lane[Link]):
    """One connection to one server."""

    closing_seconds: ClassVar = 0.75

    def __init__(self, role: str, connector: Connector, node: Address | None = None) -> None:
        super().__init__()
        self._role = role
        self._connector = connector
        self._node = node
        self.lost = 0
        """How often the connection was lost."""

    async def run_at(self, address: Address | None, work: Callable[[Link], Awaitable[T]]) -> T:
        """See `Lane.run_at`."""
        return await self.run(work)

    async def losses(self, key: str) -> int:
        """See `Lane.losses`."""
        return self.lost

    async def _connect(self) -> Link:
        return await self._connector.open(self._role, self._node)

    def _patience(self, work: Callable[[Link], Awaitable[Any]]) -> float:
        return PATIENCE_SECONDS + (work.more_seconds if isinstance(work, Call) else 0)

    def _translated(self, error: Exception, lost: type[StoreUnavailable]) -> Exception:
        if self._node is not None and isinstance(error, REDIRECTIONS):
            return error  # They are followed.
        return translated(error, lost)

    def _shown(self, error: Exception) -> Exception | None:
        return below(error)

    async def _clean_up(self, link: Link, error: BaseException) -> bool:
        return leaves_connection_usable(error)

    def _drop(self) -> None:
        if self._link is not None:
            self.lost += 1
        super()._drop()


async def call_each(lane: Lane, nodes: Nodes, calls: Sequence[Call]) -> list[Reply]:
    """The answer of each of these calls of one script that may run twice, many pipelined at once."""
    by_address: dict[Address | None, list[int]] = {}
    for at, call in enumerate(calls):
        by_address.setdefault(await nodes.holder(call.key), []).append(at)
    answers: dict[int, Reply] = {}
    for chosen in by_address.values():
        for first in range(0, len(chosen), AT_ONCE):
            part = chosen[first : first + AT_ONCE]
            found = await lane.run(Pipelined([calls[at] for at in part]))
            answers.update(zip(part, found, strict=True))
    for at, call in enumerate(calls):
        if isinstance(answers[at], Exception):
            # Refused, perhaps because its slot moved meanwhile: a call of its own follows it.
            (answers[at],) = await lane.run(call)
    return [answers[at] for at in range(len(calls))]
