"""The statements of a publish, and what their answers mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from nightmail.clock import Clock
from nightmail.errors import LeaseLost, OtherDatabase, StoreUnavailable, TimerExists
from nightmail.message import DeadDelivery, Delivery, Message
from nightmail.stores.mysql.callers import CallersSession
from nightmail.stores.mysql.dialect import Dialect
from nightmail.stores.mysql.errors import is_duplicate
from nightmail.stores.mysql.lines import Lines
from nightmail.stores.mysql.link import Link
from nightmail.stores.mysql.moments import due, later, now
from nightmail.stores.mysql.text import Sql, Value, filled, literal, several
from nightmail.stores.mysql.transaction import OneByOne, OwnTransaction, Session
from nightmail.stores.sql.statements import Statement

TRIES: Final = 10
"""How often a publish is tried again because its timer id got an owner while it ran."""
UNSEEN_AFTER: Final = 3
"""After this many refusals in a row, the session is assumed not to see the owner, though it should."""
PACKET: Final = 12 * 1024 * 1024
"""By default servers accept packets up to 16 MB. In a packet, bodies and headers take twice their size."""
ROOM: Final = 1024


@dataclass(frozen=True, slots=True)
class Published:
    """What a publish stored, if anything, and whether that frees an ordering key."""

    id: int | None
    frees: bool = False


NOTHING: Final = Published(None)


@dataclass(frozen=True, slots=True)
class _Rearm:
    """The publisher's own message owns the timer id."""

    id: int


