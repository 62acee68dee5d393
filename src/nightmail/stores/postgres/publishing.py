"""Stores messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from nightmail.clock import Clock
from nightmail.errors import LeaseLost, StoreUnavailable, TimerExists
from nightmail.message import DeadDelivery, Delivery, Message, differ_in_bodies_only
from nightmail.stores.postgres.letters import Letters
from nightmail.stores.postgres.requests import InTransaction
from nightmail.stores.postgres.rows import answer
from nightmail.stores.postgres.times import due_values, duration
from nightmail.stores.sql.statements import Statement
from nightmail.stores.sql.verbs import Ask, Change, Verb

TRIES: Final = 10
"""How often a publish is tried again because an owner of its timer id appeared meanwhile."""


class Publishing:
    """The verbs of publish."""

    def __init__(self, statements: Mapping[str, Statement], clock: Clock, letters: Letters) -> None:
        self._one = statements["publish"]
        self._bodies = statements["publish_bodies"]
        self._batch = statements["publish_batch"]
        self._timer = statements["publish_timer"]
        self._own_timer = statements["publish_own_timer"]
        self._overwrite = statements["overwrite"]
        self._close_window = statements["close_window"]
        self._clock = clock
        self._letters = letters

    def publish(self, message: Message, own: Delivery | None) -> Verb[Change[int | None]]:
        """See `Store.publish`."""
        if own is None and message.timer_id is None:
            rows = yield Ask(self._one, self._values_of_one(message))
            return Change(rows[0]["id"] if rows else (yield from self._refused(message)))
        verb = self._fenced(message, own)
        if message.dedup_for is None and not isinstance(own, DeadDelivery):
            return Change((yield from verb))
        # In one transaction: otherwise a lost connection could leave a dedup window without its message.
        return Change((yield InTransaction(verb)))

    def publish_batch(self, messages: Sequence[Message]) -> Verb[Change[list[int]]]:
        """See `Store.publish_batch`."""
        if len(messages) == 1:
            rows = yield Ask(self._one, self._values_of_one(messages[0]))
            return Change([rows[0]["id"] if rows else (yield from self._refused(messages[0]))])
        if differ_in_bodies_only(messages):
            ask = Ask(self._bodies, self._values_of_bodies(messages))
        else:
            ask = Ask(self._batch, self._batch_values(messages))
        return Change(answer((yield ask))["ids"])

    def _refused(self, message: Message) -> Verb[int]:
        """A message of which nothing was written: this statement tells why, by its answer or by failing."""
        ids: list[int] = answer((yield Ask(self._batch, self._batch_values([message]))))["ids"]
        return ids[0]

    def _fenced(self, message: Message, own: Delivery | None) -> Verb[int | None]:
        if isinstance(own, DeadDelivery):
            # A dead letter handler is fenced by its lease. A dead letter owns no timer id that could be taken over.
            yield from self._letters.hold([own])
            own = None
            if message.timer_id is None:
                return (yield from self.publish(message, None)).result
        values = self._values(message, own)
        if message.on_conflict in ("skip", "raise"):
            return (yield from self._store_unless_taken(message, own, values))
        return (yield from self._store_over(own, values))

    def _store_unless_taken(
        self, message: Message, own: Delivery | None, values: dict[str, Any]
    ) -> Verb[int | None]:
        usual = own is None and message.dedup_for is None
        row = _held(answer((yield Ask(self._timer if usual else self._own_timer, values))), own)
        id_: int | None = row["id"]
        if id_ is not None:
            return id_
        if row["opened"]:
            # Between our check and our insert a publish without a window took the timer id: delete our window.
            yield Ask(self._close_window, values)
        if message.on_conflict == "raise" and message.timer_id is not None:
            raise TimerExists(message.queue, message.timer_id)
        return None

    def _store_over(self, own: Delivery | None, values: dict[str, Any]) -> Verb[int | None]:
        for _ in range(TRIES):
            row = _held(answer((yield Ask(self._overwrite, values))), own)
            id_: int | None = row["id"]
            if id_ is not None or row["kept"]:
                return id_
        raise StoreUnavailable("the timer changed hands each time it was to be replaced: try again")

    def _values(self, message: Message, own: Delivery | None) -> dict[str, Any]:
        return {
            **self._values_of_one(message),
            "dedup_for": duration(message.dedup_for),
            "timer_id": message.timer_id,
            "policy": message.on_conflict,
            "own_id": None if own is None else own.id,
            "own_token": None if own is None else own.token,
        }

    def _values_of_one(self, message: Message) -> dict[str, Any]:
        values = self._shared_values(message)
        values["body"] = message.body
        return values

    def _values_of_bodies(self, messages: Sequence[Message]) -> dict[str, Any]:
        values = self._shared_values(messages[0])
        values["bodies"] = [message.body for message in messages]
        return values

    def _shared_values(self, message: Message) -> dict[str, Any]:
        """What a message without a timer id is stored with, except its body."""
        values: dict[str, Any] = {
            "now": self._clock.now(),
            "queue": message.queue,
            "priority": message.priority,
            "due_at": None,
            "delay": None,
            "expires_in": None,
            "ordering_key": message.ordering_key,
            "headers": message.encoded_headers,
        }
        if message.due is not None:
            values.update(due_values(message.due))
        if message.expires_in is not None:
            values["expires_in"] = duration(message.expires_in)
        return values

    def _batch_values(self, messages: Sequence[Message]) -> dict[str, Any]:
        times = [due_values(message.due) for message in messages]
        return {
            "now": self._clock.now(),
            "queues": [message.queue for message in messages],
            "priorities": [message.priority for message in messages],
            "due_ats": [time["due_at"] for time in times],
            "delays": [time["delay"] for time in times],
            "expiries": [duration(message.expires_in) for message in messages],
            "ordering_keys": [message.ordering_key for message in messages],
            "headers": [message.encoded_headers for message in messages],
            "bodies": [message.body for message in messages],
        }


def _held(row: Any, own: Delivery | None) -> Any:
    if not row["held"]:
        raise LeaseLost(() if own is None else (own.id,))
    return row
