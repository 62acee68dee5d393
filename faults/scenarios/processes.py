"""Processes that are killed, frozen, stopped, or that block themselves."""

from __future__ import annotations

import asyncio
from typing import Final

from faults.clock import Clock
from faults.journal import BY_A_MESSAGE
from faults.place import POOLED, STORES
from faults.scenarios.scenario import Scenario
from faults.stage import Stage
from faults.workload.config import KINDS, WorkerConfig


async def cast(stage: Stage, *, workers: int = 2, publishers: int = 2) -> None:
    """Start the usual processes, and wait until they work."""
    for _ in range(publishers):
        await stage.add_publisher()
    await stage.add_bulk()
    for _ in range(workers):
        await stage.add_worker()
    for actor in (*stage.publishers, *stage.workers):
        await stage.until_busy(actor, 1)


async def kills(stage: Stage) -> None:
    """SIGKILL workers and publishers at work, and start others in their place."""
    await cast(stage, workers=3)
    for number in range(stage.faults):
        # One of the first is a publisher, however few faults there are.
        is_publisher = number == 1 or stage.random.random() < 0.25
        victim = stage.random.choice(stage.publishers if is_publisher else stage.workers)
        await stage.until_busy(victim, stage.random.randint(1, 12))
        await stage.kill(victim)
        await stage.replace(victim)
        stage.say(f"{number + 1} of {stage.faults} killed")


async def pauses(stage: Stage) -> None:
    """SIGSTOP workers for longer than their lease: others take over, and the late ones must change nothing."""
    await cast(stage, workers=5)
    done = 0
    while done < stage.faults:
        victims = stage.random.sample(stage.workers, min(stage.random.randint(2, 4), stage.faults - done))
        for victim in victims:
            await stage.until_busy(victim, stage.random.randint(1, 8))
        async with asyncio.TaskGroup() as group:
            for victim in victims:
                assert isinstance(victim.config, WorkerConfig)
                seconds = victim.config.lease + stage.random.uniform(0.5, 2.0)
                group.create_task(stage.pause(victim, seconds))
        for victim in victims:
            await stage.until_busy(victim, 1)
        done += len(victims)
        stage.say(f"{done} of {stage.faults} frozen")


async def stops(stage: Stage) -> None:
    """SIGTERM workers under load, one after the other, and start others in their place: it costs nothing."""
    await cast(stage)
    for number in range(stage.faults):
        victim = stage.random.choice(stage.workers)
        await stage.until_busy(victim, stage.random.randint(1, 12))
        await stage.add_worker()
        await stage.stop(victim)
        stage.say(f"{number + 1} of {stage.faults} stopped")


async def blocked(stage: Stage) -> None:
    """Handlers block the event loop for longer than the lease: nothing may be lost to another worker by that."""
    await cast(stage)
    for number in range(stage.faults):
        worker = stage.random.choice(stage.workers)
        await stage.until_busy(worker, 30)
        stage.say(f"{number + 1} of {stage.faults} times 30 runs, one in ten of which blocks")


async def cancellations(stage: Stage) -> None:
    """Publishes and handlers are cancelled while they are under way: each of them is a fault."""
    await cast(stage)
    told = 0
    while (count := stage.seen.cancelled) < stage.faults:
        await stage.until(lambda: stage.seen.cancelled > count, "a cancellation")
        if count * 10 // stage.faults > told:
            told = count * 10 // stage.faults
            stage.say(f"{count} of {stage.faults} cancelled")


async def clocks(stage: Stage) -> None:
    """The wall clocks of workers and publishers are an hour off: only the server's counts."""
    for name, seconds in (("fast", 3600), ("slow", -3600)):
        clock = Clock(stage.directory, name, seconds=seconds)
        await stage.add_publisher(clock=clock)
        await stage.add_worker(clock=clock)
    await stage.add_bulk()
    for number in range(stage.faults):
        for worker in stage.workers:
            await stage.until_busy(worker, 20)
        stage.say(f"{number + 1} of {stage.faults} times 20 runs of each")


async def gil(stage: Stage) -> None:
    """Handlers keep the GIL for longer than the lease: not even the keeper's thread runs, and others take over."""
    await cast(stage)
    for number in range(stage.faults):
        worker = stage.random.choice(stage.workers)
        await stage.until_busy(worker, 20)
        stage.say(f"{number + 1} of {stage.faults} times 20 runs, one in ten of which keeps the GIL")


async def forks(stage: Stage) -> None:
    """Handlers fork. Their children inherit every connection, may not use the store, and end in their own time."""
    await cast(stage)
    for number in range(stage.faults):
        await stage.until_busy(stage.random.choice(stage.workers), 20)
        stage.say(f"{number + 1} of {stage.faults} times 20 runs, one in five of which forks")


