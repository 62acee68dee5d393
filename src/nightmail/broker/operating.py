"""A broker's operator interface: dead letters and queue statistics."""

from __future__ import annotations

from abc import abstractmethod
from typing import Unpack

from nightmail.broker.counted import must_be_awaited
from nightmail.broker.option_checks import check_options
from nightmail.broker.option_help import lists_options
from nightmail.broker.options import DeadOptions
from nightmail.broker.timers import check_limit
from nightmail.durations import as_timedelta
from nightmail.engine import redriving
from nightmail.message import check_queue
from nightmail.records import DeadFilter, DeadLetter, DeadSummary, QueueStats, StoredMessage
from nightmail.store import FullStore


class Operating:
    """Lists, redrives and deletes dead letters."""

    @property
    @abstractmethod
    def store(self) -> FullStore:
        """Where dead letters are stored."""

    @must_be_awaited
    @lists_options(DeadOptions)
    async def dead_letters(
        self,
        queue: str | None = None,
        *,
        limit: int = 100,
        cursor: int | None = None,
        **which: Unpack[DeadOptions],
    ) -> list[DeadLetter]:
        """Dead letters, newest first.

        Args:
            queue: Those that died in this queue.
            limit: At most so many.
            cursor: The id of the last one seen: those after it.
        """
        check_limit(limit)
        return await self.store.dead(_filter("dead_letters()", queue, which), limit=limit, cursor=cursor)

    @must_be_awaited
    @lists_options(DeadOptions)
    async def summarize_dead(
        self, queue: str | None = None, *, limit: int = 100, **which: Unpack[DeadOptions]
    ) -> DeadSummary:
        """How many dead letters there are, and their largest groups: of one queue, one reason, one kind of error.

        Args:
            queue: Those that died in this queue.
            limit: At most so many groups.
        """
        check_limit(limit)
        return await self.store.summarize_dead(_filter("summarize_dead()", queue, which), limit=limit)

    @must_be_awaited
    @lists_options(DeadOptions)
    async def redrive(
        self,
        queue: str | None = None,
        *,
        to: str | None = None,
        limit: int | None = None,
        rate: float | None = None,
        keep_timer_ids: bool = True,
        everything: bool = False,
        **which: Unpack[DeadOptions],
    ) -> int:
        """Publish dead letters again, oldest first, to where they died or to `to`; how many went.

        Their counters restart at 0, and their headers tell where they come from. A dead letter whose timer id is taken
        again stays and is not counted; so do all but the newest of several with one timer id, and what a subscriber of
        dead letters has in flight. With `keep_timer_ids=False` they go without their timer ids.

        Args:
            queue: Those that died in this queue.
            to: Another queue to publish them to.
            limit: At most so many.
            rate: At most so many a second, so that their handlers are not flooded.
            keep_timer_ids: Whether they keep their timer ids.
            everything: All of them. Required when no condition is given.
        """
        found = _filter("redrive()", queue, which, everything=everything)
        if to is not None:
            check_queue(to)
        return await redriving.redrive(
            self.store, found, to=to, limit=limit, rate=rate, keep_timer_ids=keep_timer_ids
        )

    @must_be_awaited
    @lists_options(DeadOptions)
    async def purge_dead(
        self,
        queue: str | None = None,
        *,
        limit: int | None = None,
        everything: bool = False,
        **which: Unpack[DeadOptions],
    ) -> int:
        """Delete dead letters for good, oldest first; how many.

        Args:
            queue: Those that died in this queue.
            limit: At most so many.
            everything: All of them. Required when no condition is given.
        """
        found = _filter("purge_dead()", queue, which, everything=everything)
        return await redriving.purge(self.store, found, limit=limit)

    @must_be_awaited
    async def find(self, *ids: int) -> list[StoredMessage]:
        """The messages with these ids, waiting or running; those that are gone are left out."""
        return await self.store.find(ids)

    @must_be_awaited
    async def stats(self) -> dict[str, QueueStats]:
        """The statistics of each queue."""
        return await self.store.stats()


def _filter(what: str, queue: str | None, which: DeadOptions, *, everything: bool = True) -> DeadFilter:
    check_options(what, which, DeadOptions)
    if queue is not None:
        check_queue(queue)
    older_than, ids = which.get("older_than"), which.get("ids")
    found = DeadFilter(
        queue=queue,
        reason=which.get("reason"),
        error=which.get("error"),
        older_than=None if older_than is None else as_timedelta("older_than", older_than),
        ids=None if ids is None else tuple(ids),
    )
    if not everything and found == DeadFilter():
        raise ValueError(f"{what} needs a condition, or everything=True for all dead letters there are")
    return found
