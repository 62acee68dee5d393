"""What steers a store, and what says why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nightmail.clock import Clock
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
    worker_of,
)
from nightmail.message import Delivery, Due
from nightmail.stores.postgres import rows
from nightmail.stores.postgres.leases import PASSED_OVER
from nightmail.stores.postgres.times import due_values
from nightmail.stores.sql.controls import stored_key, worker_record, worker_values
from nightmail.stores.sql.statements import Statement
from nightmail.stores.sql.verbs import Ask, Change, Verb


class Controlling:
    """The verbs of `Control`: one statement each, but for `facts`."""

    def __init__(self, statements: Mapping[str, Statement], clock: Clock) -> None:
        self._statements = statements
        self._clock = clock

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
        values = {
            "queue": queue,
            "ordering_key": stored_key(ordering_key),
            "automatic": automatic,
            "by": by,
            "reason": reason,
            **due_values(until),
        }
        yield self._ask("pause", values)
        return Change(None)

    def resume(self, queue: str, *, ordering_key: str | None, automatic: bool) -> Verb[Change[bool]]:
        """See `Control.resume`."""
        values = {"queue": queue, "ordering_key": stored_key(ordering_key), "automatic": automatic}
        (row,) = yield self._ask("resume", values)
        return Change(row["ended"])

    def probe_again(self, probe: Delivery) -> Verb[Change[None]]:
        """See `Control.probe_again`."""
        yield self._ask("probe_again", {"queue": probe.queue, "claimed_at": probe.claimed_at})
        return Change(None)

    def pauses(self, queue: str | None) -> Verb[list[Pause]]:
        """See `Control.pauses`."""
        return [rows.pause(row) for row in (yield self._ask("pauses", {"queue": queue}))]

    def request_stop(self, id_: int, by: str) -> Verb[bool]:
        """See `Control.request_stop`."""
        return bool((yield self._ask("request_stop", {"id": id_, "by": by})))

    def report(self, worker: WorkerReport) -> Verb[None]:
        """See `Control.report`."""
        lengths = {"forgotten_after": FORGOTTEN_AFTER, "kept_for": CONSUMERS_KEPT_FOR}
        yield self._ask("report", worker_values(worker) | lengths)

    def sign_off(self, worker_id: str) -> Verb[None]:
        """See `Control.sign_off`."""
        yield self._ask("sign_off", {"id": worker_id, "kept_for": CONSUMERS_KEPT_FOR})

    def workers(self) -> Verb[list[WorkerRecord]]:
        """See `Control.workers`."""
        found = yield self._ask("workers", {"forgotten_after": FORGOTTEN_AFTER})
        return [worker_record(row, row["started_at"], row["seen_at"]) for row in found]

    def last_consumers(self) -> Verb[dict[str, LastConsumer]]:
        """See `Control.last_consumers`."""
        found = yield self._ask("last_consumers", {"kept_for": CONSUMERS_KEPT_FOR})
        return {
            row["queue"]: LastConsumer(host=row["host"], pid=row["pid"], seen_at=row["seen_at"])
            for row in found
        }

    def leases(self, limit: int) -> Verb[list[LeasedMessage]]:
        """See `Control.leases`."""
        found = yield self._ask("leases", {"limit": max(limit, 0), "most": PASSED_OVER})
        return [rows.leased_message(row) for row in found]

    def facts(self, id_: int) -> Verb[MessageFacts]:
        """See `Control.facts`."""
        if id_ < 1:
            # No message has such an id. What is left, the clock, may be read by every account.
            (row,) = yield self._ask("moment", {})
            return MessageFacts(now=row["looked_at"], message=None)
        found = yield self._ask("facts", {"id": id_, "most": MOST_AHEAD})
        if not found:
            return (yield from self._gone(id_))
        row, *before = found
        pauses: list[Pause] = yield from self.pauses(row["queue"])
        unlocked = yield self._ask("unlocked", {"id": id_})
        return MessageFacts(
            now=row["now"],
            message=rows.stored(row),
            worker_id=worker_of(row["token"]) if row["running"] else None,
            stop_requested_by=row["stop_requested_by"],
            key_held_by=rows.stored(before[0]) if before else None,
            superseded_by=row["superseded_by"],
            locked=not unlocked,
            ahead=row["ahead"],
            pauses=tuple(each for each in pauses if each.ordering_key in (None, row["ordering_key"])),
        )

    def _gone(self, id_: int) -> Verb[MessageFacts]:
        (row,) = yield self._ask("gone", {"id": id_})
        return MessageFacts(
            now=row["now"],
            message=None,
            letter=None if row["id"] is None else rows.dead_letter(row),
            delivered_at=row["delivered_at"],
        )

    def _ask(self, name: str, values: Mapping[str, Any]) -> Ask:
        return Ask(self._statements[name], {**values, "now": self._clock.now()})
