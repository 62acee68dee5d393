"""Publishing by hand."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from nightmail.cli import audit
from nightmail.cli.exit_codes import INCOMPLETE, Refusal
from nightmail.cli.running import Session, on_store
from nightmail.cli.texts import duration, positive_duration, safe, time
from nightmail.message import Due, Message, OnConflict

JSON: Final = "application/json"
TEXT: Final = "text/plain"


@on_store(json=True, changes=True)
async def publish(
    session: Session,
    queue: Annotated[str, typer.Argument(help="The queue to publish to.")],
    body: Annotated[
        str | None, typer.Argument(help="The body: JSON, or any text. -: read it from the standard input.")
    ] = None,
    file: Annotated[Path | None, typer.Option(help="Read the body from this file.")] = None,
    in_: Annotated[
        str | None, typer.Option("--in", metavar="TIME", help="Due in: 90s, 5m, 2h30m, 7d.")
    ] = None,
    at: Annotated[str | None, typer.Option(metavar="MOMENT", help="Due at: 2026-11-17T10:00:00Z.")] = None,
    timer_id: Annotated[str | None, typer.Option(help="At most one message of a queue owns it.")] = None,
    on_conflict: Annotated[OnConflict, typer.Option(help="If the timer id is taken.")] = "skip",
    header: Annotated[list[str] | None, typer.Option(metavar="NAME=TEXT", help="A header.")] = None,
    content_type: Annotated[
        str | None, typer.Option(help=f"Default: {JSON} if the body is JSON, else {TEXT}.")
    ] = None,
    priority: Annotated[int, typer.Option(min=0, max=9, help="9 goes first.")] = 0,
    ordering_key: Annotated[
        str | None, typer.Option(help="Messages with one key go one after another.")
    ] = None,
    expires_in: Annotated[str | None, typer.Option(metavar="TIME", help="Not delivered after that.")] = None,
) -> int | None:
    """Publish one message, as `broker.publish` does. Prints its id."""
    content = _content(body, file)
    message = Message(
        queue=queue,
        body=content,
        headers={"content-type": content_type or _content_type(content), **_headers(header or [])},
        due=due_from(in_, at),
        timer_id=timer_id,
        on_conflict=on_conflict,
        ordering_key=ordering_key,
        priority=priority,
        expires_in=None if expires_in is None else positive_duration(expires_in),
    )
    async with session.chosen.ready(adopt=True) as store:
        id_ = await store.publish(message)
        if id_ is not None:
            audit.changed(session, "publish", queue=queue, ids=[id_], count=1)
    if session.out.as_json:
        session.out.json({"id": id_})
    elif id_ is not None:
        session.out.say(str(id_))
    if id_ is None:
        session.out.note("nothing was published: the timer id is taken (--on-conflict says what to do then)")
        return INCOMPLETE
    return None


def due_from(in_: str | None, at: str | None) -> Due:
    """When, from what was typed."""
    if in_ is not None and at is not None:
        raise Refusal("give --in or --at, not both")
    if at is not None:
        return time(at)
    return None if in_ is None else duration(in_)


def _content(body: str | None, file: Path | None) -> bytes:
    if body is not None and file is not None:
        raise Refusal("give the body or --file, not both")
    if file is not None:
        try:
            return file.read_bytes()
        except OSError as error:
            raise Refusal(f"{safe(file)} cannot be read: {error.strerror}") from error
    if body == "-":
        return sys.stdin.buffer.read()
    if body is None:
        raise Refusal("give the body: as an argument, with --file, or - to read the standard input")
    return body.encode(errors="surrogateescape")


def _content_type(body: bytes) -> str:
    try:
        json.loads(body)
    except (ValueError, RecursionError):
        return TEXT
    return JSON


def _headers(given: list[str]) -> dict[str, str]:
    headers = {}
    for each in given:
        name, separator, value = each.partition("=")
        if not name or not separator:
            raise Refusal(f"a header is name=text, not {safe(each)}")
        headers[name] = value
    return headers
