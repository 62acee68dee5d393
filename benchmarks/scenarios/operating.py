"""Read commands on a store that is full: how long each takes, and what they cost a drain."""

from __future__ import annotations

import asyncio
import os
import resource
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import cycle
from typing import Final

from benchmarks.child import ChildFailed
from benchmarks.lab import Bench, Lab, in_turn
from benchmarks.results import Table
from benchmarks.scenarios.backlog import OTHERS, Backlog, fill
from benchmarks.scenarios.draining import drain, work_off
from benchmarks.scenarios.draining import fill as fill_queue
from benchmarks.systems import OURS_QUIET
from nightmail.operations.doctor import diagnose
from nightmail.operations.why import why
from nightmail.records import DeadFilter
from nightmail.store import FullStore
from nightmail.stores import open_store

COMMANDS: Final = "read commands"
PROCESSOR: Final = "processor time of their processes"
CALLS: Final = "the same, as calls of the library"
DRAIN: Final = "drain of a plain handler"
SLOWEST: Final = "the slowest"
STARTING: Final = "--version, which asks nothing"
ALONE, BESIDE_EMPTY, BESIDE = "alone", "beside commands on an empty store", "beside commands on this store"
EVERY_SECONDS: Final = 2.0
DRAIN_SECONDS: Final = 4 * EVERY_SECONDS
"""Short: within a minute the pace of a machine changes by more than commands cost. Two drains in a row see one pace."""
ALONE_ROUNDS: Final = 3
ROUNDS: Final = 9
"""Twice the number of commands, all rounds together: some cost much more than others."""
PATIENCE_SECONDS: Final = 120.0
NOTHING_THERE: Final = 6
IN_NO_ERROR: Final = "what no error says"


@dataclass(frozen=True)
class Command:
    """A read command as it is typed, and the call that it makes."""

    name: str
    words: tuple[str, ...]
    call: Callable[[FullStore], Awaitable[object]]
    codes: tuple[int, ...] = (0,)


def commands(backlog: Backlog) -> list[Command]:
    """Every read command that ends by itself, where it has most to read."""
    one, behind, died, dead = (
        str(each) for each in (backlog.waiting, backlog.behind, backlog.died, backlog.dead)
    )
    queue = OTHERS[0]
    return [
        Command("status", ("status",), lambda store: store.stats()),
        Command("status --over 0", ("status", "--over", "0"), lambda store: store.stats()),
        Command("list", ("list",), lambda store: store.peek(limit=20)),
        Command("list QUEUE", ("list", queue), lambda store: store.peek(queue, limit=20)),
        Command("show ID", ("show", one), lambda store: store.find([backlog.waiting])),
        Command("why ID", ("why", one), lambda store: why(store, backlog.waiting)),
        Command("why ID, in line", ("why", behind), lambda store: why(store, backlog.behind)),
        Command("why ID, dead", ("why", died), lambda store: why(store, backlog.died)),
        Command("workers", ("workers",), lambda store: store.leases()),
        Command("pauses", ("pauses",), lambda store: store.pauses()),
        Command("dead list", ("dead", "list"), lambda store: store.dead(DeadFilter(), limit=20)),
        Command(
            "dead list QUEUE --error TEXT",
            ("dead", "list", queue, "--error", IN_NO_ERROR),
            lambda store: store.dead(DeadFilter(queue=queue, error=IN_NO_ERROR), limit=20),
        ),
        Command(
            "dead show ID",
            ("dead", "show", dead),
            lambda store: store.dead(DeadFilter(ids=(backlog.dead,))),
        ),
        Command(
            "dead groups", ("dead", "groups"), lambda store: store.summarize_dead(DeadFilter(), limit=20)
        ),
        Command(
            "dead groups QUEUE",
            ("dead", "groups", queue),
            lambda store: store.summarize_dead(DeadFilter(queue=queue), limit=20),
        ),
        # Its code says how bad things are, and they are: no worker consumes most of the queues.
        Command("doctor", ("doctor",), diagnose, (0, 1, 2)),
        Command("check", ("check",), lambda store: store.check()),
    ]


