"""Moves what waits in the tables of faststream-outbox into ours, while they are in use.

A batch is one transaction: rows that are not held are locked, published here, and deleted there. Whenever this process
dies, a row is there or here, never in both and never in neither, and the next run goes on with what is left. Old
workers skip the rows that we have locked, and we skip theirs.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final, Self, TypeAlias, TypeVar

from nightmail.errors import NightmailError
from nightmail.message import Message
from nightmail.moving.records import Census, Moved, OldTables, QueueCensus, Stuck
from nightmail.moving.rows import COLUMNS, DEAD_COLUMNS, as_message, quoted
from nightmail.store import Store
from nightmail.stores import TableNames
from nightmail.stores.postgres.connect import connector
from nightmail.stores.postgres.errors import LOOK_AGAIN
from nightmail.stores.postgres.lane import Lane
from nightmail.stores.postgres.link import Link, Role
from nightmail.stores.sql.statements import Statement, load
from nightmail.stores.sql.verbs import Ask

T = TypeVar("T")

BATCH: Final = 200
# Others may wait for a row of the batch, so we do not wait for them: Postgres would end one of us after a second, and
# it might not be us.
MOVE: Final = Role("move", statement_seconds=300, lock_milliseconds=200)
BEFORE_THE_FIRST: Final = -(2**63)
PAUSE: Final = 1.0
_PLACEHOLDER: Final = re.compile(r"\bold_(outbox|dead)\b")


Tell: TypeAlias = Callable[[Moved], object]


def _no_callback(_: Moved) -> None:
    """No callback."""


class Mover(AbstractAsyncContextManager["Mover"]):
    """Moves old rows into a store of the same Postgres database, on a connection of its own."""

    def __init__(
        self,
        url: str,
        store: Store,
        old: OldTables = OldTables(),  # noqa: B008 - a frozen value
        *,
        tables: str | None = None,
        lease_ttl: timedelta | None = None,
        batch: int = BATCH,
    ) -> None:
        """`tables` names those of the store.

        Without `lease_ttl` no row that has a lease is touched: an old worker takes it up again, or it stays. With it,
        a row is taken once its lease is older than that, as an old worker would: it must be the longest
        `lease_ttl_seconds` of all old subscribers.
        """
        if batch < 1:
            raise ValueError(f"batch must be at least 1, not {batch}")
        if lease_ttl is not None and lease_ttl <= timedelta(0):
            raise ValueError(f"lease_ttl must be positive, not {lease_ttl}: live leases would be taken")
        self._lane = Lane(MOVE, connector(url))
        self._store = store
        self._old = old
        self._lease = lease_ttl
        self._batch = batch
        names = {"old_outbox": quoted(old.messages), "old_dead": quoted(old.dead or "outbox_dlq")}
        found = load("nightmail.moving", "faststream_outbox.sql", TableNames.parse(tables), numbered=True)
        self._statements = {name: _named(statement, names) for name, statement in found.items()}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._lane.close()

    async def check(self) -> None:
        """Raise `ValueError` unless the old tables exist and have the expected columns."""
        await self._check(self._old.messages, COLUMNS)
        if self._old.dead is not None:
            await self._check(self._old.dead, DEAD_COLUMNS)

    async def count(self) -> Census:
        """What the old tables contain. Changes nothing."""
        queues = {
            row["queue"]: QueueCensus(waiting=row["waiting"], taken=row["taken"], leased=row["leased"])
            for row in await self._ask("count", lease=self._lease)
        }
        dead = 0 if self._old.dead is None else (await self._ask("count_dead"))[0]["dead"]
        return Census(queues, dead)

    async def move(self, tell: Tell = _no_callback) -> Moved:
        """Pass once through the old tables and move what is not held; `tell` is called for every batch.

        What is published there meanwhile is left for the next pass, so that this one ends.
        """
        return await self._pass(Moved(), tell)

    async def move_all(self, tell: Tell = _no_callback, *, pause: float = PAUSE) -> Moved:
        """Pass again and again, until the old tables are empty but for what cannot move."""
        moved = Moved()
        while True:
            before = replace(moved, stuck=())
            moved = await self._pass(before, tell)
            if replace(moved, stuck=()) == before:
                if (await self.count()).rows <= len(moved.stuck):
                    return moved
                # An old worker is busy, or an old publisher has not committed yet.
                await asyncio.sleep(pause)

    # ------------------------------------------------------------------------------------------ inside

    async def _pass(self, moved: Moved, tell: Tell) -> Moved:
        passes = [("last", self._move_messages)]
        if self._old.dead is not None:
            passes.append(("last_dead", self._move_dead))
        for newest, step in passes:
            (row,) = await self._ask(newest)
            after, last = BEFORE_THE_FIRST, row["id"]
            while last is not None and after < last:
                after, batch = await self._run(_next(step, after, last))
                moved += batch
                tell(moved)
        return moved

    async def _move_messages(self, link: Link, after: int, last: int) -> tuple[int, Moved]:
        try:
            # No savepoint per timer id: more than 64 of them slow down every other session of the server.
            async with link.transaction(isolation="read_committed"):
                return await self._move_batch(link, after, last)
        except _NameIsBusy as busy:
            # The rows before it go without it. When there are none, it is skipped until the next pass.
            if busy.id - 1 == after:
                return busy.id, Moved()
            return await self._move_messages(link, after, busy.id - 1)

    async def _move_batch(self, link: Link, after: int, last: int) -> tuple[int, Moved]:
        rows = await self._rows(link, "take", after=after, last=last, lease=self._lease, limit=self._batch)
        gone: list[int] = []
        stuck: list[Stuck] = []
        for group in _groups(rows, stuck):
            if await self._publish(link, group):
                gone += [row["id"] for row, _ in group]
            else:
                ((row, message),) = group
                stuck.append(Stuck(row["id"], message.queue, f"its timer id {message.timer_id!r} is taken"))
        removed = await self._rows(link, "remove", ids=gone)
        _refuse_unless(len(removed) == len(gone), self._old.messages)
        seen = last if len(rows) < self._batch else rows[-1]["id"]
        return seen, Moved(len(gone), 0, tuple(stuck))

    async def _publish(self, link: Link, group: _Group) -> bool:
        """Publish these in the transaction of the batch; `False` when it is a single one whose timer id is taken."""
        (row, message), *_ = group
        if message.timer_id is None:
            await self._store.publish_batch([message for _, message in group], transaction=link.driver)
            return True
        try:
            return await self._store.publish(message, transaction=link.driver) is not None
        except LOOK_AGAIN as error:
            raise _NameIsBusy(row["id"]) from error

    async def _move_dead(self, link: Link, after: int, last: int) -> tuple[int, Moved]:
        async with link.transaction(isolation="read_committed"):
            (row,) = await self._rows(link, "move_dead", after=after, last=last, limit=self._batch)
            _refuse_unless(row["chosen"] == row["gone"] == row["buried"], str(self._old.dead))
        seen = last if row["gone"] < self._batch else row["last"]
        return seen, Moved(0, row["gone"])

    async def _check(self, table: str, columns: Sequence[str]) -> None:
        missing = [
            row["name"] for row in await self._ask("missing", table=quoted(table), columns=list(columns))
        ]
        if len(missing) == len(columns):
            raise ValueError(f"there is no table {table!r} in this database")
        if missing:
            raise ValueError(
                f"{table!r} is no table of faststream-outbox: it has no column {', '.join(missing)}"
            )

    async def _ask(self, name: str, **values: Any) -> Sequence[Any]:
        return await self._run(lambda link: self._rows(link, name, **values))

    async def _run(self, work: Callable[[Link], Awaitable[T]]) -> T:
        return await self._lane.run_patiently(work)

    async def _rows(self, link: Link, name: str, **values: Any) -> Sequence[Any]:
        rows: Sequence[Any] = await link.send(Ask(self._statements[name], values))
        return rows


_Group: TypeAlias = list[tuple[Mapping[str, Any], Message]]
_Step: TypeAlias = Callable[[Link, int, int], Awaitable[tuple[int, Moved]]]


class _NameIsBusy(Exception):
    """Another open transaction is taking the timer id of this row here."""

    def __init__(self, id_: int) -> None:
        super().__init__()
        self.id = id_


def _next(step: _Step, after: int, last: int) -> Callable[[Link], Awaitable[tuple[int, Moved]]]:
    return lambda link: step(link, after, last)


def _groups(rows: Sequence[Mapping[str, Any]], stuck: list[Stuck]) -> Iterator[_Group]:
    """Groups to publish, in the order of the rows: one with a timer id alone, those without together."""
    group: _Group = []
    for row in rows:
        try:
            message = as_message(row)
        except (ValueError, RecursionError) as error:
            stuck.append(Stuck(row["id"], row["queue"], f"it cannot be stored: {error}"))
            continue
        if group and (message.timer_id is not None or group[0][1].timer_id is not None):
            yield group
            group = []
        group.append((row, message))
    if group:
        yield group


def _named(statement: Statement, names: Mapping[str, str]) -> Statement:
    return replace(statement, text=_PLACEHOLDER.sub(lambda match: names[match[0]], statement.text))


def _refuse_unless(all_gone: bool, table: str) -> None:
    """Roll back if rows stayed in the old table (a trigger may keep them): they would be in both."""
    if not all_gone:
        raise NightmailError(f"{table!r} does not let its rows be deleted: nothing of this batch was moved")
