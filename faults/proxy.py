"""A TCP proxy that cuts, delays, swallows and halves what it carries: by chance, from a seed.

Each process of the workload has a door of its own, so that the journal can say which process a fault hit.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Final, Literal, TypeAlias

from faults.journal import Journal

Kind: TypeAlias = Literal["cut", "delay", "black hole", "half a packet", "lost reply"]
Rates: TypeAlias = Mapping[Kind, float]
"""How likely each fault is for each chunk that passes."""

CALM: Final[Rates] = {}
CHUNK: Final = 64 * 1024
DELAY_SECONDS: Final = (0.02, 0.5)
BLACK_HOLE_SECONDS: Final = (1.0, 5.0)
COMMITS: Final = (b"COMMIT", b"commit", b"EXEC\r\n")
"""What a request that commits a transaction of the application's contains."""
COMMITS_TIMES: Final = 10.0
"""How much likelier the reply of such a request gets lost: there are few of them, and they matter most."""


class Connection:
    """One client's connection, with the one to the server that belongs to it."""

    def __init__(self, owner: str, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.owner: Final = owner
        self._ends: Final = (client, server)
        self.loses_reply = False
        self.swallows_until: float | None = None

    def cut(self) -> None:
        """End both sides at once: nothing that is still on its way arrives."""
        for end in self._ends:
            end.transport.abort()

    async def end(self) -> None:
        """The same, and wait until both are gone."""
        self.cut()
        for end in self._ends:
            with suppress(OSError):
                await end.wait_closed()


class Proxy:
    """Stands between processes and one server."""

    def __init__(self, address: tuple[str, int], seed: int, journal: Journal) -> None:
        self._address = address
        self._random = random.Random(f"{seed} proxy")
        self._journal = journal
        self._doors: list[asyncio.Server] = []
        self._connections: set[Connection] = set()
        self._carrying: set[asyncio.Task[None]] = set()
        self.rates: Rates = CALM

    async def door(self, owner: str) -> int:
        """A port for this process."""
        door = await asyncio.start_server(partial(self._accept, owner), "127.0.0.1", 0)
        self._doors.append(door)
        return int(door.sockets[0].getsockname()[1])

    def cut(self, owner: str) -> None:
        """Cut every connection of this process."""
        self._note("cut", owner, time.monotonic())
        for connection in [each for each in self._connections if each.owner == owner]:
            connection.cut()

    async def close(self) -> None:
        """Let nothing through any more; return when every connection is gone."""
        for door in self._doors:
            door.close()
        for connection in list(self._connections):
            connection.cut()
        if self._carrying:
            await asyncio.wait(self._carrying)

    def _accept(self, owner: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._carry(owner, reader, writer))
        self._carrying.add(task)
        task.add_done_callback(self._carrying.discard)

    async def _carry(self, owner: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server_reader, server_writer = await asyncio.open_connection(*self._address)
        except OSError:
            writer.transport.abort()
            return
        connection = Connection(owner, writer, server_writer)
        self._connections.add(connection)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pass_on(connection, reader, server_writer, to_server=True))
                both.create_task(self._pass_on(connection, server_reader, writer, to_server=False))
        except* OSError:
            pass
        finally:
            self._connections.discard(connection)
            await connection.end()

    async def _pass_on(
        self,
        connection: Connection,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        to_server: bool,
    ) -> None:
        while chunk := await reader.read(CHUNK):
            if connection.loses_reply and not to_server:
                connection.cut()
                return
            if connection.swallows_until is not None:
                if time.monotonic() < connection.swallows_until:
                    continue
                connection.cut()
                return
            if not await self._upset(connection, chunk, writer, to_server=to_server):
                writer.write(chunk)
                await writer.drain()
        with suppress(OSError):
            writer.close()

    async def _upset(
        self, connection: Connection, chunk: bytes, writer: asyncio.StreamWriter, *, to_server: bool
    ) -> bool:
        """Perhaps let something happen to this chunk; whether it must not be passed on."""
        kind = self._draw(chunk, to_server=to_server)
        begun = time.monotonic()
        match kind:
            case None:
                return False
            case "cut":
                self._note(kind, connection.owner, begun)
                connection.cut()
            case "delay":
                await asyncio.sleep(self._random.uniform(*DELAY_SECONDS))
                self._note(kind, connection.owner, begun)
                return False
            case "black hole":
                connection.swallows_until = begun + self._random.uniform(*BLACK_HOLE_SECONDS)
                self._note(kind, connection.owner, begun, until=connection.swallows_until)
                asyncio.get_running_loop().call_at(connection.swallows_until, connection.cut)
            case "half a packet":
                self._note(kind, connection.owner, begun)
                writer.write(chunk[: len(chunk) // 2])
                await writer.drain()
                connection.cut()
            case "lost reply":
                commits = any(word in chunk for word in COMMITS)
                self._note("lost reply of a commit" if commits else kind, connection.owner, begun)
                connection.loses_reply = True
                return False
        return True

    def _draw(self, chunk: bytes, *, to_server: bool) -> Kind | None:
        for kind, rate in self.rates.items():
            if kind == "lost reply":
                if not to_server:
                    continue
                if any(word in chunk for word in COMMITS):
                    rate *= COMMITS_TIMES
            if self._random.random() < rate:
                return kind
        return None

    def _note(self, kind: str, owner: str, begun: float, *, until: float | None = None) -> None:
        now = time.monotonic()
        self._journal.write("fault", kind=kind, target=owner, sent=begun, until=max(now, until or now))
