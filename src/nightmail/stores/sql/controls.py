"""Pauses and workers, as rows keep them and as values: the same in every SQL store."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

from nightmail.controls import Consumption, LastConsumer, WorkerRecord, WorkerReport
from nightmail.outcome import storable_text

WHOLE_QUEUE: Final = ""
"""The ordering key in the row of a pause of a whole queue: a primary key has no nulls, and no ordering key is empty."""
TEXT_LIMIT: Final = 255
"""How many characters are kept of what a worker says about itself, but for its state."""


def stored_key(ordering_key: str | None) -> str:
    """The ordering key of a pause, as its row has it."""
    return WHOLE_QUEUE if ordering_key is None else ordering_key


def worker_values(worker: WorkerReport) -> dict[str, Any]:
    """What a worker says about itself, as parameters: `queues` and `state` are JSON."""
    return {
        "id": worker.id,
        "host": storable_text(worker.host, TEXT_LIMIT),
        "pid": worker.pid,
        "version": storable_text(worker.version, TEXT_LIMIT),
        "queues": json.dumps(worker.queues),
        "state": json.dumps(dict(worker.state)),
    }


class Leaver(NamedTuple):
    """What a worker leaves behind that may no longer consume its queues."""

    id: str
    queues: str
    """JSON."""
    host: str
    pid: int
    seen_at: datetime

    def consumption(self, *, but_for: Collection[str] = ()) -> Consumption:
        """What it consumed when it was last seen, other than these queues."""
        queues = [queue for queue in json.loads(self.queues) if queue not in but_for]
        return queues, LastConsumer(host=self.host, pid=self.pid, seen_at=self.seen_at)


def worker_record(row: Mapping[str, Any], started_at: datetime, seen_at: datetime) -> WorkerRecord:
    """A worker, as it last reported itself. The times are given apart: each store reads its own."""
    return WorkerRecord(
        id=row["id"],
        host=row["host"],
        pid=row["pid"],
        version=row["version"],
        queues=tuple(json.loads(row["queues"])),
        state=json.loads(row["state"]),
        started_at=started_at,
        seen_at=seen_at,
    )
