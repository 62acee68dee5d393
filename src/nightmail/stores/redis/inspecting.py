"""Operator queries."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from heapq import nlargest, nsmallest
from typing import Any

from nightmail.limits import ByteBudget
from nightmail.records import (
    DeadFilter,
    DeadLetter,
    DeadSummary,
    PendingMessage,
    QueueStats,
    StoredMessage,
)
from nightmail.stores.redis.ids import digits
from nightmail.stores.redis.lane import Lane, call_each
from nightmail.stores.redis.letter_records import letter_records
from nightmail.stores.redis.nodes import Nodes
from nightmail.stores.redis.records import records, stored_messages, text
from nightmail.stores.redis.registry import Registry
from nightmail.stores.redis.requests import Argument, Call
from nightmail.stores.redis.script_calls import ScriptCalls
from nightmail.stores.redis.times import micros, time_micros, time_of
from nightmail.stores.shared.dead_groups import DeadGroups


class Inspecting:
    """The queries of `Inspection`: one call for each queue."""

    def __init__(self, lane: Lane, registry: Registry, calls: ScriptCalls, nodes: Nodes) -> None:
        self._lane = lane
        self._registry = registry
        self._calls = calls
        self._nodes = nodes

    async def peek(
        self,
        queue: str | None,
        *,
        timer_id: str | None,
        due_before: datetime | None,
        limit: int,
        cursor: tuple[datetime, int] | None,
    ) -> list[PendingMessage]:
        """See `Inspection.peek`."""
        if limit <= 0:
            return []
        before = "" if due_before is None else str(time_micros(due_before))
        after = ("", "") if cursor is None else (time_micros(cursor[0]), digits(cursor[1]))
        waiting: list[PendingMessage] = []
        names = await self._queues(queue)
        calls = [
            self._calls.call("peek", [self._calls.keys.tag(name)], limit, before, timer_id or "", *after)
            for name in names
        ]
        for name, found in zip(names, await call_each(self._lane, self._nodes, calls), strict=True):
            waiting += [record.pending(name) for record in records(found)]
        return nsmallest(limit, waiting, key=lambda message: (message.due_at, message.id))

    async def find(self, ids: Sequence[int]) -> list[StoredMessage]:
        """See `Inspection.find`. An id does not say in which queue the message is: each is asked."""
        if not ids:
            return []
        names = await self._registry.queues()
        wanted = [digits(id_) for id_ in dict.fromkeys(ids)]
        calls = [self._calls.call("find", [self._calls.keys.tag(name)], *wanted) for name in names]
        found: list[StoredMessage] = []
        for name, reply in zip(names, await call_each(self._lane, self._nodes, calls), strict=True):
            found += stored_messages(reply, name)
        return sorted(found, key=lambda message: message.id)

    async def dead(
        self, which: DeadFilter, *, limit: int, cursor: int | None, max_bytes: int
    ) -> list[DeadLetter]:
        """See `Inspection.dead`."""
        if limit <= 0 or which.ids == ():
            return []
        page: list[DeadLetter] = []
        lowest = 0
        for name in await self._queues(which.queue):
            found, cut_short = await self._dead_of(name, which, limit, cursor, max_bytes)
            if cut_short:
                # This queue has more below its last one: those of other queues below that come with the next page.
                lowest = max(lowest, found[-1].id)
            budget = ByteBudget(max_bytes)
            newest = nlargest(limit, page + found, key=lambda letter: letter.id)
            page = [each for each in newest if budget.take(len(each.body) + len(each.encoded_headers))]
            if budget.spent:
                lowest = max(lowest, page[-1].id)
        return [letter for letter in page if letter.id >= lowest]

    async def _dead_of(
        self, queue: str, which: DeadFilter, limit: int, cursor: int | None, max_bytes: int
    ) -> tuple[list[DeadLetter], bool]:
        """The newest of one queue, and whether the byte limit left out more."""
        found: list[DeadLetter] = []
        left = max_bytes
        below = b"" if cursor is None else digits(cursor)
        while True:
            call = self._calls.call(
                "dead",
                [self._calls.keys.tag(queue)],
                limit - len(found),
                below,
                *_filters(which),
                left,
                *_ids(which),
            )
            ((below, part, cut_short),) = await self._lane.run(call)
            letters = [record.letter(queue) for record in letter_records(part)]
            left -= sum(len(letter.body) + len(letter.encoded_headers) for letter in letters)
            found += letters
            if cut_short or (found and left <= 0):
                return found, True
            if not below or len(found) >= limit:
                return found, False

    async def summarize_dead(self, which: DeadFilter, *, limit: int) -> DeadSummary:
        """See `Inspection.summarize_dead`.

        Groups are kept with the dead letters. The letters are read only where groups do not say enough: for a text in
        the error, for given ids, and where other software has changed the groups.
        """
        groups = DeadGroups(time_of)
        if which.ids == ():
            return groups.summary(limit)
        names = await self._queues(which.queue)
        if which.error is None and which.ids is None:
            names = await self._add_groups(names, which, groups)
        for name in names:
            await self._group_errors(name, which, groups)
        return groups.summary(limit)

    async def _add_groups(self, names: Sequence[str], which: DeadFilter, groups: DeadGroups) -> list[str]:
        """Add the groups of these queues; returns those left out, because not every dead letter there is in a group."""
        age, reason, _ = _filters(which)

        def call(name: str, cursor: bytes) -> Call:
            return self._calls.call("dead_groups", [self._calls.keys.tag(name)], cursor, age, reason)

        left_out: list[str] = []
        replies = await call_each(self._lane, self._nodes, [call(name, b"0") for name in names])
        for name, reply in zip(names, replies, strict=True):
            cursor, incomplete, *found = reply
            if incomplete:
                left_out.append(name)
                continue
            seen = _add_new(groups, name, found, set())
            while cursor != b"0":
                ((cursor, _, *found),) = await self._lane.run(call(name, cursor))
                _add_new(groups, name, found, seen)
        return left_out

    async def _group_errors(self, queue: str, which: DeadFilter, groups: DeadGroups) -> None:
        below: bytes | None = b""
        while below is not None:
            call = self._calls.call(
                "dead_errors",
                [self._calls.keys.tag(queue)],
                below,
                *_filters(which),
                *_ids(which),
            )
            ((go_on, *found),) = await self._lane.run(call)
            for at in range(0, len(found), 6):
                _add(groups, queue, *found[at : at + 6])
            below = go_on or None

    async def stats(self) -> dict[str, QueueStats]:
        """See `Inspection.stats`."""
        stats: dict[str, QueueStats] = {}
        names = await self._registry.queues()
        calls = [self._calls.call("stats", [self._calls.keys.tag(name)]) for name in names]
        for name, found in zip(names, await call_each(self._lane, self._nodes, calls), strict=True):
            ready, scheduled, running, superseded, dead, age = (int(number) for number in found)
            stats[name] = QueueStats(
                ready=ready,
                scheduled=scheduled,
                running=running,
                superseded=superseded,
                dead=dead,
                oldest_due_age=None if age < 0 else timedelta(microseconds=age),
            )
        return {name: standing for name, standing in stats.items() if standing != QueueStats()}

    async def _queues(self, queue: str | None) -> Sequence[str]:
        return await self._registry.queues() if queue is None else [queue]


def _add_new(groups: DeadGroups, queue: str, found: Sequence[Any], seen: set[bytes]) -> set[bytes]:
    """Add those groups of a reply that have not been seen; those that have been seen now."""
    for at in range(0, len(found), 7):
        if found[at] not in seen:
            seen.add(found[at])
            _add(groups, queue, *found[at + 1 : at + 7])
    return seen


def _add(
    groups: DeadGroups,
    queue: str,
    reason: bytes,
    mark: bytes,
    count: int,
    first: bytes,
    last: bytes,
    newest: bytes,
) -> None:
    why = text(mark[1:]) if mark else None
    groups.add(queue, text(reason), why, count, float(first), float(last), int(newest, 16))


def _filters(which: DeadFilter) -> tuple[Argument, ...]:
    """The conditions on age, reason and error, as the scripts take them."""
    return (
        "" if which.older_than is None else micros(which.older_than),
        "" if which.reason is None else f"!{which.reason}",
        "" if which.error is None else f"!{which.error}",
    )


def _ids(which: DeadFilter) -> list[bytes]:
    """The only ids to look at, newest first."""
    return sorted({digits(id_) for id_ in which.ids or ()}, reverse=True)
