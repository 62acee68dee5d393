"""Where scenarios run: servers started when first needed, systems in processes, results that are kept as they come."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from benchmarks.child import Child, ChildFailed, NotSupported, child
from benchmarks.environments import NoEnvironment, version_of
from benchmarks.results import Results, Table, flush_ms
from benchmarks.servers import SERVERS, Server
from benchmarks.systems import System

T = TypeVar("T")


def in_turn(taking_part: Iterable[T], number: int) -> list[T]:
    """Those that take part, for the round with this number: every other round begins at the other end.

    What one leaves behind, such as a checkpoint, then falls not always on the same next one, and a machine that gets
    slower or faster does so for all.
    """
    found = list(taking_part)
    return found if number % 2 == 0 else found[::-1]


@dataclass
class Bench:
    """One system on a database of its own, in one process or more."""

    system: System
    server: Server
    url: str
    children: list[Child]
    sizes: dict[str, int] = field(default_factory=dict)
    """How many messages it handles in the time that a round should take, by kind of handler."""

    @property
    def child(self) -> Child:
        """Its first process."""
        return self.children[0]

    @property
    def label(self) -> str:
        """The system's name."""
        return self.system.label


Say = Callable[[str], None]
Measure = Callable[[Bench], Awaitable[float]]


class Lab:
    """What every scenario is handed."""

    def __init__(
        self,
        results: Results,
        stores: Sequence[str],
        *,
        tiny: bool = False,
        say: Say = lambda _: None,
    ) -> None:
        self.results, self.stores, self.say = results, stores, say
        self.quick, self.tiny = results.quick, tiny
        self._servers: dict[str, Server] = {}
        self._logs = tempfile.TemporaryDirectory(prefix="nightmail-bench-")

    def choose(self, full: T, quick: T, tiny: T | None = None) -> T:
        """What fits the length of this run; `tiny` is for the tests of the benchmarks."""
        if self.tiny:
            return quick if tiny is None else tiny
        return quick if self.quick else full

    def measure_disk(self) -> None:
        """Note how long a flush takes where the servers have their files: publishing depends on it."""
        self.results.machine["a flush of the disk"] = f"{flush_ms(Path(self._logs.name)):.2f} ms"

    @property
    def rounds(self) -> int:
        """How often each system has its turn."""
        return self.choose(3, 1)

    async def server(self, store: str) -> Server:
        """The one server of this kind."""
        if store not in self._servers:
            server = SERVERS[store]()
            await asyncio.to_thread(server.start)
            self._servers[store] = server
            self.results.servers[store] = await server.describe()
        return self._servers[store]

    def close(self) -> None:
        """End the servers."""
        for server in self._servers.values():
            server.close()
        self._servers.clear()
        self._logs.cleanup()

    @asynccontextmanager
    async def bench(self, system: System, store: str, processes: int = 1) -> AsyncIterator[Bench]:
        """A system on a fresh database."""
        server = await self.server(store)
        async with AsyncExitStack() as stack:
            url = stack.enter_context(server.database())
            children = [
                # One after the other: the first makes the tables.
                await stack.enter_async_context(child(system, url, Path(self._logs.name)))
                for _ in range(processes)
            ]
            if system.environment is not None:
                self.results.peers[system.environment] = version_of(system.environment)
            yield Bench(system, server, url, children)

    @asynccontextmanager
    async def another(self, bench: Bench) -> AsyncIterator[Child]:
        """One more process of the same system, on the same database."""
        async with child(bench.system, bench.url, Path(self._logs.name)) as started:
            yield started

    @asynccontextmanager
    async def benches(
        self, systems: Iterable[System], store: str, processes: int = 1
    ) -> AsyncIterator[list[Bench]]:
        """Several, each on a fresh database. One that does not start is noted and left out."""
        found = []
        async with AsyncExitStack() as stack:
            for system in systems:
                self.say(f"starting {system.label}")
                try:
                    found.append(await stack.enter_async_context(self.bench(system, store, processes)))
                except (ChildFailed, NoEnvironment, OSError) as error:
                    self.failed(f"{system.label} on {store}", error)
            yield found

    async def interleave(
        self,
        table: Table,
        benches: Iterable[Bench],
        measure: Measure,
        rounds: int | None = None,
    ) -> None:
        """Measure each system in turn, round by round, into a table. One that fails is noted and left out."""
        self.results.tables.append(table)
        taking_part = list(benches)
        table.order(bench.label for bench in taking_part)
        for number in range(rounds or self.rounds):
            for bench in in_turn(taking_part, number):
                self.say(f"{table.case}: {bench.label}, round {number + 1}")
                if not await self._measured(table, bench, measure):
                    taking_part.remove(bench)

    async def at_once(self, table: Table, benches: Iterable[Bench], measure: Measure) -> None:
        """Measure all systems at the same time: for what hardly loads the machine."""
        self.results.tables.append(table)
        benches = list(benches)
        table.order(bench.label for bench in benches)
        self.say(f"{table.scenario}: all systems at once")
        await asyncio.gather(*(self._measured(table, bench, measure) for bench in benches))

    async def _measured(self, table: Table, bench: Bench, measure: Measure) -> bool:
        """Whether it could be measured."""
        try:
            table.row(bench.label).values.append(await measure(bench))
        except NotSupported as error:
            table.row(bench.label).note = f"has no {error}"
            return False
        except Exception as error:  # noqa: BLE001 - noted in the results; the other systems go on
            table.row(bench.label).note = "failed"
            self.failed(f"{table.scenario}, {table.case}, {bench.label}", error)
            return False
        return True

    def failed(self, what: str, error: BaseException) -> None:
        """Note a failure in the results."""
        self.results.failures.append({"what": what, "error": f"{type(error).__name__}: {error}"[:1000]})
