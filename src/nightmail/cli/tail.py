"""Follows what becomes due, and what dies."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final

import typer

from nightmail.cli.exit_codes import line_of
from nightmail.cli.messages import Body
from nightmail.cli.output import headers_of, plain, shown_body, with_content
from nightmail.cli.running import Session, on_store
from nightmail.cli.texts import positive_duration, safe
from nightmail.errors import StoreUnavailable
from nightmail.message import check_queue
from nightmail.records import DeadFilter, DeadLetter, PendingMessage
from nightmail.store import FullStore
from nightmail.wording import moment

_PAGE: Final = 500
_LETTERS: Final = 20
_PAGES: Final = 20
"""How many pages are read at one look. More than that is not followed by eye: the rest is left out."""
_OVERLAP: Final = timedelta(seconds=5)


@on_store(json=True)
async def tail(
    session: Session,
    queue: Annotated[str | None, typer.Argument(help="Only this queue.")] = None,
    dead: Annotated[bool, typer.Option("--dead", help="Only what dies.")] = False,
    every: Annotated[str, typer.Option(metavar="TIME", help="How often to look.")] = "1s",
    body: Body = False,
) -> None:
    """Follow messages as they become due, first or again, and as they die; until Ctrl-C.

    A message that a worker took before the next look is not seen: an idle system shows what is late, and what fails.
    """
    if queue is not None:
        check_queue(queue)
    seconds = positive_duration(every).total_seconds()
    async with session.chosen.ready() as store:
        await follow(session, store, queue, only_dead=dead, seconds=seconds, body=body)


async def follow(
    session: Session,
    store: FullStore,
    queue: str | None,
    *,
    seconds: float,
    only_dead: bool = False,
    body: bool = False,
) -> None:
    """Print what comes, without end. An outage is told, too, and ends nothing."""
    followed = Followed(store, queue, only_dead=only_dead)
    await followed.begin()
    session.out.note(f"following {'all queues' if queue is None else safe(queue)}; Ctrl-C ends")
    while True:
        await asyncio.sleep(seconds)
        try:
            came = await followed.look()
        except StoreUnavailable as error:
            session.out.warn(line_of(error, session.chosen.where))
            continue
        for each in came:
            _print(session, each, body=body)


class Followed:
    """What came since the last look."""

    def __init__(self, store: FullStore, queue: str | None, *, only_dead: bool) -> None:
        self._store = store
        self._queue = queue
        self._only_dead = only_dead
        self._seen: set[tuple[datetime, int]] = set()
        self._newest = 0

    async def begin(self) -> None:
        """Begin with what comes from now on."""
        letters = await self._store.dead(DeadFilter(queue=self._queue), limit=1)
        self._newest = letters[0].id if letters else 0
        await self._due()

    async def look(self) -> list[PendingMessage | DeadLetter]:
        """What became due, then what died, oldest first."""
        waiting = [] if self._only_dead else await self._due()
        return [*waiting, *await self._died()]

    async def _due(self) -> list[PendingMessage]:
        """Due lately, and not seen yet. By our own clock: hence a few seconds twice, in case the store's is behind."""
        now = datetime.now(UTC)
        cursor = (now - _OVERLAP, 0)
        found: list[PendingMessage] = []
        for _ in range(_PAGES):
            page = await self._store.peek(self._queue, due_before=now, limit=_PAGE, cursor=cursor)
            found += page
            if len(page) < _PAGE:
                break
            cursor = (page[-1].due_at, page[-1].id)
        places = {(each.due_at, each.id): each for each in found}
        new = [each for place, each in places.items() if place not in self._seen]
        self._seen = set(places)
        return new

    async def _died(self) -> list[DeadLetter]:
        """Newest first, page by page, down to the last one seen."""
        new: list[DeadLetter] = []
        for _ in range(_PAGES):
            cursor = new[-1].id if new else None
            page = await self._store.dead(DeadFilter(queue=self._queue), limit=_LETTERS, cursor=cursor)
            later = [letter for letter in page if letter.id > self._newest]
            new += later
            if not page or len(later) < len(page):
                break
        if new:
            self._newest = new[0].id
        return new[::-1]


def _print(session: Session, found: PendingMessage | DeadLetter, *, body: bool) -> None:
    kind = "dead" if isinstance(found, DeadLetter) else "due"
    if session.out.as_json:
        shown = with_content(found) if body else plain(found)
        session.out.json({"event": kind, **shown}, compact=True)
        return
    at = found.died_at if isinstance(found, DeadLetter) else found.due_at
    parts = [moment(at), kind, str(found.id), safe(found.queue)]
    if isinstance(found, DeadLetter):
        parts += [safe(found.reason), safe(found.error or "-")]
    else:
        parts += [f"attempt {found.attempts + 1}", safe(found.timer_id or "-")]
    if body:
        parts += [safe(headers_of(found)), shown_body(found.body)]
    session.out.say("\t".join(parts))
