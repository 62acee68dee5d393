"""Redriving and deleting dead letters, and emptying queues: in chunks small enough for every store."""

from __future__ import annotations

import math
from asyncio import CancelledError, Task, create_task, shield, sleep
from collections import deque
from collections.abc import Callable, Coroutine
from time import monotonic
from typing import Any, Final

from nightmail.engine.shutdown import undisturbed
from nightmail.limits import CLAIM_BYTES, ByteBudget
from nightmail.message import check_queue
from nightmail.records import DeadFilter, DeadLetter
from nightmail.store import Inspection, Store

CHUNK: Final = 500
"""How many dead letters move, or are deleted, in one step."""
MESSAGES: Final = 10_000
"""How many waiting messages are removed in one step."""
STEPS_A_SECOND: Final = 10
"""At a given rate, how many chunks go per second, so that the load is even."""


async def redrive(
    store: Inspection,
    which: DeadFilter,
    *,
    to: str | None = None,
    limit: int | None = None,
    rate: float | None = None,
    keep_timer_ids: bool = True,
    progress: Callable[[int, int], None] = lambda moved, tried: None,
    reading: Callable[[int], None] = lambda read: None,
) -> int:
    """Move these dead letters back among the messages, to the queue `to` or where they died; how many moved.

    Those that are there when it begins, oldest first; at most `limit`, and at most `rate` a second. A dead letter that
    is held stays, and so does one whose timer id is taken by a message; of several dead letters with one timer id only
    the newest goes. With `keep_timer_ids=False` they go without their timer ids, so none stays for that.

    When the store fails half-way, what has moved has moved: the same call again moves the rest. First it looks through
    all of them, for their timer ids; `reading` hears after each page how many it has read. `progress` hears after each
    step how many have moved, and how many were tried.
    """
    if to is not None:
        check_queue(to)
    _check_limit(limit)
    if rate is not None and not (math.isfinite(rate) and rate > 0):
        raise ValueError(f"rate must be more than nothing a second, not {rate}")
    most = CHUNK if rate is None else max(min(int(rate / STEPS_A_SECOND), CHUNK), 1)
    letters_left = deque(
        await _oldest_first(store, which, to, keep_timer_ids=keep_timer_ids, reading=reading)
    )
    moved, tried, next_at = 0, 0, monotonic()
    while chunk := _next_chunk(letters_left, most if limit is None else min(most, limit - moved)):
        # Without a rate this only yields: a store that answers at once would otherwise block the event loop.
        await sleep(max(next_at - monotonic(), 0))
        begun = monotonic()
        step = create_task(_move(store, chunk, to, keep_timer_ids=keep_timer_ids))
        try:
            await _to_its_end(step)
        finally:
            if (just_moved := _what_came_of(step)) is not None:
                moved, tried = moved + just_moved, tried + len(chunk)
                progress(moved, tried)
        next_at = begun if rate is None else begun + step.result() / rate
    return moved


async def purge(
    store: Inspection,
    which: DeadFilter,
    *,
    limit: int | None = None,
    progress: Callable[[int], None] = lambda deleted: None,
) -> int:
    """Delete these dead letters, at most `limit` of them, the oldest first; how many. One that is held stays.

    `progress` hears after each step how many are deleted.
    """
    return await _in_steps(lambda size: store.purge(which, limit=size), CHUNK, limit, progress)


async def empty(
    store: Store,
    queue: str,
    *,
    limit: int | None = None,
    progress: Callable[[int], None] = lambda removed: None,
) -> int:
    """Remove what waits in this queue, at most `limit` messages; how many.

    `progress` hears after each step how many are removed.
    """
    return await _in_steps(lambda size: store.cancel_all(queue, limit=size), MESSAGES, limit, progress)


async def _in_steps(
    take: Callable[[int], Coroutine[Any, Any, int]],
    at_once: int,
    limit: int | None,
    progress: Callable[[int], None],
) -> int:
    """Take at most so many, until `limit` or until none is left; how many."""
    _check_limit(limit)
    taken = 0
    while size := at_once if limit is None else min(at_once, limit - taken):
        step = create_task(take(size))
        try:
            await _to_its_end(step)
        finally:
            if (just_taken := _what_came_of(step)) is not None:
                taken += just_taken
                progress(taken)
        # Without a limit a step that is not full is the last one: else it would go on for as long as more come.
        if step.result() < (size if limit is None else 1):
            break
        await sleep(0)
    return taken


async def _move(store: Inspection, ids: tuple[int, ...], to: str | None, *, keep_timer_ids: bool) -> int:
    letters = await store.dead(DeadFilter(ids=ids), limit=len(ids))
    return len(await store.redrive(letters[::-1], to=to, keep_timer_ids=keep_timer_ids)) if letters else 0


async def _to_its_end(step: Task[int]) -> None:
    """Wait for it, also when we are cancelled meanwhile: what it does is counted, or an operator would be told less."""
    try:
        await shield(step)
    except CancelledError:
        await undisturbed(step)
        raise


def _what_came_of(step: Task[int]) -> int | None:
    return step.result() if step.done() and not step.cancelled() and step.exception() is None else None


async def _oldest_first(
    store: Inspection,
    which: DeadFilter,
    to: str | None,
    *,
    keep_timer_ids: bool,
    reading: Callable[[int], None],
) -> list[tuple[int, int]]:
    """These dead letters as they are now, by id and size, but of those with the same timer id only the newest."""
    found: list[tuple[int, int]] = []
    names: set[tuple[str, str]] = set()
    cursor: int | None = None
    read = 0
    while page := await store.dead(which, limit=CHUNK, cursor=cursor):
        cursor = page[-1].id
        for letter in page:
            name = _name(letter, to) if keep_timer_ids else None
            if name is None or name not in names:
                found.append((letter.id, len(letter.body) + len(letter.encoded_headers)))
            if name is not None:
                names.add(name)
        read += len(page)
        reading(read)
        await sleep(0)
    return found[::-1]


def _next_chunk(letters: deque[tuple[int, int]], limit: int) -> tuple[int, ...]:
    """The ids of the next dead letters, taken off the front: as many as fit into one page."""
    budget = ByteBudget(CLAIM_BYTES)
    chunk: list[int] = []
    while len(chunk) < limit and letters and budget.take(letters[0][1]):
        chunk.append(letters.popleft()[0])
    return tuple(chunk)


def _name(letter: DeadLetter, to: str | None) -> tuple[str, str] | None:
    """The queue and timer id with which this dead letter would come back, if it has a timer id."""
    return None if letter.timer_id is None else (to or letter.queue, letter.timer_id)


def _check_limit(limit: int | None) -> None:
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be at least 1, not {limit}")
