"""Dead letters: look, send round again, delete."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Final

import typer

from nightmail.cli import audit
from nightmail.cli.confirming import confirm
from nightmail.cli.exit_codes import DONE, INCOMPLETE, NOT_FOUND, Refusal
from nightmail.cli.messages import Body, check_id, facts_of
from nightmail.cli.output import headers_of, plain, shown_body, with_content
from nightmail.cli.progress import counting, told_if_interrupted
from nightmail.cli.running import Session, on_store
from nightmail.cli.texts import positive_duration, safe
from nightmail.engine import redriving
from nightmail.message import check_queue
from nightmail.records import DeadFilter, DeadLetter, DeadSummary
from nightmail.store import FullStore
from nightmail.wording import count, several, when

app = typer.Typer(help="Dead letters: list, group, send round again, delete.", no_args_is_help=True)

_FILTER: Final = "Which"
_SAMPLE: Final = 5
"""How many groups a preview shows, and of each one dead letter."""
Queue = Annotated[str | None, typer.Argument(help="Those that died in this queue.")]
Reason = Annotated[str | None, typer.Option(help="Those with this reason.", rich_help_panel=_FILTER)]
Error = Annotated[
    str | None, typer.Option(metavar="TEXT", help="Those whose error contains this.", rich_help_panel=_FILTER)
]
OlderThan = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="Those that died longer ago: 2h, 7d.", rich_help_panel=_FILTER),
]
Ids = Annotated[
    list[int] | None,
    typer.Option("--id", metavar="ID", help="This one. May be repeated.", rich_help_panel=_FILTER),
]
Everything = Annotated[
    bool, typer.Option("--everything", help="All there are, without any condition.", rich_help_panel=_FILTER)
]
Limit = Annotated[int | None, typer.Option(min=1, help="At most so many, the oldest first.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")]


@app.command("list")
@on_store(json=True)
async def list_dead(
    session: Session,
    queue: Queue = None,
    reason: Reason = None,
    error: Error = None,
    older_than: OlderThan = None,
    ids: Ids = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="At most so many.")] = 20,
    before: Annotated[
        int | None, typer.Option(metavar="ID", help="Those older than this one: the next page.")
    ] = None,
    body: Body = False,
) -> None:
    """List dead letters, newest first."""
    which = filter_of(queue, reason, error, older_than, ids)
    if before is not None:
        check_id(before)
    async with session.chosen.ready() as store:
        found = await store.dead(which, limit=limit, cursor=before)
    if session.out.as_json:
        session.out.json([with_content(each) if body else plain(each) for each in found])
        return
    if not found:
        session.out.note(_none(which))
        return
    now = datetime.now(UTC)
    columns = ("id", "queue", "died", "reason", "attempts", "error", *(("headers", "body") if body else ()))
    session.out.table(columns, [_row(each, now, body=body) for each in found], right=frozenset({"attempts"}))
    if len(found) == limit:
        session.out.note(f"older ones: --before {found[-1].id}; by cause: `nightmail dead groups`")


def _row(letter: DeadLetter, now: datetime, *, body: bool) -> list[object]:
    shown: list[object] = [
        letter.id,
        letter.queue,
        when(letter.died_at, now),
        letter.reason,
        letter.attempts,
        "-" if letter.error is None else safe(letter.error),
    ]
    return [*shown, headers_of(letter), shown_body(letter.body)] if body else shown


@app.command("show")
@on_store(json=True)
async def show_dead(
    session: Session,
    id_: Annotated[int, typer.Argument(metavar="ID", help="The dead letter's id.")],
    body: Body = False,
) -> None:
    """Show all that is known of one dead letter."""
    check_id(id_)
    async with session.chosen.ready() as store:
        found = await store.dead(DeadFilter(ids=(id_,)))
    if not found:
        raise Refusal(f"there is no dead letter {id_}. `nightmail dead list` shows what there is", NOT_FOUND)
    if session.out.as_json:
        session.out.json(with_content(found[0]) if body else plain(found[0]))
        return
    session.out.facts(facts_of(found[0], datetime.now(UTC), body=body))


@app.command("groups")
@on_store(json=True)
async def groups(
    session: Session,
    queue: Queue = None,
    reason: Reason = None,
    error: Error = None,
    older_than: OlderThan = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="At most so many groups.")] = 20,
) -> None:
    """Count dead letters by cause: queue, reason and error. In an error, # stands for what has digits in it."""
    which = filter_of(queue, reason, error, older_than, None)
    async with session.chosen.ready() as store:
        summary = await store.summarize_dead(which, limit=limit)
    if session.out.as_json:
        session.out.json(summary)
    elif not summary.count:
        session.out.note(_none(which))
    else:
        _print_groups(session, summary)
        session.out.note(
            "send a group round again: `nightmail dead redrive QUEUE --reason REASON --error TEXT`"
        )


