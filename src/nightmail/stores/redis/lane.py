"""One connection for one kind of work; in a cluster one to each node that is needed.

It is opened when first needed, and anew after it was lost. Scripts go one at a time. Once one is sent, the caller may
be cancelled, but not the wait for its reply: a claim torn in half would be leased to nobody. A connection on which
anything went wrong is thrown away, never used again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final, TypeVar

from redis.exceptions import MovedError

from nightmail.errors import StoreUnavailable
from nightmail.stores.redis.errors import (
    REDIRECTIONS,
    Moving,
    leaves_connection_usable,
    translated,
    unreachable,
)
from nightmail.stores.redis.nodes import CONNECT_SECONDS, Nodes
from nightmail.stores.redis.scripts import Call
from nightmail.stores.redis.source import Address, Source
from nightmail.stores.redis.wire import Command, Reply, Wire, raised

T = TypeVar("T")

PATIENCE_SECONDS: Final = 10.0
"""After this we stop waiting for the server's word: the network must be gone, or the server."""
FAREWELL_SECONDS: Final = 5.0
REDIRECTED_SECONDS: Final = 0.5
"""How long a slot that is being moved is waited for: others stand in line for this connection."""
PAUSE_SECONDS: Final = 0.02


async def connected(source: Source, role: str, address: Address | None) -> Wire:
    """A new connection."""
    wire = source.connect(role, address)
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            await wire.connect()
    except BaseException as error:
        wire.drop()
        if isinstance(error, Exception):
            # The driver's text may quote the address, and what it was made of.
            raise unreachable(error) from (None if isinstance(error, ValueError) else error)
        raise
    return wire


class Lane:
    """One connection, and who may use it next."""

    def __init__(self, role: str, source: Source, nodes: Nodes) -> None:
        self._role = role
        self._source = source
        self._nodes = nodes
        self._free = asyncio.Lock()
        self._wires: dict[Address | None, Wire] = {}
        self._closed = False
        self._task: asyncio.Task[object] | None = None
        self.losses = 0
        """How often a connection was lost: what was learned from the server before may not hold any more."""

    @property
    def wires(self) -> Sequence[Wire]:
        """The open connections."""
        return list(self._wires.values())

    async def call(
        self,
        call: Call,
        *,
        also: Sequence[Command] = (),
        lost: type[StoreUnavailable] = StoreUnavailable,
    ) -> list[Reply]:
        """Run a script, and these commands behind it on the same connection; all answers, refusals raised.

        `lost` is raised when nobody knows whether it was run.
        """

        async def ask(wire: Wire) -> list[Reply]:
            return raised(await wire.call(call, also=also))

        return await self.run(call.keys[0], ask, lost=lost)

    async def ask(self, key: str, *commands: Command) -> list[Reply]:
        """Send commands about this key; all answers, refusals raised."""

        async def ask(wire: Wire) -> list[Reply]:
            return raised(await wire.ask(*commands))

        return await self.run(key, ask)

    async def run(
        self,
        key: str,
        work: Callable[[Wire], Awaitable[T]],
        *,
        lost: type[StoreUnavailable] = StoreUnavailable,
    ) -> T:
        """Do this where the key is.

        Cancelled before its turn, it is not begun; after that it is finished whether or not anybody waits for it.
        """
        return await self._in_turn(lambda: self._where_it_is(key, work, lost))

    async def run_at(self, address: Address | None, work: Callable[[Wire], Awaitable[T]]) -> T:
        """Do this at one server."""
        return await self._in_turn(lambda: self._at(address, work, StoreUnavailable))

    async def close(self) -> None:
        """Finish what was begun, within reason, and hang up for good."""
        self._closed = True
        with suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL_SECONDS), self._free:
                for wire in self._wires.values():
                    await wire.close()
        self._drop_all()

    async def _in_turn(self, work: Callable[[], Awaitable[T]]) -> T:
        await self._free.acquire()

        async def run() -> T:
            try:
                return await work()
            finally:
                self._free.release()

        task = asyncio.create_task(run())
        self._task = task
        return await asyncio.shield(task)

    async def _where_it_is(
        self, key: str, work: Callable[[Wire], Awaitable[T]], lost: type[StoreUnavailable]
    ) -> T:
        deadline = asyncio.get_running_loop().time() + REDIRECTED_SECONDS
        while True:
            try:
                return await self._at(await self._nodes.holder(key), work, lost)
            except MovedError as error:
                self._nodes.moved(key, (error.host, error.port))
            except REDIRECTIONS as error:
                # ASK is not followed: while a slot is moved its keys are in two places, and a script at the second
                # would take a queue for empty whose messages are still at the first.
                self._nodes.moved(key, None)
                if asyncio.get_running_loop().time() > deadline:
                    raise Moving from error
                await asyncio.sleep(PAUSE_SECONDS)
            except StoreUnavailable:
                # Whoever had this slot is gone: the map is read anew before the next time.
                self._nodes.moved(key, None)
                raise

    async def _at(
        self, address: Address | None, work: Callable[[Wire], Awaitable[T]], lost: type[StoreUnavailable]
    ) -> T:
        wire = await self._usable(address)
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                return await work(wire)
        except REDIRECTIONS:
            raise
        except BaseException as error:
            if not leaves_connection_usable(error):
                self._drop(address)
            if isinstance(error, Exception):
                better = translated(error, lost)
                if better is not error:
                    raise better from error
            raise

    async def _usable(self, address: Address | None) -> Wire:
        wire = self._wires.get(address)
        if wire is None or not wire.open:
            self._drop(address)
            self._refuse_if_closed()
            wire = self._wires[address] = await connected(self._source, self._role, address)
        self._refuse_if_closed()
        return wire

    def _refuse_if_closed(self) -> None:
        # Whoever still stood in line would leave a connection behind that nobody closes.
        if self._closed:
            self._drop_all()
            raise StoreUnavailable("the store was closed")

    def _drop(self, address: Address | None) -> None:
        wire = self._wires.pop(address, None)
        if wire is not None:
            self.losses += 1
            wire.drop()

    def _drop_all(self) -> None:
        for address in list(self._wires):
            self._drop(address)
