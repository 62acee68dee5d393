"""Runs a scenario: starts its processes, hits them, waits until all is calm, and writes down what is left."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from faults.clock import Clock, Skewed
from faults.journal import BULK, Journal, Line, What, count_from, read, read_from
from faults.place import Place
from faults.proxy import Proxy
from faults.workload import publisher, worker
from faults.workload.config import Config, PublisherConfig, WorkerConfig
from faults.workload.database import Database
from faults.workload.recorded import key_of
from nightmail import open_store
from nightmail.errors import StoreUnavailable
from nightmail.records import DeadFilter
from nightmail.store import FullStore

LOOK_SECONDS: Final = 0.02
WORKER_KILLED: Final = "worker killed"
PATIENCE: Final = 120.0
"""How long anything may take before the run is given up as hung."""
AT_ONCE: Final = 1.0
"""How soon a claim is answered by which the store's clock is read, in seconds."""
RECOVERY_SECONDS: Final = 60.0
"""How soon after the last fault everything must have been delivered. On a quiet machine a lease and a look are enough;
what is measured is printed."""

# Processes are forked from one that has imported everything: each starts in milliseconds.
_forks: Final = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(["faults.workload.worker", "faults.workload.publisher"])


class EndedByItself(Exception):
    """A process that a scenario counts on is gone: the rest of it makes no sense."""


@dataclass(slots=True, eq=False)
class Actor:
    """A process of the workload."""

    config: Config
    process: Any

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def alive(self) -> bool:
        return bool(self.process.is_alive())

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, unless it is gone."""
        if self.alive and self.process.pid is not None:
            os.kill(self.process.pid, number)


class Seen:
    """What the journal says so far, counted."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._cancelled = 0
        self._counts: Counter[tuple[str, What]] = Counter()

    def count(self, what: What, process: str | None = None) -> int:
        """How often this happened, in one process or in all."""
        self._read()
        if process is not None:
            return self._counts[process, what]
        return sum(count for (_, each), count in self._counts.items() if each == what)

    @property
    def offset(self) -> int:
        """How much of the journal that is, in bytes: whole lines."""
        self._read()
        return self._offset

    @property
    def cancelled(self) -> int:
        """How many publishes and handlers were cancelled."""
        self._read()
        return self._cancelled

    def _read(self) -> None:
        counts, cancelled, self._offset = count_from(self._path, self._offset)
        self._counts.update(counts)
        self._cancelled += cancelled


