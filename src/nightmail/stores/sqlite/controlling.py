"""The verbs of those who steer a store and ask why."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import timedelta

from nightmail.controls import (
    CONSUMERS_KEPT_FOR,
    FORGOTTEN_AFTER,
    MOST_AHEAD,
    LastConsumer,
    LeasedMessage,
    MessageFacts,
    Pause,
    WorkerRecord,
    WorkerReport,
    consumption,
    latest_of_each,
)
from nightmail.message import Delivery, Due
from nightmail.records import StoredMessage
from nightmail.stores.sql.controls import stored_key, worker_values
from nightmail.stores.sql.verbs import Change, Verb
from nightmail.stores.sqlite import rows
from nightmail.stores.sqlite.queries import Queries
from nightmail.stores.sqlite.ringing import ring
from nightmail.stores.sqlite.times import (
    StoreTime,
    before,
    due_moment,
    in_microseconds,
    moment_of,
    readable_moment,
    stored_moment,
)


class Controlling:
    """Pauses, requests to stop, workers, leases, and what holds a message back."""

    def __init__(self, sql: Queries, time: StoreTime) -> None:
        self._sql = sql
        self._time = time

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
        """Claim nothing of this queue, or of this ordering key in it."""
        now = self._time.stamp()
        yield self._sql(
            "pause",
            queue=queue,
            ordering_key=stored_key(ordering_key),
            automatic=automatic,
            now=now,
            until=None if until is None else due_moment(until, now),
            length=in_microseconds(until) if automatic and isinstance(until, timedelta) else None,
            paused_by=by,
            reason=reason,
        )
        return Change(None, (yield from ring(self._sql, frozenset((queue,)))))

    def resume(self, queue: str, *, ordering_key: str | None, automatic: bool) -> Verb[Change[bool]]:
        """End this pause; returns whether it was in force."""
        found = yield self._sql(
            "resume",
            queue=queue,
            ordering_key=stored_key(ordering_key),
            automatic=automatic,
            now=self._time.now(),
        )
        was_in_force = any(automatic or not over for (over,) in found)
        return Change(was_in_force, (yield from ring(self._sql, frozenset((queue,)))))

    def probe_again(self, probe: Delivery) -> Verb[Change[None]]:
        """Let the next probe through, unless the pause was set or renewed since this one was claimed."""
        yield self._sql(
            "probe_again",
            queue=probe.queue,
            now=self._time.now(),
            claimed_at=stored_moment(probe.claimed_at),
        )
        return Change(None, (yield from ring(self._sql, frozenset((probe.queue,)))))

    def pauses(self, queue: str | None) -> Verb[list[Pause]]:
        """The pauses in force, in order."""
        now = self._time.now()
        if queue is None:
            found = yield self._sql("pauses", now=now)
        else:
            found = yield self._sql("pauses_queue", queue=queue, now=now)
        return [rows.pause(row) for row in found]

    def request_stop(self, id_: int, by: str) -> Verb[bool]:
        """Ask the holder of this message to stop it; returns whether it runs."""
        found = yield self._sql("request_stop", id=id_, by=by, now=self._time.now())
        return bool(found)

    def report(self, worker: WorkerReport) -> Verb[None]:
        """Note this worker, and forget those that were not seen for a day."""
        now = self._time.stamp()
        a_day_ago = before(now, FORGOTTEN_AFTER)
        found = yield self._sql("leaving", id=worker.id, before=a_day_ago)
        yield self._sql("report", now=now, **worker_values(worker))
        leaving = [rows.leaver(row) for row in found]
        if any(each.id != worker.id for each in leaving):
            yield self._sql("forget_workers", before=a_day_ago)
        left = latest_of_each(
            each.consumption(but_for=worker.queues if each.id == worker.id else ()) for each in leaving
        )
        if left:
            yield from self._leave(left, now)

    def sign_off(self, worker_id: str) -> Verb[None]:
        """Forget this worker."""
        found = yield self._sql("sign_off", id=worker_id)
        yield from self._leave(
            latest_of_each(rows.leaver(row).consumption() for row in found), self._time.now()
        )

    def _leave(self, left: Mapping[str, LastConsumer], now: int) -> Verb[None]:
        """Note who consumed these queues last, and forget what is too old."""
        for queue, each in left.items():
            yield self._sql(
                "note_consumer",
                queue=queue,
                seen_at=stored_moment(each.seen_at),
                host=each.host,
                pid=each.pid,
            )
        yield self._sql("forget_consumers", before=before(now, CONSUMERS_KEPT_FOR))

    def workers(self) -> Verb[list[WorkerRecord]]:
        """Those seen within the last day, in order."""
        found = yield self._sql("workers", since=before(self._time.now(), FORGOTTEN_AFTER))
        return [rows.worker(row) for row in found]

    def last_consumers(self) -> Verb[dict[str, LastConsumer]]:
        """Who consumed each queue last, within 90 days."""
        since = before(self._time.now(), CONSUMERS_KEPT_FOR)
        reported = yield self._sql("workers", since=since)
        left = yield self._sql("last_consumers", since=since)
        return latest_of_each(
            [*map(rows.consumption, left), *(consumption(rows.worker(row)) for row in reported)]
        )

    def leases(self, limit: int) -> Verb[list[LeasedMessage]]:
        """Running messages, the longest running first."""
        found = yield self._sql("leases", now=self._time.now(), limit=max(limit, 0))
        return [rows.leased_message(row) for row in found]

    def facts(self, id_: int) -> Verb[MessageFacts]:
        """What is known about this message. It is never `locked`: an open transaction locks the whole file."""
        now = self._time.now()
        message = yield from self._find(id_, now)
        if message is None:
            letters = yield self._sql("newest_letter", id=id_)
            delivered = yield self._sql("delivered_at", id=id_)
            return MessageFacts(
                now=moment_of(now),
                message=None,
                letter=next(map(rows.dead_letter, letters), None),
                delivered_at=next((readable_moment(moment) for (moment,) in delivered), None),
            )
        ((token, stopped_by, first_of_key, owner, ahead),) = yield self._sql(
            "facts", id=id_, now=now, most_ahead=MOST_AHEAD
        )
        goes_first = None
        if not message.running and first_of_key not in (None, id_):
            goes_first = yield from self._find(first_of_key, now)
        pauses = yield from self.pauses(message.queue)
        return MessageFacts(
            now=moment_of(now),
            message=message,
            worker_id=None if token is None else rows.worker_id(token),
            stop_requested_by=stopped_by,
            key_held_by=goes_first,
            superseded_by=owner,
            ahead=0 if message.running else ahead,
            pauses=tuple(each for each in pauses if each.ordering_key in (None, message.ordering_key)),
        )

    def _find(self, id_: int, now: int) -> Verb[StoredMessage | None]:
        found = yield self._sql("find", ids=json.dumps([id_]), now=now)
        return next(map(rows.stored_message, found), None)
