"""The parameters of a publish, and the meaning of its result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from nightmail.clock import Clock
from nightmail.errors import LeaseLost, OtherDatabase, SchemaMissing, StoreUnavailable, TimerExists
from nightmail.message import Delivery, Message
from nightmail.stores.postgres.moments import due_values, duration
from nightmail.stores.postgres.transaction import Session
from nightmail.stores.sql.statements import Statement

TRIES: Final = 10
"""How often a publish is tried again because an owner of its timer id appeared meanwhile."""


class Publishing:
    """The statements of publish, on any session. `identity` is our tables' identity, `None` on our own connections."""

    def __init__(self, statements: Mapping[str, Statement], clock: Clock) -> None:
        self._batch = statements["publish_batch"]
        self._timer = statements["publish_timer"]
        self._over = statements["publish_over"]
        self._reopen_window = statements["reopen_window"]
        self._clock = clock

    async def publish(
        self, session: Session, message: Message, own: Delivery | None, identity: UUID | None
    ) -> int | None:
        """Store one message."""
        if message.timer_id is None and own is None:
            (id_,) = await self.publish_batch(session, [message], identity)
            return id_
        values = {**self._values(message, own), "identity": identity}
        if message.on_conflict in ("skip", "raise"):
            return await self._store_unless_taken(session, message, own, values)
        return await self._store_over(session, message, own, values)

    async def publish_batch(
        self, session: Session, messages: Sequence[Message], identity: UUID | None
    ) -> list[int]:
        """Store messages without timer ids and return their ids, in order."""
        moments = [due_values(message.due) for message in messages]
        values = {
            "identity": identity,
            "now": self._clock.now(),
            "queues": [message.queue for message in messages],
            "priorities": [message.priority for message in messages],
            "due_ats": [moment["due_at"] for moment in moments],
            "delays": [moment["delay"] for moment in moments],
            "expiries": [duration(message.expires_in) for message in messages],
            "ordering_keys": [message.ordering_key for message in messages],
            "headers": [message.encoded_headers for message in messages],
            "bodies": [message.body for message in messages],
        }
        ids: list[int] = answer(await session.rows(self._batch, values))["ids"]
        return ids

    async def _store_unless_taken(
        self, session: Session, message: Message, own: Delivery | None, values: dict[str, Any]
    ) -> int | None:
        row = _fenced(answer(await session.rows(self._timer, values)), own)
        id_: int | None = row["id"]
        if id_ is not None:
            return id_
        if row["closed"]:
            # Between our check and our insert a publish without a window took the timer id: delete our window.
            await session.rows(self._reopen_window, values)
        if message.on_conflict == "raise" and message.timer_id is not None:
            raise TimerExists(message.queue, message.timer_id)
        return None

    async def _store_over(
        self, session: Session, message: Message, own: Delivery | None, values: dict[str, Any]
    ) -> int | None:
        for _ in range(TRIES):
            row = _fenced(answer(await session.rows(self._over, values)), own)
            id_: int | None = row["id"]
            if id_ is not None or row["kept"]:
                return id_
        raise StoreUnavailable("the timer changed hands each time it was to be replaced: try again")

    def _values(self, message: Message, own: Delivery | None) -> dict[str, Any]:
        return {
            "now": self._clock.now(),
            "queue": message.queue,
            "priority": message.priority,
            **due_values(message.due),
            "expires_in": duration(message.expires_in),
            "dedup_for": duration(message.dedup_for),
            "timer_id": message.timer_id,
            "policy": message.on_conflict,
            "ordering_key": message.ordering_key,
            "headers": message.encoded_headers,
            "body": message.body,
            "own_id": None if own is None else own.id,
            "own_token": None if own is None else own.token,
        }


def answer(rows: Sequence[Any]) -> Any:
    """The one row of a statement that may run in a caller's transaction, if these are our tables."""
    if not rows:
        raise SchemaMissing
    if not rows[0]["ours"]:
        raise OtherDatabase
    return rows[0]


def _fenced(row: Any, own: Delivery | None) -> Any:
    if not row["held"]:
        raise LeaseLost(() if own is None else (own.id,))
    return row
