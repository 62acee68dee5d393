"""What the scripts about pauses, leases and workers are told, and what they answer."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from struct import Struct
from typing import Final
from uuid import UUID

from nightmail.controls import (
    Consumption,
    LastConsumer,
    LeasedMessage,
    Pause,
    WorkerRecord,
    WorkerReport,
    worker_of,
)
from nightmail.stores.redis.records import text
from nightmail.stores.redis.requests import Argument
from nightmail.stores.redis.times import micros, time_micros, time_of, time_or_none

# As in pauses.lua: since when, until when, for how long, the size of who paused it.
_PAUSE: Final = Struct(">dddH")
_PERSON: Final = b"q"
_AUTOMATIC: Final = b"a"
_KEY: Final = b"k"
# As in leases.lua: id, token, when it was claimed, when the lease ends, failed runs, claims.
_LEASE: Final = Struct(">16s16sddII")


def pause_field(ordering_key: str | None, *, automatic: bool) -> bytes:
    """Where a pause of a queue, or of this ordering key in it, is kept."""
    if ordering_key is not None:
        return _KEY + ordering_key.encode()
    return _AUTOMATIC if automatic else _PERSON


def end_arguments(until: datetime | timedelta | None) -> tuple[Argument, Argument]:
    """The end of a pause, as pause.lua takes it."""
    if until is None:
        return "", ""
    if isinstance(until, datetime):
        return "at", time_micros(until)
    return "in", micros(until)


def pauses_of(reply: Sequence[bytes], queue: str) -> list[Pause]:
    """The pauses of a reply: the whole queue before its ordering keys, a person's before an automatic one."""
    found = [_pause(queue, field, value) for field, value in zip(reply[::2], reply[1::2], strict=True)]
    return sorted(found, key=lambda pause: (pause.ordering_key or "", pause.automatic))


def _pause(queue: str, field: bytes, value: bytes) -> Pause:
    since, until, _, size = _PAUSE.unpack_from(value)
    by, reason = value[_PAUSE.size : _PAUSE.size + size], value[_PAUSE.size + size :]
    return Pause(
        queue=queue,
        ordering_key=text(field[1:]) if field.startswith(_KEY) else None,
        by=text(by),
        reason=text(reason[1:]) if reason else None,
        since=time_of(since),
        until=time_or_none(until),
        automatic=field == _AUTOMATIC,
    )


def leased_messages(reply: bytes, queue: str) -> Iterator[LeasedMessage]:
    """The running messages of a reply."""
    for id_, token, claimed, until, attempts, deliveries in _LEASE.iter_unpack(reply):
        yield LeasedMessage(
            id=int(id_, 16),
            queue=queue,
            worker_id=worker_of(UUID(bytes=token)),
            attempts=attempts,
            deliveries=deliveries,
            claimed_at=time_of(claimed),
            lease_until=time_of(until),
        )


def encoded_report(worker: WorkerReport) -> str:
    """What a worker says about itself, but for its id."""
    said = {
        "host": worker.host,
        "pid": worker.pid,
        "version": worker.version,
        "queues": worker.queues,
        "state": dict(worker.state),
    }
    return json.dumps(said, ensure_ascii=False, separators=(",", ":"))


def worker_records(reply: Sequence[bytes]) -> list[WorkerRecord]:
    """The workers of a reply, by host, pid and id."""
    found = (_worker(*reply[at : at + 3]) for at in range(0, len(reply), 3))
    return sorted(
        (worker for worker in found if worker is not None),
        key=lambda worker: (worker.host, worker.pid, worker.id),
    )


def consumers_left(reply: Sequence[bytes]) -> Iterator[Consumption]:
    """Who consumed each queue last, of those that no longer do."""
    for queue, kept in zip(reply[::2], reply[1::2], strict=True):
        seen, pid, host = kept.split(b" ", 2)
        yield (
            (text(queue),),
            LastConsumer(host=text(host), pid=int(pid), seen_at=time_of(float(seen))),
        )


def _worker(id_: bytes, seen: bytes, kept: bytes) -> WorkerRecord | None:
    started, _, report = kept.partition(b" ")
    try:
        said = json.loads(report)
        return WorkerRecord(
            id=text(id_),
            host=str(said["host"]),
            pid=int(said["pid"]),
            version=str(said["version"]),
            queues=tuple(said["queues"]),
            state=dict(said["state"]),
            started_at=time_of(float(started)),
            seen_at=time_of(float(seen)),
        )
    except (ValueError, TypeError, KeyError):
        return None  # Other software wrote it. It is forgotten a day after its last report.