class Publishing:
    """The statements of publish, on any session."""

    def __init__(self, statements: Mapping[str, Statement], clock: Clock) -> None:
        self._statements = statements
        self._clock = clock
        self._lines = Lines(statements)

    # ------------------------------------------------------------------------------- without a timer id

    async def publish_together(self, link: Link, messages: Sequence[Message]) -> list[int]:
        """Store messages without timer ids on a connection of ours, all or none; returns their ids, in order."""
        inserts = self._batches(messages, min(PACKET, link.largest_packet))
        if len(inserts) == 1:
            return await self._store_all(OneByOne(link), inserts, link.dialect)
        transaction = OwnTransaction(link)
        ids = await self._store_all(transaction, inserts, link.dialect)
        await transaction.commit()
        return ids

    async def publish_batch(
        self, session: Session, messages: Sequence[Message], dialect: Dialect
    ) -> list[int]:
        """The same in a caller's transaction."""
        inserts = self._batches(messages, PACKET)
        if len(inserts) == 1:
            return await self._store_all(session, inserts, dialect)
        # If one is refused, those before it must not stay in the caller's transaction.
        await session.ask("savepoint nightmail_batch")
        try:
            ids = await self._store_all(session, inserts, dialect)
        except Exception:
            with suppress(Exception):
                await session.ask("rollback to savepoint nightmail_batch")
            raise
        await session.ask("release savepoint nightmail_batch")
        return ids

    async def _store_all(
        self, session: Session, inserts: Sequence[tuple[Sql, int]], dialect: Dialect
    ) -> list[int]:
        ids: list[int] = []
        for insert, count in inserts:
            if dialect.returns_ids:
                ids += [row[0] for row in (await session.ask(f"{insert} returning id")).rows]
            else:
                stored = await session.ask(insert)
                step = await session.ask("select @@auto_increment_increment")
                ids += _by_step(stored.last_id, int(step.rows[0][0]), count)
        return ids

    async def publish_if_ours(self, session: CallersSession, message: Message) -> int:
        """Store one message without a timer id in a caller's transaction, in one statement."""
        values = {**self._values(message), "identity": session.ours.identity}
        stored = await session.ask(self._filled("publish_if_ours", values))
        if not stored.last_id:
            raise OtherDatabase
        return stored.last_id

    def _batches(self, messages: Sequence[Message], largest: int) -> list[tuple[Sql, int]]:
        """Statements that store these, none larger than `largest` unless one message is; and how many each stores."""
        moment = now(self._clock)
        inserts: list[tuple[Sql, int]] = []
        rows: list[str] = []
        size = 0
        for message in messages:
            row = self._row(message, moment)
            if rows and size + len(row) + ROOM > largest:
                inserts.append((self._insert(rows), len(rows)))
                rows, size = [], 0
            rows.append(row)
            size += len(row) + 2
        return [*inserts, (self._insert(rows), len(rows))]

    def _insert(self, rows: Sequence[str]) -> Sql:
        return self._filled("publish_batch", {"rows": Sql(", ".join(rows))})

    def _row(self, message: Message, moment: Sql) -> str:
        return literal(
            (
                message.queue.encode(),
                message.priority,
                due(message.due, moment),
                moment,
                None if message.expires_in is None else later(moment, message.expires_in),
                _bytes(message.ordering_key),
                message.encoded_headers,
                message.body,
            )
        )

    # ---------------------------------------------------------------------------------- with a timer id

    async def publish(
        self,
        session: Session,
        message: Message,
        own: Delivery | None,
        *,
        sees_all: bool,
        says_so: bool = False,
    ) -> Published:
        """Store one message that has a timer id or a fence. `sees_all`: the session sees what others have committed.

        `says_so`: it only reports that. A single transaction may differ, and no variable shows it.
        """
        values = self._values(message)
        rearm = None if own is None else await self._fence(session, message, own)
        if message.timer_id is None:
            ((insert, _),) = self._batches([message], PACKET)
            return Published((await session.ask(insert)).last_id)
        if message.on_conflict not in ("skip", "raise"):
            return await self._store_over(session, values, rearm, sees_all=sees_all)
        if rearm is None and sees_all and await self._is_taken(session, values, says_so=says_so):
            stored = None
        else:
            stored = await self._store_unless_taken(session, message, values, rearm)
        if stored is None and message.on_conflict == "raise":
            raise TimerExists(message.queue, message.timer_id)
        return Published(stored)

    async def _fence(self, session: Session, message: Message, own: Delivery) -> _Rearm | None:
        name = "own_letter" if isinstance(own, DeadDelivery) else "own"
        found = await session.ask(self._filled(name, {"own_id": own.id, "own_token": own.token}))
        if not found.rows:
            raise LeaseLost((own.id,))
        queue, timer_key = found.rows[0]
        bears = timer_key is not None and (queue, timer_key) == (
            message.queue.encode(),
            _bytes(message.timer_id),
        )
        return _Rearm(own.id) if bears else None

    async def _is_taken(self, session: Session, values: Mapping[str, Value], *, says_so: bool) -> bool:
        if not (await session.ask(self._filled("taken", values))).rows:
            return False
        return not says_so or bool((await session.ask(self._filled("taken_now", values))).last_id)

    async def _store_unless_taken(
        self, session: Session, message: Message, values: Mapping[str, Value], rearm: _Rearm | None
    ) -> int | None:
        if rearm is not None:
            await self._detach(session, rearm.id, superseded=False)
        try:
            stored = (await session.ask(self._filled("publish_timer", values))).last_id
        except Exception as error:
            if is_duplicate(error):
                return None
            raise
        # Only now that the timer id is ours: of two publishers one waits above for the other, then sees its window.
        if rearm is None:
            window = (await session.ask(self._filled("window", values))).rows
            if window and window[0][0]:
                await session.ask(self._filled("withdraw", {"id": stored}))
                return None
        if message.dedup_for is not None:
            until = later(now(self._clock), message.dedup_for)
            await session.ask(self._filled("open_window", {**values, "until": until}))
        return stored

    async def _store_over(
        self, session: Session, values: Mapping[str, Value], rearm: _Rearm | None, *, sees_all: bool
    ) -> Published:
        unseen_after = UNSEEN_AFTER if sees_all else 1
        for refusals in range(TRIES):
            # Found by timer id only once an owner that the session does not see made an insert fail.
            bearer = await self._bearer(session, values, by_name=refusals >= unseen_after)
            if bearer is not None:
                id_, running, wins, queue, ordering_key, in_line = bearer
                own = rearm is not None and rearm.id == id_
                if running or own:
                    await self._detach(session, id_, superseded=not own)
                elif not wins:
                    return NOTHING
                else:
                    if in_line and ordering_key is not None:
                        await self._lines.bring_back(session, [(queue, ordering_key)])
                    await session.ask(self._filled("overwrite", {**values, "id": id_}))
                    return Published(int(id_), frees=ordering_key is not None)
            try:
                return Published((await session.ask(self._filled("publish_timer", values))).last_id)
            except Exception as error:
                if not is_duplicate(error):
                    raise
        raise StoreUnavailable("the timer changed hands each time it was to be replaced: try again")

    async def _bearer(
        self, session: Session, values: Mapping[str, Value], *, by_name: bool
    ) -> Sequence[Any] | None:
        """The owner of this timer id, locked; `None` when the session sees none."""
        if by_name:
            rows = (await session.ask(self._filled("bearer_by_name", values))).rows
            return rows[0] if rows else None
        found = (await session.ask(self._filled("bearer_id", values))).rows
        if not found:
            return None
        ids = several(row[0] for row in found)
        rows = (await session.ask(self._filled("bearer", {**values, "ids": ids}))).rows
        return rows[0] if rows else None

    async def _detach(self, session: Session, id_: int, *, superseded: bool) -> None:
        await session.ask(self._filled("detach", {"id": id_, "superseded": superseded}))

    def _filled(self, name: str, values: Mapping[str, Value]) -> Sql:
        return filled(self._statements[name], values)

    def _values(self, message: Message) -> dict[str, Value]:
        moment = now(self._clock)
        return {
            "now": moment,
            "queue": message.queue.encode(),
            "priority": message.priority,
            "due": due(message.due, moment),
            "expires_at": None if message.expires_in is None else later(moment, message.expires_in),
            "timer_id": _bytes(message.timer_id),
            "policy": message.on_conflict,
            "ordering_key": _bytes(message.ordering_key),
            "headers": message.encoded_headers,
            "body": message.body,
        }


def _bytes(name: str | None) -> bytes | None:
    return None if name is None else name.encode()


def _by_step(first: int, step: int, count: int) -> list[int]:
    # A list of values of known length gets its ids at once, with no other session's in between.
    return list(range(first, first + step * count, step))
