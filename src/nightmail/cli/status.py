"""How the queues stand."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from time import monotonic
from typing import Annotated, Final

import typer
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from nightmail.cli.exit_codes import line_of
from nightmail.cli.output import Output
from nightmail.cli.running import Session, on_store
from nightmail.cli.texts import positive_duration
from nightmail.controls import Pause
from nightmail.errors import StoreUnavailable
from nightmail.operations import status as asking
from nightmail.operations.status import QueueStatus
from nightmail.operations.workers import live_workers
from nightmail.records import QueueStats
from nightmail.store import FullStore
from nightmail.wording import count, length, moment, several

_COLUMNS = (
    "queue",
    "ready",
    "scheduled",
    "running",
    "dead",
    "late by",
    "in/s",
    "out/s",
    "dead/s",
    "drained in",
    "paused",
)
_NUMBERS = frozenset(_COLUMNS[1:-1])
_LOOKS_AT_MOST: Final = 0.05
"""The share of the time for which a watch looks, unless told how often: to count a million messages is work."""


@on_store(json=True)
async def status(
    session: Session,
    queue: Annotated[list[str] | None, typer.Argument(help="Only these queues.")] = None,
    over: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Look twice, so long apart, to see changes. 0: look once. [default: 500ms]"
        ),
    ] = None,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch",
            "-w",
            help="Go on until Ctrl-C, with a look each second, or less often where it takes long.",
        ),
    ] = False,
) -> None:
    """Show each queue: what is ready, scheduled, running, dead, late and paused, what comes and what goes.

    out/s is what live workers have ended each second of late, in/s is that and the change between two looks.
    """
    seconds = _apart(over)
    async with session.chosen.ready() as store:
        looks = Looks(store, queue)
        if watch:
            await watch_queues(session, looks, None if over is None else seconds)
            return
        begun = monotonic()
        await looks.look()
        if seconds:
            # From one beginning to the next: where a look takes long, the answer is not later by two of them.
            await asyncio.sleep(max(seconds - (monotonic() - begun), seconds / 2))
            await looks.look()
    if session.out.as_json:
        session.out.json(looks.status)
    elif not looks.status:
        session.out.note("no queue has anything in it" if queue is None else "these queues are empty")
    else:
        session.out.table(_COLUMNS, [_row(each) for each in looks.status], right=_NUMBERS)


def _apart(typed: str | None) -> float:
    if typed is None:
        return 0.5
    return 0.0 if typed.strip() in ("0", "0s") else positive_duration(typed).total_seconds()


class Looks:
    """The statistics of now, and those of one look before."""

    def __init__(self, store: FullStore, queues: list[str] | None) -> None:
        self._store = store
        self._only = None if not queues else set(queues)
        self._before: tuple[float, dict[str, QueueStats]] | None = None
        self.status: list[QueueStatus] = []
        self.took = 0.0
        """How many seconds the last look took."""

    async def look(self) -> None:
        begun = monotonic()
        found = await self._store.stats()
        at = monotonic()
        pauses = await self._store.pauses()
        workers = await live_workers(self._store)
        if self._only is not None:
            found = {name: found.get(name, QueueStats()) for name in self._only}
            pauses = [pause for pause in pauses if pause.queue in self._only]
        if self._before is None:
            self.status = asking.status(found, pauses=pauses, workers=workers)
        else:
            self.status = asking.status(found, self._before[1], at - self._before[0], pauses, workers)
        self._before = at, found
        self.took = monotonic() - begun


async def watch_queues(session: Session, looks: Looks, seconds: float | None) -> None:
    """Show the queues again and again. An outage is shown too, and ends nothing: it is what one watches for."""

    def rest() -> float:
        return seconds or max(1.0, looks.took / _LOOKS_AT_MOST)

    await looks.look()
    if not session.out.on_terminal:
        while True:
            _print_lines(session.out, looks.status)
            await asyncio.sleep(rest())
            while problem := await _problem(session, looks):
                session.out.warn(problem)
                await asyncio.sleep(rest())
    # The alternate screen: when it ends, however it ends, the terminal is as it was.
    with Live(console=session.out.console, screen=True, auto_refresh=False) as live:
        problem = ""
        while True:
            live.update(_screen(session, looks.status, problem), refresh=True)
            await asyncio.sleep(rest())
            problem = await _problem(session, looks)


async def _problem(session: Session, looks: Looks) -> str:
    """Look; what is in the way, if something is."""
    try:
        await looks.look()
    except StoreUnavailable as error:
        return line_of(error, session.chosen.where)
    return ""


def _screen(session: Session, found: list[QueueStatus], problem: str) -> Group:
    heading = Text(f"{session.chosen.where}    {moment(datetime.now(UTC))}    Ctrl-C ends")
    table: Table | Text = Text("no queue has anything in it")
    if found:
        table = session.out.make_table(_COLUMNS, [_row(each) for each in found], right=_NUMBERS)
    return Group(heading, Text(problem), table)


def _print_lines(out: Output, found: list[QueueStatus]) -> None:
    now = datetime.now(UTC)
    if out.as_json:
        out.json({"at": now, "queues": found}, compact=True)
    else:
        out.table(("at", *_COLUMNS), [(moment(now), *_row(each)) for each in found])


def _row(found: QueueStatus) -> list[str]:
    late = found.oldest_due_age
    drained = found.drained_in
    return [
        found.queue,
        count(found.ready),
        count(found.scheduled),
        count(found.running),
        count(found.dead),
        "-" if late is None else length(late),
        _rate(found.in_per_second),
        _rate(found.out_per_second),
        _rate(found.dead_per_second),
        "-" if drained is None else length(drained),
        _paused(found.pauses),
    ]


def _paused(pauses: tuple[Pause, ...]) -> str:
    """What is paused of a queue, in a few words: `nightmail pauses` has the rest."""
    said = [
        "by its breaker" if pause.automatic else f"by {pause.by}"
        for pause in pauses
        if pause.ordering_key is None
    ]
    if keys := sum(pause.ordering_key is not None for pause in pauses):
        said.append(several(keys, "key"))
    return ", ".join(said) or "-"


def _rate(rate: float | None) -> str:
    if rate is None:
        return "-"
    return f"{rate:,.1f}" if rate else "0"
