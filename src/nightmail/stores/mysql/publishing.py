"""The statements of a publish, and what their answers mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from nightmail.clock import Clock
from nightmail.errors import LeaseLost, OtherDatabase, StoreUnavailable, TimerExists
from nightmail.message import DeadDelivery, Delivery, Message
from nightmail.stores.mysql.errors import is_duplicate
from nightmail.stores.mysql.lines import Lines
from nightmail.stores.mysql.requests import CHECK_TABLES, IDENTITY, SERVER, AllOrNone, Answer, Sees, Server
from nightmail.stores.mysql.text import Queries, Sql, Value, literal, several
from nightmail.stores.mysql.times import due, is_soon, later, now
from nightmail.stores.sql.verbs import Change, Verb

TRIES: Final = 10
"""How often a publish is tried again because its timer id got an owner while it ran."""
UNSEEN_AFTER: Final = 3
"""After this many refusals in a row, the session is assumed not to see the owner, though it should."""
PACKET: Final = 12 * 1024 * 1024
"""By default servers accept packets up to 16 MB. In a packet, bodies and headers take twice their size."""
ROOM: Final = 1024


@dataclass(frozen=True, slots=True)
class _Stored:
    """What a publish stored, if anything, and whether that frees an ordering key."""

    id: int | None
    frees: bool = False


@dataclass(frozen=True, slots=True)
class _Rearm:
    """The publisher's own message owns the timer id."""

    id: int


