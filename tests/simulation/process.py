"""A process: workers on an event loop, a keeper on another; killed, frozen, blocked, stopped and started again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from random import Random

from nightmail.bell import Bells
from nightmail.breaker import Breaker
from nightmail.engine.attempt import Batched
from nightmail.engine.presence import Presence
from nightmail.engine.quarantine import Quarantine
from nightmail.engine.settings import WorkerSettings
from nightmail.engine.worker import Worker
from nightmail.message import Delivery
from nightmail.observe import Observer
from nightmail.retry import ConstantRetry
from tests.simulation.client import Client
from tests.simulation.events import Booted, Frozen, Killed, Received, StopAsked, StopEnded
from tests.simulation.handling import Handling, Script
from tests.simulation.journal import Journal
from tests.simulation.line import Line
from tests.simulation.loop import World
from tests.simulation.plan import Plan, ProcessPlan, WorkerPlan
from tests.simulation.server import Server


class Hearing(Observer):
    """Writes down what a worker heard."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def claimed(self, deliveries: Sequence[Delivery]) -> None:
        for each in deliveries:
            self._server.note(Received, id=each.id, token=self._server.token(each.token))


class Process:
    """One life of a process, from its start to its end."""

    def __init__(
        self,
        plan: ProcessPlan,
        life: int,
        *,
        history: Plan,
        world: World,
        server: Server,
        journal: Journal,
        script: Script,
        chance: Random,
        ended: Callable[[], object],
    ) -> None:
        self.server = server
        self.is_dead = False
        self._plan = plan
        self._world = world
        self._journal = journal
        self._ended = ended
        name = f"{plan.name}#{life}"
        self._loop = world.loop(name, offset=plan.offset, rate=plan.rate)
        self._keeper = world.loop(f"{name} keeper", offset=plan.offset, rate=plan.rate)
        self._loop.on_death = self.kill
        bells = Bells()
        server.wakeups.subscribe(name, self._loop, bells)
        self._clients = [
            Client(
                server,
                Line(f"{name}.{each.name}", chance, journal, upset=history.upset, latency=history.latency),
                f"{name}.{each.name}",
                self._keeper,
                bells,
            )
            for each in plan.workers
        ]
        self._script = script
        self._workers: list[Worker] = []
        self._runs: list[asyncio.Task[None]] = []
        self._stops: list[asyncio.Task[None]] = []
        self._is_graceful = False
        """Whether it is being stopped with a grace period."""
        self._main = self._loop.create_task(self._serve())

    async def _serve(self) -> None:
        quarantine, presence = Quarantine(), Presence()
        for plan, client in zip(self._plan.workers, self._clients, strict=True):
            self._workers.append(self._worker(plan, client, quarantine, presence))
        self._runs = [self._loop.create_task(worker.run()) for worker in self._workers]
        await asyncio.wait(self._runs)
        for run in self._runs:
            if not run.cancelled() and (error := run.exception()) is not None:
                self._world.complaints.append(f"{self._loop.name}: run() raised {error!r}")
        self._loop.call_soon(self._leave)

    def _worker(self, plan: WorkerPlan, client: Client, quarantine: Quarantine, presence: Presence) -> Worker:
        handling = Handling(self, client, self._script)
        retry = ConstantRetry(delay=timedelta(seconds=plan.delay), max_attempts=plan.max_attempts)
        self.server.note(
            Booted,
            worker=client.worker,
            lease=_micros(plan.lease),
            grace=_micros(plan.grace),
            timeout=_micros(plan.timeout),
            max_attempts=plan.max_attempts,
            max_deliveries=plan.max_deliveries,
            breaker=plan.breaker is not None,
        )
        return Worker(
            client,
            handling.one if plan.batch is None else Batched(handling.many, plan.batch),
            queues=plan.queues,
            settings=WorkerSettings(
                max_workers=plan.max_workers,
                lease=timedelta(seconds=plan.lease),
                retry=retry,
                max_deliveries=plan.max_deliveries,
                handler_timeout=timedelta(seconds=plan.timeout),
                graceful_timeout=timedelta(seconds=plan.grace),
                breaker=None
                if plan.breaker is None
                else Breaker(
                    failures=plan.breaker.failures, pause=plan.breaker.pause, maximum=plan.breaker.maximum
                ),
            ),
            observer=Hearing(self.server),
            quarantine=quarantine,
            presence=presence,
        )

    def kill(self, by: int | None = None) -> None:
        """It dies here and now: nothing of it runs any more, not even to clean up."""
        if not self.is_dead:
            for client in self._clients:
                self.server.note(Killed, worker=client.worker, by=by)
            self._die()

    def kill_in(self, steps: int | None) -> None:
        """It dies after so many more steps, or does not."""
        self._loop.dies_in = steps

    def freeze(self, seconds: float) -> None:
        """It stands still for so long, keeper and all."""
        until = self._world.now + seconds
        self._loop.freeze(until)
        self._keeper.freeze(until)
        self._note_frozen(until)

    def block(self, seconds: float) -> None:
        """A handler blocks its event loop; the keeper goes on."""
        until = self._world.now + seconds
        self._loop.freeze(until)
        self._note_frozen(until, thread=True)

    def cut_off(self, seconds: float) -> None:
        """It cannot reach the store for so long."""
        for client in self._clients:
            client.line.cut_until = self._world.now + seconds

    def stop(self, *, hurry: bool = False) -> None:
        """Stop it as an application does; in a hurry, as an event loop does that ends: by cancelling it."""
        if self.is_dead:
            return
        if not self._runs:
            self._leave()
        elif self._is_graceful and hurry:
            for stop, client in zip(self._stops, self._clients, strict=True):
                if not stop.done():
                    self.server.note(StopAsked, worker=client.worker, hurry=True)
                    stop.cancel()
        elif not self._stops:
            self._stops = [
                self._loop.create_task(self._stop(*each, hurry=hurry))
                for each in zip(self._workers, self._runs, self._clients, strict=True)
            ]

    async def _stop(self, worker: Worker, run: asyncio.Task[None], client: Client, *, hurry: bool) -> None:
        self.server.note(StopAsked, worker=client.worker, hurry=hurry)
        if hurry:
            while not run.done():
                # Again and again, as anyio does.
                run.cancel()
                await asyncio.wait([run], timeout=0.05)
        else:
            self._is_graceful = True
            # Cancelled itself, it ends in a hurry, and ends all the same.
            with suppress(asyncio.CancelledError):
                await worker.stop()
        self.server.note(StopEnded, worker=client.worker)

    def _leave(self) -> None:
        if not self.is_dead:
            self._die()

    def _die(self) -> None:
        self.is_dead = True
        self._world.remove(self._loop)
        self._world.remove(self._keeper)
        self._ended()

    def _note_frozen(self, until: float, *, thread: bool = False) -> None:
        for client in self._clients:
            self.server.note(Frozen, worker=client.worker, until=_micros(until), thread=thread)


def _micros(seconds: float) -> int:
    return round(seconds * 1_000_000)
