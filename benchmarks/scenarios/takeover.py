"""Workers that only pause: how many of their messages another takes over, with shorter and longer leases.

`python -m benchmarks.scenarios.takeover URL SUFFIX` is the worker that pauses. Its handlers never end.
"""

from __future__ import annotations

import asyncio
import ctypes
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from benchmarks.environments import ROOT
from benchmarks.lab import Lab
from benchmarks.results import Table
from nightmail import OutboxBroker

LEASES = (15.0, 20.0, 30.0, 60.0)
HELD = 10
RENEWED_SECONDS = 22.0
"""So long after their claim the leases of all workers have been renewed, each at its own moments."""
Pause = Callable[[asyncio.subprocess.Process], Awaitable[None]]


async def takeover(lab: Lab, store: str) -> None:
    """Messages that were lost to another worker, of those that the paused one had: all pauses at once."""
    server = await lab.server(store)
    with server.database() as url:
        broker = OutboxBroker(url, create_tables=True, logger=None)
        await broker.start()  # Makes the tables, once.
        await broker.stop()
        lost = await asyncio.gather(*(_after(url, name, pause) for name, pause in PAUSES.items()))
    for name, taken in zip(PAUSES, lost, strict=True):
        table = Table("takeover", name, store, f"of {HELD}", less_is_better=True)
        for lease in LEASES:
            table.row(f"lease of {lease:.0f} s").values.append(float(taken[lease]))
        lab.results.tables.append(table)


async def _after(url: str, name: str, pause: Pause) -> Counter[float]:
    async with _held(url, name.replace(" ", "-")) as (process, taken):
        await asyncio.sleep(RENEWED_SECONDS)
        await pause(process)
        await asyncio.sleep(3.0)
        return Counter(taken.get_nowait()[0] for _ in range(taken.qsize()))


def _stopped(seconds: float) -> Pause:
    async def pause(process: asyncio.subprocess.Process) -> None:
        process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(seconds)
        process.send_signal(signal.SIGCONT)

    return pause


def _told(what: str, seconds: float) -> Pause:
    async def pause(process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        process.stdin.write(f"{what} {seconds}\n".encode())
        await asyncio.sleep(seconds)

    return pause


PAUSES: dict[str, Pause] = {
    **{f"stopped for {seconds} s": _stopped(seconds) for seconds in (5, 15, 25)},
    **{f"GIL held for {seconds} s": _told("gil", seconds) for seconds in (10, 25)},
    "event loop blocked for 30 s": _told("loop", 30),
}


@asynccontextmanager
async def _held(
    url: str, suffix: str
) -> AsyncIterator[tuple[asyncio.subprocess.Process, asyncio.Queue[tuple[float, float]]]]:
    """A process that has all the messages, and what another has taken over from it, by lease, and when."""
    broker = OutboxBroker(url, logger=None)
    taken: asyncio.Queue[tuple[float, float]] = asyncio.Queue()
    for lease in LEASES:
        broker.subscriber(_queue(lease, suffix), lease_ttl_seconds=lease)(_noting(lease, taken))
    async with broker:
        for lease in LEASES:
            await broker.publish_batch(*range(HELD), queue=_queue(lease, suffix))
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "benchmarks.scenarios.takeover", url, suffix,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, cwd=ROOT,
        )  # fmt: skip
        try:
            assert process.stdout is not None
            for _ in range(HELD * len(LEASES)):
                await process.stdout.readline()
            await broker.start()
            yield process, taken
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


def _noting(lease: float, taken: asyncio.Queue[tuple[float, float]]) -> Callable[[int], Awaitable[None]]:
    async def take(number: int) -> None:
        taken.put_nowait((lease, time.monotonic()))

    return take


def _queue(lease: float, suffix: str) -> str:
    return f"held-{lease:.0f}-{suffix}"


async def _hold(url: str, suffix: str) -> None:
    broker = OutboxBroker(url, logger=None)

    async def hold(number: int) -> None:
        print(number, flush=True)
        await asyncio.Event().wait()

    for lease in LEASES:
        broker.subscriber(_queue(lease, suffix), lease_ttl_seconds=lease)(hold)
    await broker.start()
    while line := await asyncio.to_thread(sys.stdin.readline):
        what, seconds = line.split()
        if what == "gil":
            ctypes.PyDLL(None).sleep(
                int(float(seconds))
            )  # Unlike others, a call through `PyDLL` keeps the GIL.
        else:
            time.sleep(float(seconds))  # noqa: ASYNC251 - it is what is measured


if __name__ == "__main__":
    asyncio.run(_hold(sys.argv[1], sys.argv[2]))
