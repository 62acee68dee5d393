"""One connection for one kind of work; in a cluster one to each node that is needed.

It is opened when first needed, and again after it was lost. Scripts go one at a time to each server: one that does not
answer does not hold up calls to another. Once a script is sent, the caller may be cancelled, but not the wait for its
reply: an abandoned claim would hold leases that no worker knows of. A connection on which anything went wrong is
closed, never used again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final, TypeVar

from redis.exceptions import MovedError

from nightmail.errors import StoreUnavailable
from nightmail.stores.redis.connect import Address, Connector
from nightmail.stores.redis.errors import (
    REDIRECTIONS,
    Moving,
    leaves_connection_usable,
    translated,
    unreachable,
)
from nightmail.stores.redis.link import Command, Link, Reply, raised
from nightmail.stores.redis.nodes import CONNECT_SECONDS, Nodes
from nightmail.stores.redis.scripts import Call
from nightmail.stores.redis.whole import seen
from nightmail.stores.shared.driver_errors import below

T = TypeVar("T")

PATIENCE_SECONDS: Final = 10.0
"""Stop waiting for a reply after this: the network or the server must be gone."""
FAREWELL_SECONDS: Final = 0.5
"""How long closing waits for calls in progress."""
HANG_UP_SECONDS: Final = 0.25
REDIRECTED_SECONDS: Final = 0.5
"""How long to wait for a slot that is migrating: other calls queue for this connection."""
PAUSE_SECONDS: Final = 0.02
AT_ONCE: Final = 100
"""How many calls are pipelined at once."""


async def connected(connector: Connector, role: str, address: Address | None) -> Link:
    """A new connection."""
    link = connector.connect(role, address)
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            await link.connect()
    except BaseException as error:
        link.drop()
        if isinstance(error, Exception):
            # The driver's text may quote the address, and the URL it came from.
            better = unreachable(error, connector.place(address))
            raise better from (None if isinstance(error, ValueError) else error)
        raise
    return link


class _Turn:
    """Whether the work has begun."""

    begun = False


class Lane:
    """One connection to each server, used by one call at a time."""

    def __init__(self, role: str, connector: Connector, nodes: Nodes) -> None:
        self._role = role
        self._connector = connector
        self._nodes = nodes
        self._free: dict[Address | None, asyncio.Lock] = {}
        self._links: dict[Address | None, Link] = {}
        self._tasks: set[asyncio.Task[object]] = set()
        self._closed = False
        self.losses: Counter[Address | None] = Counter()
        """How often a connection was lost: what was learned from that server before may no longer hold."""

    @property
    def links(self) -> Sequence[Link]:
        """The open connections."""
        return list(self._links.values())

    async def call(
        self,
        call: Call,
        *,
        also: Sequence[Command] = (),
        lost: type[StoreUnavailable] = StoreUnavailable,
        more_seconds: float = 0,
    ) -> list[Reply]:
        """Run a script, then these commands on the same connection; returns all answers, raises if the script fails.

        Commands that fail are among the answers: the script was executed all the same. `lost` is raised when it is
        unknown whether the script ran; large work is given `more_seconds`.
        """

        async def ask(link: Link) -> list[Reply]:
            script, *rest = await link.call(call, also=also)
            return [*raised([script]), *rest]

        return await self.run(call.keys[0], ask, lost=lost, more_seconds=more_seconds)

    async def call_each(self, calls: Sequence[Call]) -> list[Reply]:
        """Run read-only scripts, many pipelined at once; returns the answer of each."""
        answers: dict[int, Reply] = {}
        by_address: dict[Address | None, list[int]] = {}
        for at, call in enumerate(calls):
            by_address.setdefault(await self._nodes.holder(call.keys[0]), []).append(at)
        for chosen in by_address.values():
            for first in range(0, len(chosen), AT_ONCE):
                part = chosen[first : first + AT_ONCE]

                async def ask(link: Link, part: Sequence[int] = part) -> list[Reply]:
                    return await link.call_each([calls[at] for at in part])

                found = zip(part, await self.run(calls[part[0]].keys[0], ask), strict=True)
                answers |= {at: answer for at, answer in found if not isinstance(answer, Exception)}
        for at, call in enumerate(calls):
            if at not in answers:
                # Refused, perhaps because its slot moved meanwhile: a call of its own follows it.
                (answers[at],) = await self.call(call)
        return [answers[at] for at in range(len(calls))]

    async def ask(self, key: str, *commands: Command) -> list[Reply]:
        """Send commands about this key; returns all answers, raises errors."""

        async def ask(link: Link) -> list[Reply]:
            return raised(await link.ask(*commands))

        return await self.run(key, ask)

    async def run(
        self,
        key: str,
        work: Callable[[Link], Awaitable[T]],
        *,
        lost: type[StoreUnavailable] = StoreUnavailable,
        more_seconds: float = 0,
    ) -> T:
        """Run this on the server that has the key.

        If cancelled before its turn, it does not begin; after that it finishes even if the caller is gone.
        """
        return await self._in_turn(lambda turn: self._where_it_is(key, work, lost, turn, more_seconds))

    async def run_at(self, address: Address | None, work: Callable[[Link], Awaitable[T]]) -> T:
        """Run this on one server."""
        return await self._in_turn(lambda turn: self._at(address, work, StoreUnavailable, turn))

    async def close(self) -> None:
        """Finish what has begun, within a time limit, and close for good."""
        self._closed = True
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=FAREWELL_SECONDS)
        links = [link for address, link in self._links.items() if not self._lock(address).locked()]
        if links:
            with suppress(TimeoutError):
                async with asyncio.timeout(HANG_UP_SECONDS):
                    await asyncio.gather(*(link.close() for link in links))
        self._drop_all()

    async def _in_turn(self, work: Callable[[_Turn], Awaitable[T]]) -> T:
        turn = _Turn()

        async def run() -> T:
            return await work(turn)

        task = asyncio.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(seen)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not turn.begun:
                task.cancel()
            raise

    async def _where_it_is(
        self,
        key: str,
        work: Callable[[Link], Awaitable[T]],
        lost: type[StoreUnavailable],
        turn: _Turn,
        more_seconds: float,
    ) -> T:
        deadline = asyncio.get_running_loop().time() + REDIRECTED_SECONDS
        while True:
            address = await self._nodes.holder(key)
            try:
                return await self._at(address, work, lost, turn, more_seconds)
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

    async def _at(
        self,
        address: Address | None,
        work: Callable[[Link], Awaitable[T]],
        lost: type[StoreUnavailable],
        turn: _Turn,
        more_seconds: float = 0,
    ) -> T:
        async with self._lock(address):
            turn.begun = True
            link = await self._usable(address)
            try:
                async with asyncio.timeout(PATIENCE_SECONDS + more_seconds):
                    return await work(link)
            except REDIRECTIONS:
                raise
            except BaseException as error:
                if not leaves_connection_usable(error):
                    self._drop(address)
                if isinstance(error, Exception):
                    better = translated(error, lost)
                    if better is not error:
                        raise better from below(error)
                raise

    def _lock(self, address: Address | None) -> asyncio.Lock:
        return self._free.setdefault(address, asyncio.Lock())

    async def _usable(self, address: Address | None) -> Link:
        link = self._links.get(address)
        if link is None or not link.open:
            self._drop(address)
            self._refuse_if_closed()
            link = self._links[address] = await connected(self._connector, self._role, address)
        self._refuse_if_closed()
        return link

    def _refuse_if_closed(self) -> None:
        # A call that was still queued would open a connection that nothing closes.
        if self._closed:
            self._drop_all()
            raise StoreUnavailable("the store was closed")

    def _drop(self, address: Address | None) -> None:
        link = self._links.pop(address, None)
        if link is not None:
            self.losses[address] += 1
            link.drop()

    def _drop_all(self) -> None:
        for address in list(self._links):
            self._drop(address)
