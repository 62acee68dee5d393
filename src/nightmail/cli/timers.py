"""Changes to waiting messages."""

from __future__ import annotations

from typing import Annotated

import typer

from nightmail.cli import audit
from nightmail.cli.confirming import confirm
from nightmail.cli.exit_codes import NOT_FOUND, Refusal
from nightmail.cli.progress import counting, told_if_interrupted
from nightmail.cli.publishing import due_from
from nightmail.cli.running import Session, on_store
from nightmail.cli.texts import safe
from nightmail.engine import redriving
from nightmail.message import check_queue
from nightmail.operations.shell import command
from nightmail.records import QueueStats
from nightmail.wording import count, several

Queue = Annotated[str, typer.Argument(help="The queue.")]


@on_store(changes=True)
async def cancel(
    session: Session,
    queue: Queue,
    timer_id: Annotated[str | None, typer.Argument(help="The timer id of the message to remove.")] = None,
    everything: Annotated[
        bool, typer.Option("--everything", help="Remove all that waits in the queue. Asks first.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove a waiting message by its timer id, or all that waits in a queue. What runs is left alone."""
    check_queue(queue)
    if (timer_id is None) != everything:
        raise Refusal("cancel what? Give a timer id, or --everything for all that waits in the queue")
    async with session.chosen.ready(adopt=True) as store:
        if timer_id is not None:
            if not await store.cancel(queue, timer_id):
                raise Refusal(_no_timer(queue, timer_id), NOT_FOUND)
            audit.changed(session, "cancel", queue=queue, count=1)
            session.out.say(f"{safe(timer_id)} of {safe(queue)} is cancelled")
            return
        stats = (await store.stats()).get(queue, QueueStats())
        waiting = stats.ready + stats.scheduled
        if not waiting:
            session.out.say(f"nothing waits in {safe(queue)}")
            return
        confirm(f"remove {several(waiting, 'waiting message')} of {safe(queue)}, for good", yes=yes)
        with (
            counting("removed", waiting) as counter,
            audit.counted(session, "cancel everything", counter, queue=queue),
            told_if_interrupted(session.out, counter),
        ):
            # Not more than was agreed to, whatever is published meanwhile.
            removed = await redriving.empty(store, queue, limit=waiting, progress=counter)
    session.out.say(f"{count(removed)} removed")


@on_store(changes=True)
async def reschedule(
    session: Session,
    queue: Queue,
    timer_id: Annotated[str, typer.Argument(help="The timer id of the message to move.")],
    in_: Annotated[
        str | None, typer.Option("--in", metavar="TIME", help="Due in: 90s, 5m, 2h30m, 7d.")
    ] = None,
    at: Annotated[str | None, typer.Option(metavar="MOMENT", help="Due at: 2026-11-17T10:00:00Z.")] = None,
) -> None:
    """Move a waiting message to another due time, by its timer id."""
    due = due_from(in_, at)
    if due is None:
        raise Refusal("say when: --in 5m, or --at 2026-11-17T10:00:00Z")
    async with session.chosen.ready(adopt=True) as store:
        if not await store.reschedule(queue, timer_id, due):
            raise Refusal(_no_timer(queue, timer_id), NOT_FOUND)
        audit.changed(session, "reschedule", queue=queue, count=1)
    session.out.say(f"{safe(timer_id)} of {safe(queue)} is moved")


def _no_timer(queue: str, timer_id: str) -> str:
    return (
        f"no message with the timer id {safe(timer_id)} waits in {safe(queue)}: it runs, or is gone. "
        f"`{command('list', queue)}` shows what waits"
    )