async def def_handlers(stage: Stage) -> None:
    """SIGKILL and SIGTERM of workers whose handlers are threads, which nothing can end."""
    await cast(stage)
    for number in range(stage.faults):
        victim = stage.random.choice(stage.workers)
        await stage.until_busy(victim, stage.random.randint(1, 8))
        await stage.add_worker()
        if number % 2:
            await stage.kill(victim)
        else:
            await stage.stop(victim)
        stage.say(f"{number + 1} of {stage.faults} stopped or killed")


async def crowd(stage: Stage) -> None:
    """Eight processes on one store, killed one after the other."""
    await cast(stage, workers=4, publishers=4)
    for number in range(stage.faults):
        victim = stage.random.choice((*stage.workers, *stage.publishers))
        await stage.until_busy(victim, stage.random.randint(1, 4))
        await stage.kill(victim)
        await stage.replace(victim)
        stage.say(f"{number + 1} of {stage.faults} killed")


async def poison(stage: Stage) -> None:
    """Messages that kill the process that handles them, among others that do not."""
    await stage.add_publisher(poison=stage.faults)
    await stage.add_bulk()
    for _ in range(2):
        await stage.add_worker()
    for _ in range(400 * stage.faults):
        for actor in list(stage.workers):
            if not actor.alive:
                await stage.bury(actor, BY_A_MESSAGE)
                await stage.add_worker()
        if await stage.dead_letters() >= stage.faults:
            return
        await stage.rest()


_OUT_OF_LINE: Final = tuple(kind for kind in KINDS if kind != "ordered")

SCENARIOS: Final = (
    Scenario(
        name="kills",
        about="SIGKILL of workers and publishers at work",
        play=kills,
        faults=20,
        stores=(*STORES, POOLED),
    ),
    Scenario(
        name="pauses",
        about="SIGSTOP of workers for longer than their lease",
        play=pauses,
        faults=6,
        # Handlers take about as long as the pause is longer than the lease: the late one comes back while another runs.
        worker={"lease": 2.0, "handler_seconds": 1.0},
        publisher={"pause": 0.05},
        bulk=500.0,
    ),
    Scenario(
        name="stops",
        about="rolling restarts by SIGTERM under load, with handlers that do not end in time",
        play=stops,
        faults=12,
        stores=(*STORES, POOLED),
        worker={"grace": 0.3, "handler_seconds": 0.5},
        publisher={"pause": 0.05},
    ),
    Scenario(
        name="blocked",
        about="handlers that block the event loop for longer than the lease",
        play=blocked,
        faults=4,
        worker={"lease": 2.0, "block_seconds": 3.0},
        publisher={"pause": 0.1},
        bulk=300.0,
    ),
    Scenario(
        name="gil",
        about="handlers that keep the GIL for longer than the lease, in a call into C",
        play=gil,
        faults=3,
        worker={"lease": 2.0, "block_seconds": 3.0, "blocks": "process"},
        # Not faster: what is published when calm comes keeps the GIL too, for a third of a second a message.
        publisher={"pause": 0.4},
        bulk=300.0,
    ),
    Scenario(
        name="def-handlers",
        about="SIGKILL and SIGTERM of workers whose handlers are threads that do not end in time",
        play=def_handlers,
        faults=10,
        worker={"grace": 0.3, "handler_seconds": 0.5},
        publisher={"kinds": ("thread",), "pause": 0.05},
    ),
    Scenario(
        name="forks",
        about="handlers that fork: children inherit the connections and try to publish",
        play=forks,
        faults=3,
        worker={"forks": 0.2},
        publisher={"pause": 0.05},
    ),
    Scenario(
        name="crowd",
        about="eight processes share one file, and are killed",
        play=crowd,
        faults=12,
        stores=("sqlite",),
        publisher={"pause": 0.1},
    ),
    Scenario(
        name="cancellations",
        about="publishes and handlers cancelled while they are under way",
        play=cancellations,
        faults=1000,
        # Many at a time: each has to be under way when it is cancelled. Not more than can be handled, though, and few
        # with an ordering key: those of a line are handled one after the other, cancelled and tried again.
        # And with a session no more at once than there are connections: one that waits for its own is cancelled before
        # it starts, and closes that of another.
        worker={"timeout": 0.2, "handler_seconds": 0.16, "max_workers": 20},
        publisher={"cancels": 0.5, "at_once": 16, "pause": 0.1, "kinds": (*KINDS, *3 * _OUT_OF_LINE)},
        bulk=200.0,
    ),
    Scenario(
        name="clocks",
        about="worker and publisher clocks an hour ahead and behind",
        play=clocks,
        faults=3,
        # On SQLite there is no server: the clock of the process is the store's.
        stores=("postgres", "mariadb", "redis"),
    ),
    Scenario(
        name="poison",
        about="messages that kill the process that handles them",
        play=poison,
        faults=1,
        worker={"lease": 1.5, "max_deliveries": 4},
        bulk=200.0,
    ),
)
