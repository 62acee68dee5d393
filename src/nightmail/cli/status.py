"""How the queues stand."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
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
from nightmail.errors import StoreUnavailable
from nightmail.operations.status import Looks, QueueStatus
from nightmail.wording import count, length, moment, several

_COLUMNS = (
    "queue",
    "ready",
    "scheduled",
    "running",
    "dead",
    "oldest due",
    "lateness",
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

    oldest due: for how long the oldest ready message has been due. lateness: how late handlers started in the last
    seconds. out/s is what live workers have ended each second of late, in/s is that and the change between two looks.
    """
    seconds = _apart(over)
    async with session.chosen.ready() as store:
        looks = Looks(store, queue)
        if watch:
            await watch_queues(session, looks, None if over is None else seconds)
            return
        await looks.look_twice(seconds)
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
    return [
        found.queue,
        count(found.ready),
        count(found.scheduled),
        count(found.running),
        count(found.dead),
        _length(found.oldest_due_age),
        _length(found.lateness),
        _rate(found.in_per_second),
        _rate(found.out_per_second),
        _rate(found.dead_per_second),
        _length(found.drained_in),
        _paused(found),
    ]


def _length(found: timedelta | None) -> str:
    return "-" if found is None else length(found)


def _paused(found: QueueStatus) -> str:
    """What is paused of a queue, in a few words: `nightmail pauses` has the rest."""
    said = [
        "by its breaker" if pause.automatic else f"by {pause.by}"
        for pause in found.pauses
        if pause.ordering_key is None
    ]
    if keys := found.paused_keys:
        said.append(several(keys, "key"))
    return ", ".join(said) or "-"


def _rate(rate: float | None) -> str:
    if rate is None:
        return "-"
    return f"{rate:,.1f}" if rate else "0"
