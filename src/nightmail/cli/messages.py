"""Messages that wait or run."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Final

import typer

from nightmail.cli.exit_codes import NOT_FOUND, Refusal
from nightmail.cli.output import headers_of, plain, shown_body, with_content
from nightmail.cli.running import Session, on_store
from nightmail.cli.texts import duration, safe, time
from nightmail.message import check_queue
from nightmail.records import DeadFilter, DeadLetter, PendingMessage, StoredMessage
from nightmail.wording import count, when

Body = Annotated[
    bool, typer.Option("--body", help="Show bodies and headers, which may hold what is private.")
]
_MOST: Final = 1000
_COLUMNS = ("id", "queue", "due", "priority", "attempts", "timer id", "ordering key", "bytes")


@on_store(json=True)
async def list_waiting(
    session: Session,
    queue: Annotated[str | None, typer.Argument(help="Only this queue.")] = None,
    timer_id: Annotated[str | None, typer.Option(help="Only the message that owns this timer id.")] = None,
    due_within: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only what is due by then: 0s, 5m, 2h.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=_MOST, help="At most so many.")] = 20,
    after: Annotated[
        str | None, typer.Option(metavar="MOMENT/ID", help="Those after this one: the next page.")
    ] = None,
    body: Body = False,
) -> None:
    """List what waits, by due time. Nothing is taken."""
    if queue is not None:
        check_queue(queue)
    now = datetime.now(UTC)
    before = None if due_within is None else _ahead(now, due_within)
    async with session.chosen.ready() as store:
        found = await store.peek(
            queue, timer_id=timer_id, due_before=before, limit=limit, cursor=_cursor(after)
        )
    if session.out.as_json:
        session.out.json([with_content(each) if body else plain(each) for each in found])
        return
    if not found:
        session.out.note("nothing waits there")
        return
    columns = (*_COLUMNS, "headers", "body") if body else _COLUMNS
    session.out.table(
        columns,
        [_row(each, now, body=body) for each in found],
        right=frozenset({"priority", "attempts", "bytes"}),
    )
    if len(found) == limit:
        last = found[-1]
        session.out.note(
            f"the next page: --after {plain(last.due_at)}/{last.id}; `nightmail status` counts all"
        )


def _ahead(now: datetime, typed: str) -> datetime:
    try:
        return now + duration(typed)
    except OverflowError:
        raise Refusal(f"{safe(typed)} is too long") from None


def _cursor(typed: str | None) -> tuple[datetime, int] | None:
    if typed is None:
        return None
    at, _, id_ = typed.partition("/")
    if not id_.isdecimal():
        raise Refusal(f"--after is a moment and an id, as the page before showed it, not {safe(typed)}")
    last = int(id_)
    check_id(last)
    return time(at), last


def _row(message: PendingMessage, now: datetime, *, body: bool) -> list[object]:
    shown: list[object] = [
        message.id,
        message.queue,
        when(message.due_at, now),
        message.priority,
        message.attempts,
        message.timer_id or "-",
        message.ordering_key or "-",
        count(len(message.body)),
    ]
    return [*shown, headers_of(message), shown_body(message.body)] if body else shown


@on_store(json=True)
async def show(
    session: Session,
    id_: Annotated[int, typer.Argument(metavar="ID", help="A message's id, or a dead letter's.")],
    body: Body = False,
) -> None:
    """Show all that is known of a message: waiting, running or dead."""
    check_id(id_)
    async with session.chosen.ready() as store:
        messages = await store.find([id_])
        letters = await store.dead(DeadFilter(ids=(id_,)))
    if not messages and not letters:
        raise Refusal(
            f"there is no message and no dead letter {id_}: it was delivered, cancelled or purged, or never was. "
            "`nightmail dead list` and `nightmail list` show what there is",
            NOT_FOUND,
        )
    if session.out.as_json:
        answer = [
            {"kind": kind, **(with_content(each) if body else plain(each))}
            for kind, some in (("message", messages), ("dead letter", letters))
            for each in some
        ]
        session.out.json(answer)
        return
    now = datetime.now(UTC)
    found: list[StoredMessage | DeadLetter] = [*messages, *letters]
    for number, each in enumerate(found):
        if number:
            session.out.say("")
        # Ids of messages and of dead letters are counted apart on some stores: both may be there.
        session.out.facts(facts_of(each, now, body=body))


def check_id(id_: int) -> None:
    """Refuse a number that no message and no dead letter can have."""
    if not 0 <= id_ < 2**63:
        raise Refusal(f"{id_} is no id of a message or a dead letter")


def facts_of(found: StoredMessage | DeadLetter, now: datetime, *, body: bool) -> dict[str, object]:
    """All that is known of a message or a dead letter, for a person."""
    facts = _of_message(found, now) if isinstance(found, StoredMessage) else _of_letter(found, now)
    facts["timer id"] = found.timer_id or "-"
    facts["ordering key"] = found.ordering_key or "-"
    facts["priority"] = found.priority
    facts["published"] = when(found.published_at, now)
    for name, at in (("first attempt", found.first_attempt_at), ("last attempt", found.last_attempt_at)):
        if at is not None:
            facts[name] = when(at, now)
    if isinstance(found, StoredMessage) and found.last_error is not None:
        facts["last error"] = found.last_error
    facts["attempts"] = found.attempts
    facts["deliveries"] = found.deliveries
    if body:
        facts["headers"] = headers_of(found)
        facts["body"] = shown_body(found.body)
    else:
        facts["body"] = f"{len(found.body):,} bytes (--body shows it)"
    return facts


def _of_message(message: StoredMessage, now: datetime) -> dict[str, object]:
    facts: dict[str, object] = {"message": message.id, "queue": message.queue, "state": _state(message, now)}
    facts["due"] = when(message.due_at, now)
    if message.expires_at is not None:
        facts["expires"] = when(message.expires_at, now)
    return facts


def _state(message: StoredMessage, now: datetime) -> str:
    superseded = ", replaced by a newer one" if message.superseded else ""
    if message.lease_until is None:
        return f"{'scheduled' if message.due_at > now else 'ready'}{superseded}"
    if message.running:
        return f"running, leased until {when(message.lease_until, now)}{superseded}"
    return f"its worker was lost: the lease expired {when(message.lease_until, now)}{superseded}"


def _of_letter(letter: DeadLetter, now: datetime) -> dict[str, object]:
    return {
        "dead letter": letter.id,
        "message": letter.message_id,
        "queue": letter.queue,
        "died": when(letter.died_at, now),
        "reason": safe(letter.reason),
        "error": "-" if letter.error is None else safe(letter.error, 2000),
    }