def _print_groups(session: Session, summary: DeadSummary) -> None:
    now = datetime.now(UTC)
    session.out.table(
        ("count", "queue", "reason", "error", "last died", "for example"),
        [
            (
                count(group.count),
                group.queue,
                group.reason,
                "-" if group.fingerprint is None else group.fingerprint,
                when(group.last_died_at, now),
                group.newest,
            )
            for group in summary.groups
        ],
        right=frozenset({"count"}),
    )
    listed = sum(group.count for group in summary.groups)
    if listed < summary.count:
        session.out.note(f"and {count(summary.count - listed)} in other groups")


@app.command("redrive")
@on_store(changes=True)
async def redrive(
    session: Session,
    queue: Queue = None,
    reason: Reason = None,
    error: Error = None,
    older_than: OlderThan = None,
    ids: Ids = None,
    everything: Everything = False,
    to: Annotated[
        str | None, typer.Option(metavar="QUEUE", help="Send them there, not to where they died.")
    ] = None,
    rate: Annotated[
        float | None, typer.Option(help="At most so many a second, so that handlers are not flooded.")
    ] = None,
    limit: Limit = None,
    drop_timer_ids: Annotated[
        bool,
        typer.Option("--drop-timer-ids", help="Without their timer ids: then none stays for a taken one."),
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> int:
    """Send dead letters round again, oldest first. Shows what, asks, and can be interrupted and repeated."""
    which = filter_of(queue, reason, error, older_than, ids)
    if to is not None:
        check_queue(to)
    if rate is not None and rate <= 0:
        raise Refusal("--rate is how many a second: more than 0")
    async with session.chosen.ready(adopt=True) as store:
        wanted = await _preview(session, store, which, limit, everything=everything)
        if not wanted or dry_run:
            return DONE
        pace = "" if rate is None else f", {rate:g} a second"
        target = "where they died" if to is None else safe(to)
        confirm(f"send {several(wanted, 'dead letter')} to {target}{pace}", yes=yes)
        with (
            counting("redriven", wanted) as counter,
            audit.counted(session, "dead redrive", counter, queue=queue, to=to, ids=ids),
            told_if_interrupted(session.out, counter),
        ):
            moved = await redriving.redrive(
                store,
                which,
                to=to,
                # Not more than was agreed to, whatever dies meanwhile.
                limit=wanted,
                rate=rate,
                keep_timer_ids=not drop_timer_ids,
                progress=lambda moved, _: counter(moved),
                reading=counter.preparing,
            )
    session.out.say(f"{count(moved)} sent round again")
    if moved >= wanted:
        return DONE
    session.out.note(
        f"{count(wanted - moved)} stay: a worker holds them, their timer id is taken (see --drop-timer-ids), "
        "or they went meanwhile"
    )
    return INCOMPLETE


@app.command("purge")
@on_store(changes=True)
async def purge(
    session: Session,
    queue: Queue = None,
    reason: Reason = None,
    error: Error = None,
    older_than: OlderThan = None,
    ids: Ids = None,
    everything: Everything = False,
    limit: Limit = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> int:
    """Delete dead letters for good, oldest first. Shows what, asks, and can be interrupted and repeated."""
    which = filter_of(queue, reason, error, older_than, ids)
    async with session.chosen.ready(adopt=True) as store:
        wanted = await _preview(session, store, which, limit, everything=everything)
        if not wanted or dry_run:
            return DONE
        confirm(f"delete {several(wanted, 'dead letter')} for good", yes=yes)
        with (
            counting("deleted", wanted) as counter,
            audit.counted(session, "dead purge", counter, queue=queue, ids=ids),
            told_if_interrupted(session.out, counter),
        ):
            # Not more than was agreed to, whatever dies meanwhile.
            deleted = await redriving.purge(store, which, limit=wanted, progress=counter)
    session.out.say(f"{count(deleted)} deleted")
    if deleted >= wanted:
        return DONE
    session.out.note(f"{count(wanted - deleted)} stay: a worker holds them, or they went meanwhile")
    return INCOMPLETE


def filter_of(
    queue: str | None,
    reason: str | None,
    error: str | None,
    older_than: str | None,
    ids: list[int] | None,
) -> DeadFilter:
    """The conditions that were typed. One that is empty would match everything, and is refused."""
    if queue is not None:
        check_queue(queue)
    for name, text in (("--reason", reason), ("--error", error)):
        if text is not None and not text.strip():
            raise Refusal(f"{name} is empty: leave it out, or say what to look for")
    for id_ in ids or ():
        check_id(id_)
    return DeadFilter(
        queue=queue,
        reason=reason,
        error=error,
        older_than=None if older_than is None else positive_duration(older_than),
        ids=tuple(ids) if ids else None,
    )


def _none(which: DeadFilter) -> str:
    return "there are no dead letters" if which == DeadFilter() else "no such dead letters"


async def _preview(
    session: Session, store: FullStore, which: DeadFilter, limit: int | None, *, everything: bool
) -> int:
    """Show which dead letters are meant, by cause, and one of each; how many of them will be taken."""
    if (which == DeadFilter()) != everything:
        raise Refusal(
            "--everything goes with no condition: leave one of them out"
            if everything
            else "which dead letters? Give a queue, --reason, --error, --older-than or --id; or --everything"
        )
    summary = await store.summarize_dead(which, limit=_SAMPLE)
    if not summary.count:
        if which.ids is not None:
            ids = ", ".join(map(str, which.ids))
            raise Refusal(
                f"no such dead letters: {ids}. `nightmail dead list` shows what there is", NOT_FOUND
            )
        session.out.note(_none(which))
        return 0
    _print_groups(session, summary)
    await _print_examples(session, store, summary)
    wanted = summary.count if limit is None else min(limit, summary.count)
    if wanted < summary.count:
        session.out.note(f"of these {count(summary.count)}, the oldest {count(wanted)}")
    elif not everything and summary.count == sum(each.dead for each in (await store.stats()).values()):
        session.out.note(f"that is all there are in the store: {count(summary.count)}")
    return wanted


async def _print_examples(session: Session, store: FullStore, summary: DeadSummary) -> None:
    """The newest of each group, without its body."""
    ids = tuple(group.newest for group in summary.groups)
    letters = {letter.id: letter for letter in await store.dead(DeadFilter(ids=ids), limit=len(ids))}
    now = datetime.now(UTC)
    session.out.table(
        ("for example", "queue", "died", "error"),
        [
            (id_, letter.queue, when(letter.died_at, now), _first_line(letter.error))
            for id_ in ids
            # It may have gone meanwhile, or be too large for one page with the others.
            if (letter := letters.get(id_)) is not None
        ],
    )


def _first_line(error: str | None) -> str:
    return "-" if error is None else error.partition("\n")[0]