async def operating(lab: Lab, store: str) -> None:
    """Each command as a process of its own, as text and as JSON; then drains with and without commands beside them.

    Starting a process costs a busy machine something, whatever it asks. So a drain beside commands is compared with one
    beside the same commands on an empty store of the same server.
    """
    waiting, dead = lab.choose((1_000_000, 200_000), (20_000, 4_000), (600, 120))
    server = await lab.server(store)
    async with lab.benches([OURS_QUIET], store) as benches:
        for bench in benches:
            with server.database() as empty:
                await _migrated(empty)
                opened = open_store(bench.url)
                await opened.open()
                try:
                    lab.say(f"filling: {waiting:,} waiting, {dead:,} dead")
                    backlog = await fill(server, bench.url, opened, waiting=waiting, dead=dead)
                    note = f"{waiting:,} waiting, {dead:,} dead"
                    await _answers(lab, bench, commands(backlog), opened, note)
                finally:
                    await opened.close()
                await _drains(lab, bench, empty, commands(backlog), note)


async def _migrated(url: str) -> None:
    store = open_store(url)
    await store.open()
    try:
        await store.migrate()
    finally:
        await store.close()


async def _answers(lab: Lab, bench: Bench, wanted: Sequence[Command], store: FullStore, note: str) -> None:
    typed = Table("operating", COMMANDS, bench.server.name, "s", note=note, less_is_better=True)
    called = Table("operating", CALLS, bench.server.name, "s", note=note, less_is_better=True)
    worked = Table("operating", PROCESSOR, bench.server.name, "s", note=note, less_is_better=True)
    lab.results.tables += [typed, worked, called]
    typed.order([SLOWEST, STARTING])
    starting = Command("--version", ("--version",), lambda _: asyncio.sleep(0))
    for _ in range(lab.choose(2, 1)):
        most = 0.0
        before = _processor_seconds()
        typed.row(STARTING).values.append(await _run(starting, bench.url))
        worked.row(STARTING).values.append(_processor_seconds() - before)
        for command in wanted:
            lab.say(f"nightmail {command.name}")
            begun = time.perf_counter()
            await command.call(store)
            called.row(command.name).values.append(time.perf_counter() - begun)
            before = _processor_seconds()
            seconds = max([await _run(command, bench.url, *json) for json in ((), ("--json",))])
            worked.row(command.name).values.append((_processor_seconds() - before) / 2)
            typed.row(command.name).values.append(seconds)
            most = max(most, seconds)
        typed.row(SLOWEST).values.append(most)


def _processor_seconds() -> float:
    """Of all processes that have ended: commands, and nothing else while they are timed."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


async def _run(command: Command, url: str, *options: str, codes: Sequence[int] = ()) -> float:
    """How many seconds it took. A command that does not answer, or answers something else, fails the scenario."""
    begun = time.perf_counter()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "nightmail", *command.words, *options),
        env={**os.environ, "NIGHTMAIL_URL": url},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            _, said = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    if process.returncode not in (*command.codes, *codes):
        raise ChildFailed(f"nightmail {command.name}: {process.returncode}, {said.decode()[-500:]}")
    return time.perf_counter() - begun


async def _drains(lab: Lab, bench: Bench, empty: str, wanted: Sequence[Command], note: str) -> None:
    table = Table("operating", DRAIN, bench.server.name, "messages/s", note=note)
    lab.results.tables.append(table)
    kinds = {ALONE: None, BESIDE_EMPTY: empty, BESIDE: bench.url}
    table.order(kinds)
    turns = {kind: cycle(wanted) for kind in kinds}
    rate = await drain(bench, "plain", lab.choose(5_000, 2_000, 1_500))
    count = int(max(1_500, rate * lab.choose(DRAIN_SECONDS, 1.0, 0.1)))
    for number in range(lab.choose(ROUNDS, 1)):
        asked = [kind for kind in kinds if kind != ALONE or number < ALONE_ROUNDS]
        for kind in in_turn(asked, number):
            lab.say(f"drain {kind}, round {number + 1}")
            await fill_queue(bench, count)
            async with _asking(turns[kind], kinds[kind]):
                table.row(kind).values.append(await work_off(bench, "plain", count))


@asynccontextmanager
async def _asking(wanted: Iterator[Command], url: str | None) -> AsyncIterator[None]:
    """A command every two seconds on this store, for as long as the block lasts."""
    if url is None:
        yield
        return

    async def ask(address: str) -> None:
        async with asyncio.TaskGroup() as group:
            for command in wanted:
                group.create_task(_run(command, address, codes=(NOTHING_THERE,)))
                await asyncio.sleep(EVERY_SECONDS)

    asking = asyncio.create_task(ask(url))
    try:
        yield
    finally:
        asking.cancel()
        await asyncio.wait([asking])
        if not asking.cancelled() and (error := asking.exception()) is not None:
            raise error
