"""Pauses: of a queue, or of one ordering key in it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from nightmail.cli import audit
from nightmail.cli.exit_codes import NOT_FOUND, Refusal
from nightmail.cli.operator import By, named
from nightmail.cli.running import Session, on_store
from nightmail.cli.texts import positive_duration, safe, time
from nightmail.controls import Pause, check_pause
from nightmail.message import check_queue
from nightmail.operations.liveness import consumers
from nightmail.operations.shell import resume_command
from nightmail.records import QueueStats
from nightmail.wording import moment, several, when

Queue = Annotated[str, typer.Argument(help="The queue.")]
Key = Annotated[str | None, typer.Option("--key", metavar="KEY", help="Only this ordering key of the queue.")]


@on_store(changes=True)
async def pause(
    session: Session,
    queue: Queue,
    key: Key = None,
    for_: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help="For so long: 90s, 10m, 2h.")
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="MOMENT", help="Until: 2026-11-17T10:00:00Z.")] = None,
    reason: Annotated[str | None, typer.Option(help="Why, for those who find it paused.")] = None,
    by: By = None,
) -> None:
    """Take nothing more from a queue, in any process, until you resume it. What runs finishes; publishing goes on."""
    check_queue(queue)
    end = _end(for_, until)
    check_pause(queue, key, end, named(by), automatic=False)
    async with session.chosen.ready(adopt=True) as store:
        await store.pause(queue, ordering_key=key, until=end, by=named(by), reason=reason)
        audit.changed(session, "pause" if key is None else "pause one key", by=by, queue=queue)
        found = [
            each for each in await store.pauses(queue) if each.ordering_key == key and not each.automatic
        ]
        everything = await store.stats()
        is_known = queue in everything or bool(consumers(queue, await store.workers()))
    stats = everything.get(queue, QueueStats())
    if not found:
        session.out.say(f"{_what(queue, key)} was paused, and that is over already")
        return
    ends = "until you resume it" if found[0].until is None else f"until {moment(found[0].until)}"
    session.out.say(f"{_what(queue, key)} is paused {ends}")
    session.out.note(
        f"{several(stats.ready, 'message')} ready in the queue, {several(stats.running, 'message')} still running; "
        f"`{resume_command(queue, key)}` ends the pause"
    )
    if not is_known:
        session.out.note(
            f"nothing is in {safe(queue)}, and no worker was seen that consumes it: is its name right? "
            "`nightmail status` and `nightmail workers` show those that there are"
        )


def _end(for_: str | None, until: str | None) -> datetime | timedelta | None:
    if for_ is not None and until is not None:
        raise Refusal("give --for or --until, not both")
    if for_ is not None:
        return positive_duration(for_)
    if until is None:
        return None
    found = time(until)
    if found <= datetime.now(UTC):
        raise Refusal(f"{safe(until)} is over: give a moment in the future")
    return found


@on_store(changes=True)
async def resume(
    session: Session,
    queue: Queue,
    key: Key = None,
    breaker: Annotated[
        bool, typer.Option("--breaker", help="Close the queue's breaker, not a person's pause.")
    ] = False,
) -> None:
    """End a pause. Workers go on at once."""
    check_queue(queue)
    if breaker and key is not None:
        raise Refusal("a breaker is of a whole queue: give --breaker or --key, not both")
    async with session.chosen.ready(adopt=True) as store:
        ended = await store.resume(queue, ordering_key=key, automatic=breaker)
        if ended:
            audit.changed(session, _resumed(key, breaker=breaker), queue=queue)
        others = await store.pauses(queue)
    if not ended:
        raise Refusal(f"{_what(queue, key)} is not paused{_but(others, key, breaker=breaker)}", NOT_FOUND)
    session.out.say(f"{_what(queue, key)} is resumed")
    if others:
        session.out.note(f"still paused: {', '.join(_named(each) for each in others)}")


def _resumed(key: str | None, *, breaker: bool) -> str:
    """What was done, without the key."""
    if breaker:
        return "resume breaker"
    return "resume" if key is None else "resume one key"


def _but(others: list[Pause], key: str | None, *, breaker: bool) -> str:
    """What may have been meant instead."""
    said = ""
    if any(each.automatic for each in others) and not breaker:
        said = ", but its breaker is open: --breaker closes it"
    elif any(each.ordering_key is not None for each in others) and key is None:
        said = ", but some of its ordering keys are: --key KEY"
    elif others:
        said = f", but this is: {_named(others[0])}"
    return f"{said}. `nightmail pauses` shows what is paused"


@on_store(json=True)
async def pauses(
    session: Session, queue: Annotated[str | None, typer.Argument(help="Only this queue.")] = None
) -> None:
    """Show what is paused: by whom, since when, why and until when."""
    async with session.chosen.ready() as store:
        found = await store.pauses(queue)
    if session.out.as_json:
        session.out.json(found)
        return
    if not found:
        session.out.note("nothing is paused")
        return
    now = datetime.now(UTC)
    session.out.table(
        ("queue", "ordering key", "paused by", "since", "until", "reason"),
        [
            (
                each.queue,
                each.ordering_key or "-",
                f"the breaker of {each.by}" if each.automatic else each.by,
                when(each.since, now),
                _until(each, now),
                each.reason or "-",
            )
            for each in found
        ],
    )


def _until(pause: Pause, now: datetime) -> str:
    if pause.until is None:
        return "resumed"
    return f"a try {when(pause.until, now)}" if pause.automatic else when(pause.until, now)


def _what(queue: str, key: str | None) -> str:
    return safe(queue) if key is None else f"ordering key {safe(key)} of {safe(queue)}"


def _named(pause: Pause) -> str:
    if pause.ordering_key is not None:
        return f"its ordering key {safe(pause.ordering_key)}"
    return "its breaker" if pause.automatic else f"the whole queue, by {safe(pause.by)}"
