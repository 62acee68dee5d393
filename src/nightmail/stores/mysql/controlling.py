"""Steering a store, and asking why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from nightmail.clock import Clock
from nightmail.controls import (
    CONSUMERS_KEPT_FOR,
    FORGOTTEN_AFTER,
    MOST_AHEAD,
    Consumption,
    LastConsumer,
    LeasedMessage,
    MessageFacts,
    Pause,
    WorkerRecord,
    WorkerReport,
    consumption,
    latest_of_each,
    worker_of,
)
from nightmail.message import Delivery, Due
from nightmail.records import StoredMessage
from nightmail.stores.mysql import rows
from nightmail.stores.mysql.inspecting import queues_with_messages
from nightmail.stores.mysql.ranges import Place, within
from nightmail.stores.mysql.requests import SERVER, Answer, Server
from nightmail.stores.mysql.text import Queries, Sql, Value, literal, several, union
from nightmail.stores.mysql.times import aware, aware_if_any, due, microseconds, now, shown
from nightmail.stores.shared.marks import LEVELS, Range
from nightmail.stores.sql.controls import WHOLE_QUEUE, Leaver, stored_key, worker_record, worker_values
from nightmail.stores.sql.verbs import Change, Verb

_FORGOTTEN_AFTER: Final = microseconds(FORGOTTEN_AFTER)
_KEPT_FOR: Final = microseconds(CONSUMERS_KEPT_FOR)
_WORKER: Final = ("id", "host", "pid", "version", "queues", "state")


class Controlling:
    """The verbs of `Control`."""

    def __init__(self, sql: Queries, clock: Clock) -> None:
        self._sql = sql
        self._clock = clock

    # --------------------------------------------------------------------------------------- pauses

    def pause(
        self,
        queue: str,
        *,
        ordering_key: str | None,
        until: Due,
        by: str,
        reason: str | None,
        automatic: bool,
    ) -> Verb[Change[None]]:
        """See `Control.pause`."""
        moment = now(self._clock)
        yield self._sql(
            "pause",
            queue=queue.encode(),
            ordering_key=stored_key(ordering_key).encode(),
            automatic=automatic,
            now=moment,
            until=None if until is None else due(until, moment),
            length=microseconds(until) if automatic and isinstance(until, timedelta) else None,
            by=by.encode(),
            reason=reason,
        )
        return Change(None, frozenset({queue}))

    def resume(self, queue: str, *, ordering_key: str | None, automatic: bool) -> Verb[Change[bool]]:
        """See `Control.resume`."""
        server: Server = yield SERVER
        values: dict[str, Value] = {
            "queue": queue.encode(),
            "ordering_key": stored_key(ordering_key).encode(),
            "automatic": automatic,
            "in_force": self._sql("in_force", now=now(self._clock)),
            "begun": server.dialect.begun,
        }
        _, found, *_ = yield (
            "begin",
            self._sql("lock_pause", **values),
            self._sql("resume", **values),
            "commit",
        )
        return Change(any(row[0] for row in found.rows), frozenset({queue}))

    def probe_again(self, probe: Delivery) -> Verb[Change[None]]:
        """See `Control.probe_again`."""
        yield self._sql(
            "probe_again", queue=probe.queue.encode(), now=now(self._clock), claimed_at=probe.claimed_at
        )
        return Change(None, frozenset({probe.queue}))

    def pauses(self, queue: str | None) -> Verb[list[Pause]]:
        """See `Control.pauses`."""
        in_force = self._sql("in_force", now=now(self._clock))
        found: Answer = yield self._sql(
            "pauses", queue=None if queue is None else queue.encode(), in_force=in_force
        )
        return [_pause(row) for row in found.rows]

    # -------------------------------------------------------------------------------------- workers

    def request_stop(self, id_: int, by: str) -> Verb[bool]:
        """See `Control.request_stop`."""
        found: Answer = yield self._sql("lock_running", ids=several([id_]), now=now(self._clock))
        if found.rows:
            yield self._sql("request_stop", id=id_, by=by.encode())
        return bool(found.rows)

    def report(self, worker: WorkerReport) -> Verb[None]:
        """See `Control.report`. Those to be forgotten are found without a lock: reports do not wait for each other."""
        moment = now(self._clock)
        values = worker_values(worker) | {"id": worker.id.encode(), "now": moment}
        found, _ = yield (
            self._sql("leaving", id=worker.id.encode(), now=moment, longest=_FORGOTTEN_AFTER),
            self._sql("report", **values),
        )
        leaving = [_leaver(row) for row in found.rows]
        unseen = [each.id.encode() for each in leaving if each.id != worker.id]
        left = latest_of_each(
            each.consumption(but_for=worker.queues if each.id == worker.id else ()) for each in leaving
        )
        if left or unseen:
            forget = self._sql("forget_unseen", ids=unseen, now=moment, longest=_FORGOTTEN_AFTER)
            yield from self._leave(left, forget)

    def sign_off(self, worker_id: str) -> Verb[None]:
        """See `Control.sign_off`."""
        id_ = worker_id.encode()
        found: Answer = yield self._sql("leaver", id=id_)
        left = latest_of_each(_leaver(row).consumption() for row in found.rows)
        yield from self._leave(left, self._sql("sign_off", id=id_))

    def _leave(self, left: Mapping[str, LastConsumer], forget: Sql) -> Verb[None]:
        """Note who consumed these queues last, and then forget them as workers: an interrupted one is repeated."""
        age: dict[str, Value] = {"now": now(self._clock), "longest": _KEPT_FOR}
        notes = [
            self._sql(
                "note_consumer",
                queue=queue.encode(),
                seen_at=each.seen_at,
                host=each.host,
                pid=each.pid,
            )
            for queue, each in sorted(left.items())
        ]
        *_, outdated = yield (*notes, forget, self._sql("outdated_consumers", **age))
        if outdated.rows:
            yield self._sql("forget_consumers", queues=[row[0] for row in outdated.rows], **age)

    def workers(self) -> Verb[list[WorkerRecord]]:
        """See `Control.workers`."""
        found: Answer = yield self._sql("workers", now=now(self._clock), longest=_FORGOTTEN_AFTER)
        return [_worker(row) for row in found.rows]

    def last_consumers(self) -> Verb[dict[str, LastConsumer]]:
        """See `Control.last_consumers`. Workers are read first: one that leaves in between is read twice."""
        age: dict[str, Value] = {"now": now(self._clock), "longest": _KEPT_FOR}
        reported, left = yield (self._sql("workers", **age), self._sql("last_consumers", **age))
        return latest_of_each([*map(_left, left.rows), *(consumption(_worker(row)) for row in reported.rows)])

    def leases(self, limit: int) -> Verb[list[LeasedMessage]]:
        """See `Control.leases`."""
        names = yield from queues_with_messages(self._sql)
        if not names:
            return []
        found: Answer = yield self._sql("running", queues=names, now=now(self._clock), limit=max(limit, 0))
        return [_leased(row) for row in found.rows]

    # ---------------------------------------------------------------------------------- one message

    def facts(self, id_: int) -> Verb[MessageFacts]:
        """See `Control.facts`. In two round trips, three where another message of its ordering key is to be read."""
        asked = now(self._clock)
        if id_ < 1:
            # No message has such an id. What is left, the clock, may be read by every account.
            (clock,) = yield (self._sql("moment", now=asked),)
            return MessageFacts(now=aware(clock.rows[0][0]), message=None)
        clock, found = yield (self._sql("moment", now=asked), self._sql("find", ids=[id_], now=asked))
        moment = aware(clock.rows[0][0])
        if found.rows:
            return (yield from self._held_back(rows.stored(found.rows[0]), moment))
        return (yield from self._gone(id_, moment))

    def _gone(self, id_: int, moment: datetime) -> Verb[MessageFacts]:
        # Only now: a worker that keeps no history may not read it, and may ask what holds a message back.
        letter, delivered = yield (self._sql("newest_letter", id=id_), self._sql("delivered_at", id=id_))
        return MessageFacts(
            now=moment,
            message=None,
            letter=rows.dead_letter(letter.rows[0]) if letter.rows else None,
            delivered_at=shown(delivered.rows[0][0]) if delivered.rows else None,
        )

    def _held_back(self, message: StoredMessage, moment: datetime) -> Verb[MessageFacts]:
        server: Server = yield SERVER
        at = Sql(literal(moment))
        lock = server.dialect.skips_locked + self._sql("lock_if_free", id=message.id)
        _, free, _, about, pauses, ahead = yield (
            "begin",
            lock,
            "rollback",
            self._sql("held_back_by", id=message.id, now=at),
            self._pauses_of(message, at),
            self._ahead(message, at),
        )
        token, stop, holder, *firsts, owner = about.rows[0] if about.rows else (None,) * 6
        waiting = not message.running
        before = holder or min((first for first in firsts if first is not None), default=None)
        held_by = (yield from self._find(before)) if waiting and before not in (None, message.id) else None
        return MessageFacts(
            now=moment,
            message=message,
            worker_id=None if waiting or token is None else worker_of(UUID(bytes=token)),
            stop_requested_by=None if stop is None else rows.text(stop),
            key_held_by=held_by,
            superseded_by=owner,
            locked=not free.rows,
            ahead=int(ahead.rows[0][0]) if waiting else 0,
            pauses=tuple(_pause(row) for row in pauses.rows),
        )

    def _find(self, id_: int) -> Verb[StoredMessage | None]:
        found: Answer = yield self._sql("find", ids=[id_], now=now(self._clock))
        return rows.stored(found.rows[0]) if found.rows else None

    def _pauses_of(self, message: StoredMessage, at: Sql) -> Sql:
        keys = {WHOLE_QUEUE, stored_key(message.ordering_key)}
        return self._sql(
            "pauses_of",
            queue=message.queue.encode(),
            keys=[key.encode() for key in sorted(keys)],
            in_force=self._sql("in_force", now=at),
        )

    def _ahead(self, message: StoredMessage, at: Sql) -> Sql:
        ranges: list[Range[Place]] = [
            Range(message.queue, level, end=(message.due_at, message.id)) for level in LEVELS
        ]
        branches = union(
            self._sql(
                "ahead_in",
                queue=message.queue.encode(),
                parked=parked,
                level=each.level,
                within=within(each),
                now=at,
                limit=MOST_AHEAD,
            )
            for each in ranges
            for parked in (0, 1)
        )
        return self._sql("ahead", branches=branches, limit=MOST_AHEAD)


def _pause(row: Sequence[Any]) -> Pause:
    queue, ordering_key, by, reason, since, until, automatic = row
    return Pause(
        queue=rows.text(queue),
        ordering_key=rows.text(ordering_key) or None,
        by=rows.text(by),
        reason=reason,
        since=aware(since),
        until=aware_if_any(until),
        automatic=bool(automatic),
    )


def _worker(row: Sequence[Any]) -> WorkerRecord:
    *said, started_at, seen_at = row
    values = dict(zip(_WORKER, said, strict=True))
    return worker_record(values | {"id": rows.text(values["id"])}, aware(started_at), aware(seen_at))


def _leaver(row: Sequence[Any]) -> Leaver:
    id_, queues, host, pid, seen_at = row
    return Leaver(rows.text(id_), queues, host, pid, aware(seen_at))


def _left(row: Sequence[Any]) -> Consumption:
    queue, host, pid, seen_at = row
    return (rows.text(queue),), LastConsumer(host=host, pid=pid, seen_at=aware(seen_at))


def _leased(row: Sequence[Any]) -> LeasedMessage:
    id_, queue, token, attempts, deliveries, claimed_at, lease_until = row
    return LeasedMessage(
        id=id_,
        queue=rows.text(queue),
        worker_id=worker_of(UUID(bytes=token)),
        attempts=attempts,
        deliveries=deliveries,
        claimed_at=shown(claimed_at),
        lease_until=shown(lease_until),
    )