class Publishing:
    """The verbs that store messages."""

    def __init__(self, sql: Queries, clock: Clock) -> None:
        self._sql = sql
        self._clock = clock
        self._lines = Lines(sql)

    def publish(self, message: Message, own: Delivery | None) -> Verb[Change[int | None]]:
        """See `Store.publish`."""
        if message.timer_id is None and own is None:
            stored = yield from self._publish_if_ours(message)
        else:
            stored = yield from self._publish(message, own)
        rings = stored.id is not None and (stored.frees or is_soon(message.due, self._clock))
        return Change(stored.id, frozenset({message.queue} if rings else ()))

    # ------------------------------------------------------------------------------- without a timer id

    def publish_batch(self, messages: Sequence[Message]) -> Verb[Change[list[int]]]:
        """See `Store.publish_batch`."""
        yield CHECK_TABLES
        ids = yield from self.store(messages)
        return Change(
            ids, frozenset(message.queue for message in messages if is_soon(message.due, self._clock))
        )

    def store(self, messages: Sequence[Message]) -> Verb[list[int]]:
        """Store messages without timer ids, all or none; returns their ids, in order."""
        server: Server = yield SERVER
        inserts = self._batches(messages, min(PACKET, server.largest_packet))
        if server.dialect.returns_ids:
            statements = tuple([f"{insert} returning id" for insert, _ in inserts])
            answers = yield AllOrNone(statements)
            return [row[0] for answer in answers for row in answer.rows]
        # Asked first: if this failed after the messages were stored, they would be stored again.
        step: Answer = yield Sql("select @@auto_increment_increment")
        answers = yield AllOrNone(tuple([insert for insert, _ in inserts]))
        ids = [
            _by_step(answer.last_id, int(step.rows[0][0]), count)
            for answer, (_, count) in zip(answers, inserts, strict=True)
        ]
        return [id_ for some in ids for id_ in some]

    def _publish_if_ours(self, message: Message) -> Verb[_Stored]:
        """Store one message in a caller's transaction, in one statement."""
        stored: Answer = yield self._sql(
            "publish_if_ours", **self._values(message), identity=(yield IDENTITY)
        )
        if not stored.last_id:
            raise OtherDatabase
        return _Stored(stored.last_id)

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
        return self._sql("publish_batch", rows=Sql(", ".join(rows)))

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

    # ------------------------------------------------------------------------ with a timer id or a fence

    def _publish(self, message: Message, own: Delivery | None) -> Verb[_Stored]:
        sees: Sees = yield CHECK_TABLES
        values = self._values(message)
        rearm = None if own is None else (yield from self._fence(message, own))
        if message.timer_id is None:
            ((insert, _),) = self._batches([message], PACKET)
            return _Stored((yield insert).last_id)
        if message.on_conflict not in ("skip", "raise"):
            return (yield from self._store_over(values, rearm, sees))
        stored = None
        if rearm is not None or not (yield from self._is_taken(values, sees)):
            stored = yield from self._store_unless_taken(message, values, rearm)
        if stored is None and message.on_conflict == "raise":
            raise TimerExists(message.queue, message.timer_id)
        return _Stored(stored)

    def _fence(self, message: Message, own: Delivery) -> Verb[_Rearm | None]:
        name = "own_letter" if isinstance(own, DeadDelivery) else "own"
        found: Answer = yield self._sql(name, own_id=own.id, own_token=own.token)
        if not found.rows:
            raise LeaseLost((own.id,))
        queue, timer_key = found.rows[0]
        owned = (message.queue.encode(), _bytes(message.timer_id))
        return _Rearm(own.id) if timer_key is not None and (queue, timer_key) == owned else None

    def _is_taken(self, values: dict[str, Value], sees: Sees) -> Verb[bool]:
        """Whether the timer id is known to be taken. A session with a snapshot finds out by inserting."""
        if sees is Sees.SNAPSHOT or not (yield self._sql("taken", **values)).rows:
            return False
        return sees is Sees.ALL or bool((yield self._sql("taken_now", **values)).last_id)

    def _store_unless_taken(
        self, message: Message, values: dict[str, Value], rearm: _Rearm | None
    ) -> Verb[int | None]:
        if rearm is not None:
            yield self._sql("detach", id=rearm.id, superseded=False)
        try:
            stored: int = (yield self._sql("publish_timer", **values)).last_id
        except Exception as error:
            if is_duplicate(error):
                return None
            raise
        # Only now that the timer id is ours: of two publishers one waits above for the other, then sees its window.
        if rearm is None:
            window = (yield self._sql("window", **values)).rows
            if window and window[0][0]:
                yield self._sql("withdraw", id=stored)
                return None
        if message.dedup_for is not None:
            yield self._sql("open_window", **values, until=later(now(self._clock), message.dedup_for))
        return stored

    def _store_over(self, values: dict[str, Value], rearm: _Rearm | None, sees: Sees) -> Verb[_Stored]:
        unseen_after = 1 if sees is Sees.SNAPSHOT else UNSEEN_AFTER
        for refusals in range(TRIES):
            # Found by timer id only once an owner that the session does not see made an insert fail.
            owner = yield from self._owner(values, by_timer_id=refusals >= unseen_after)
            if owner is not None:
                id_, running, wins, queue, ordering_key, in_line = owner
                own = rearm is not None and rearm.id == id_
                if running or own:
                    yield self._sql("detach", id=id_, superseded=not own)
                elif not wins:
                    return _Stored(None)
                else:
                    if in_line and ordering_key is not None:
                        yield from self._lines.bring_back([(queue, ordering_key)])
                    yield self._sql("overwrite", **values, id=id_)
                    return _Stored(int(id_), frees=ordering_key is not None)
            try:
                return _Stored((yield self._sql("publish_timer", **values)).last_id)
            except Exception as error:
                if not is_duplicate(error):
                    raise
        raise StoreUnavailable("the timer changed hands each time it was to be replaced: try again")

    def _owner(self, values: dict[str, Value], *, by_timer_id: bool) -> Verb[Sequence[Any] | None]:
        """The owner of this timer id, locked; `None` when the session sees none."""
        if by_timer_id:
            rows = (yield self._sql("owner_by_timer_id", **values)).rows
            return rows[0] if rows else None
        found = (yield self._sql("owner_id", **values)).rows
        if not found:
            return None
        rows = (yield self._sql("owner", **values, ids=several(row[0] for row in found))).rows
        return rows[0] if rows else None

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