class Stage:
    """One run of one scenario."""

    def __init__(
        self,
        place: Place,
        directory: Path,
        *,
        seed: int,
        faults: int,
        bulk: float = 0.0,
        say: Callable[[str], None],
        breakage: str | None = None,
        worker_options: Mapping[str, Any],
        publisher_options: Mapping[str, Any],
    ) -> None:
        self.place: Final = place
        self.directory: Final = directory
        self.seed: Final = seed
        self.faults: Final = faults
        """How many faults of its kind a scenario injects."""
        self.bulk: Final = bulk
        """How many messages a second are published in batches, besides the others."""
        self.say: Final = say
        self.random: Final = random.Random(f"{seed} nemesis")
        self.journal: Final = Journal(directory / "journal.jsonl", "nemesis")
        self.seen: Final = Seen(directory / "journal.jsonl")
        self.workers: list[Actor] = []
        self.publishers: list[Actor] = []
        self.proxy: Proxy | None = None
        self._breakage = breakage
        self._worker_options = worker_options
        self._publisher_options = publisher_options
        self._numbers: Counter[str] = Counter()
        self._all: list[Actor] = []

    # ── the cast ───────────────────────────────────────────────────────────────────────────────────────────

    async def open(self) -> None:
        """Make the tables."""
        store = open_store(self.place.url)
        await store.open()
        try:
            await store.migrate()
        finally:
            await store.close()
        async with Database.at(self.place.url) as database:
            await database.prepare()

    def use_proxy(self) -> Proxy:
        """From now on every process goes through a proxy."""
        self.proxy = Proxy(self.place.address, self.seed, self.journal)
        return self.proxy

    async def add_worker(self, *, clock: Clock | None = None, **options: Any) -> Actor:
        """One more worker, which may have a wall clock of its own."""
        config = WorkerConfig(**await self._config("worker"))
        config = replace(config, **{**self._worker_options, **options})
        actor = self._start(worker.main, config, clock)
        self.workers.append(actor)
        await self._see_its_clock(actor, clock)
        return actor

    async def add_publisher(self, *, clock: Clock | None = None, **options: Any) -> Actor:
        """One more publisher, which may have a wall clock of its own."""
        role = BULK if options.get("bulk") else "publisher"
        config = PublisherConfig(**await self._config(role), kinds=self.place.kinds)
        config = replace(config, **{**self._publisher_options, **options})
        actor = self._start(publisher.main, config, clock)
        self.publishers.append(actor)
        await self._see_its_clock(actor, clock)
        return actor

    async def add_bulk(self, *, clock: Clock | None = None) -> None:
        """One that publishes in batches, if there is to be one."""
        if self.bulk:
            await self.add_publisher(clock=clock, bulk=self.bulk, at_once=1)

    async def replace(self, actor: Actor) -> Actor:
        """Another one of its kind, in the place of one that is gone."""
        config = actor.config
        if isinstance(config, WorkerConfig):
            return await self.add_worker()
        assert isinstance(config, PublisherConfig)
        return await self.add_publisher(bulk=config.bulk, at_once=config.at_once)

    async def _config(self, role: str) -> dict[str, Any]:
        self._numbers[role] += 1
        name = f"{role}-{self._numbers[role]}"
        number = self._numbers.total()
        url = (
            self.place.url_for(number)
            if self.proxy is None
            else self.place.through(await self.proxy.door(name))
        )
        return {
            "name": name,
            "url": url,
            "directory": self.directory,
            "seed": self.seed,
            "breakage": self._breakage,
        }

    def _start(self, main: Callable[[Any], None], config: Config, clock: Clock | None) -> Actor:
        if clock is None and self.place.server is None:
            clock = self.place.clock  # Where there is no server, the clock of the processes is the store's.
        if clock is not None:
            actor = Actor(config, Skewed(config, clock))
        else:
            process = _forks.Process(target=main, args=(config,), name=config.name, daemon=True)
            process.start()
            actor = Actor(config, process)
        self._all.append(actor)
        return actor

    async def _see_its_clock(self, actor: Actor, clock: Clock | None) -> None:
        """Note that its clock is off, once it has said so itself."""
        if clock is None or not clock.seconds or clock is self.place.clock:
            return
        begun = time.monotonic()
        await self.until(
            lambda: self.seen.count("booted", actor.name) > 0 or bool(self._gone), f"{actor.name} to start"
        )
        self._refuse_to_go_on()
        lines = read(self.directory / "journal.jsonl")
        [booted] = [line for line in lines if line.what == "booted" and line.process == actor.name]
        assert booted.ahead is not None
        clock.check(booted.ahead, actor.name)
        # As of its start: it is no excuse for what came after.
        self.journal.write("fault", kind="clock off", target=actor.name, sent=begun, until=begun)

    # ── waiting ────────────────────────────────────────────────────────────────────────────────────────────

    async def until(self, condition: Callable[[], bool], what: str, *, within: float = PATIENCE) -> None:
        """Wait for this to come true."""
        deadline = time.monotonic() + within
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited {within:g} s for {what}; see {self.directory}")
            await asyncio.sleep(LOOK_SECONDS)

    async def until_busy(self, actor: Actor, runs: int) -> None:
        """Wait until this process has done so much more and is at work: so a fault hits it, however slow it is."""
        what: What = "started" if actor in self.workers else "intended"
        count = self.seen.count(what, actor.name) + runs

        def busy() -> bool:
            done = self.seen.count(what, actor.name)
            at_work = what == "intended" or done > self.seen.count("ended", actor.name)
            return (done >= count and at_work) or bool(self._gone)

        await self.until(busy, f"{actor.name} to be at work")
        self._refuse_to_go_on()

    async def until_any_busy(self, runs: int) -> None:
        """Wait until all workers together have done so much more."""
        count = self.seen.count("started") + runs
        await self.until(
            lambda: self.seen.count("started") >= count or bool(self._gone), "the workers to be at work"
        )
        self._refuse_to_go_on()

    @property
    def _gone(self) -> list[Actor]:
        """Who ended without being asked to: without what it does, others may wait for ever."""
        return [actor for actor in (*self.workers, *self.publishers) if not actor.alive]

    def _refuse_to_go_on(self) -> None:
        if self._gone:
            names = ", ".join(f"{actor.name} with {actor.process.exitcode}" for actor in self._gone)
            raise EndedByItself(f"{names}; see {self.directory}")

    async def rest(self) -> None:
        """A little while."""
        await asyncio.sleep(LOOK_SECONDS * 4)

    async def dead_letters(self) -> int:
        """How many dead letters there are."""
        store = open_store(self.place.url)
        await store.open()
        try:
            return sum(each.dead for each in (await store.stats()).values())
        finally:
            await store.close()

    # ── faults ─────────────────────────────────────────────────────────────────────────────────────────────

    def note(self, kind: str, target: str | None, begun: float, *, lasts: bool = False) -> None:
        """Write down a fault that began then and is over now, or lasts."""
        until = None if lasts else time.monotonic()
        self.journal.write("fault", kind=kind, target=target, sent=begun, until=until)

    async def step(self, clock: Clock, seconds: int) -> None:
        """Move the store's clock: from now on it is so many seconds ahead, and says so itself."""
        begun = time.monotonic()
        clock.set(seconds)
        self.journal.write(
            "fault",
            kind="store's clock stepped",
            sent=begun,
            until=time.monotonic(),
            skew=float(seconds),
        )
        clock.check(await self._told_by_the_store(), "the store")

    async def _told_by_the_store(self) -> float:
        """How far ahead the store's clock is, by the first claim from now on that was answered at once."""
        asked, offset = time.monotonic(), self.seen.offset
        told: list[Line] = []

        def look() -> bool:
            nonlocal offset
            lines, offset = read_from(self.directory / "journal.jsonl", offset)
            told.extend(
                line
                for line in lines
                if line.what == "claimed"
                and (line.sent or 0.0) > asked
                and line.at - (line.sent or 0.0) < AT_ONCE
            )
            return bool(told) or bool(self._gone)

        await self.until(look, "the store to say what time it is")
        self._refuse_to_go_on()
        return (told[0].store_at or 0.0) - told[0].at

    async def kill(self, actor: Actor) -> None:
        """kill -9."""
        begun = time.monotonic()
        kind = WORKER_KILLED if actor in self.workers else "publisher killed"
        actor.signal(signal.SIGKILL)
        await self._ended(actor)
        self.note(kind, actor.name, begun, lasts=True)

    async def pause(self, actor: Actor, seconds: float) -> None:
        """SIGSTOP for so long."""
        begun = time.monotonic()
        actor.signal(signal.SIGSTOP)
        await asyncio.sleep(seconds)
        actor.signal(signal.SIGCONT)
        self.note("pause", actor.name, begun)

    async def stop(self, actor: Actor) -> None:
        """SIGTERM, and wait for its end."""
        actor.signal(signal.SIGTERM)
        await self._ended(actor)

    async def bury(self, actor: Actor, kind: str) -> None:
        """Note the death of a process that ended by itself."""
        self.note(kind, actor.name, time.monotonic(), lasts=True)
        await self._ended(actor)

    async def _ended(self, actor: Actor) -> None:
        await self.until(lambda: not actor.alive, f"the end of {actor.name}")
        for cast in (self.workers, self.publishers):
            if actor in cast:
                cast.remove(actor)
        self.journal.write("exited", target=actor.name, code=actor.process.exitcode)

    # ── the end ────────────────────────────────────────────────────────────────────────────────────────────

    async def finish(self) -> None:
        """No more faults: let everything be delivered, end all processes, and write down what is left."""
        if self.proxy is not None:
            self.proxy.rates = {}
        for actor in list(self.publishers):
            await self.stop(actor)
        self.journal.write("calm")
        store = open_store(self.place.url)
        await store.open()
        try:
            drained = await self._drained(store)
            for actor in list(self.workers):
                await self.stop(actor)
            await self._write_the_end(store, drained=drained)
        finally:
            await store.close()

    async def _drained(self, store: FullStore) -> bool:
        deadline = time.monotonic() + RECOVERY_SECONDS
        while time.monotonic() < deadline and any(worker.alive for worker in self.workers):
            try:
                stats = await store.stats()
            except StoreUnavailable:
                stats = None
            if stats is not None and not any(
                each.ready + each.scheduled + each.running + each.superseded for each in stats.values()
            ):
                return True
            await asyncio.sleep(LOOK_SECONDS * 4)
        return False

    async def _write_the_end(self, store: FullStore, *, drained: bool) -> None:
        if not drained:
            # What is still leased is not among what waits: let it expire.
            await asyncio.sleep(
                max(
                    (actor.config.lease for actor in self._all if isinstance(actor.config, WorkerConfig)),
                    default=0.0,
                )
            )
        waiting = await store.peek(limit=1_000_000)
        letters = await store.dead(DeadFilter(), limit=100_000)
        for message in waiting:
            self.journal.write("left", key=key_of(message), id=message.id)
        for letter in letters:
            self.journal.write("left", key=key_of(letter), id=letter.message_id)
        damage = await asyncio.to_thread(self.place.damage)
        async with Database.at(self.place.url) as database:
            effects = await database.effects()
            server, durability = await database.version(), await database.durability()
        self.journal.write(
            "over",
            waiting=tuple(message.id for message in waiting),
            letters=tuple(letter.message_id for letter in letters),
            effects=tuple(effects),
            how=damage or None,
            server=server,
            durability=durability,
        )

    async def clear(self) -> None:
        """End every process that is still there."""
        for actor in self._all:
            actor.signal(signal.SIGKILL)
            actor.process.join(10)
        if self.proxy is not None:
            await self.proxy.close()
        self.journal.close()
