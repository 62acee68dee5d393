"""Pauses, and the workers that have reported."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta

from nightmail.controls import (
    CONSUMERS_KEPT_FOR,
    FORGOTTEN_AFTER,
    LastConsumer,
    Pause,
    WorkerRecord,
    WorkerReport,
    consumption,
    latest_of_each,
)
from nightmail.stores.memory.times import after


class Controls:
    """What operators and workers have noted about queues and about themselves."""

    def __init__(self) -> None:
        self._pauses: dict[tuple[str, str | None, bool], Pause] = {}
        self._lengths: dict[str, timedelta] = {}
        """How long the automatic pause of each queue was last set for."""
        self._workers: dict[str, WorkerRecord] = {}
        self._consumers: dict[str, LastConsumer] = {}
        """Of each queue the last of those that have left it."""

    def pause(self, pause: Pause) -> None:
        """Set this pause, in place of the one before it."""
        key = pause.queue, pause.ordering_key, pause.automatic
        if pause.automatic and pause.until is not None:
            self._lengths[pause.queue] = pause.until - pause.since
        before = self._in_force(key, pause.since)
        self._pauses[key] = pause if before is None else replace(pause, since=before.since)

    def resume(self, queue: str, ordering_key: str | None, automatic: bool, now: datetime) -> bool:
        """End this pause; whether it was in force."""
        key = queue, ordering_key, automatic
        found = self._in_force(key, now)
        self._pauses.pop(key, None)
        return found is not None

    def pauses(self, now: datetime) -> list[Pause]:
        """Those in force, in order."""
        found = [pause for key in list(self._pauses) if (pause := self._in_force(key, now))]
        return sorted(found, key=lambda each: (each.queue, each.ordering_key or "", each.automatic))

    def paused_keys(self, queue: str, now: datetime) -> frozenset[str]:
        """The ordering keys of this queue that are paused."""
        return frozenset(
            key
            for name, key, automatic in list(self._pauses)
            if name == queue and key is not None and self._in_force((name, key, automatic), now)
        )

    def open_queues(self, queues: Iterable[str], now: datetime) -> tuple[list[str], list[str]]:
        """Those of these queues that are not paused, and those to be probed."""
        free, probes = [], []
        for queue in queues:
            automatic = self._pauses.get((queue, None, True))
            if self._in_force((queue, None, False), now) is not None:
                continue
            if automatic is None:
                free.append(queue)
            elif automatic.until is not None and automatic.until <= now:
                probes.append(queue)
        return free, probes

    def probed(self, queue: str, now: datetime) -> None:
        """A probe was taken: renew the automatic pause."""
        key = queue, None, True
        self._pauses[key] = replace(self._pauses[key], until=after(now, self._lengths[queue]))

    def probe_again(self, queue: str, claimed_at: datetime, now: datetime) -> None:
        """The probe that was claimed then did not run: the next one may be taken now."""
        key = queue, None, True
        pause = self._pauses.get(key)
        if pause is None or pause.until is None or pause.until <= now:
            return
        if pause.until - self._lengths[queue] <= claimed_at:
            self._pauses[key] = replace(pause, until=now)

    def next_end(self, queues: Iterable[str], now: datetime) -> datetime | None:
        """When the next pause of these queues, or of a key in one, ends or lets a probe through."""
        names = set(queues)
        return min(
            (
                pause.until
                for pause in self._pauses.values()
                if pause.queue in names and pause.until is not None and pause.until > now
            ),
            default=None,
        )

    def report(self, worker: WorkerReport, now: datetime) -> None:
        """Note this worker, and forget those that were not seen for a day."""
        before = self._workers.pop(worker.id, None)
        leaving = [each for each in self._workers.values() if now - each.seen_at > FORGOTTEN_AFTER]
        for each in leaving:
            del self._workers[each.id]
        if before is not None:
            dropped = tuple(queue for queue in before.queues if queue not in worker.queues)
            leaving.append(replace(before, queues=dropped))
        self._leave(leaving, now)
        self._workers[worker.id] = WorkerRecord(
            id=worker.id,
            host=worker.host,
            pid=worker.pid,
            version=worker.version,
            queues=worker.queues,
            state=dict(worker.state),
            started_at=now if before is None else before.started_at,
            seen_at=now,
        )

    def sign_off(self, worker_id: str, now: datetime) -> None:
        """Forget this worker."""
        worker = self._workers.pop(worker_id, None)
        self._leave([] if worker is None else [worker], now)

    def workers(self, now: datetime) -> list[WorkerRecord]:
        """Those seen within the last day."""
        seen = (each for each in self._workers.values() if now - each.seen_at <= FORGOTTEN_AFTER)
        return sorted(seen, key=lambda each: (each.host, each.pid, each.id))

    def last_consumers(self, now: datetime) -> dict[str, LastConsumer]:
        """Who consumed each queue last."""
        return self._with(self._workers.values(), now)

    def _leave(self, workers: Iterable[WorkerRecord], now: datetime) -> None:
        """These no longer consume these queues."""
        self._consumers = self._with(workers, now)

    def _with(self, workers: Iterable[WorkerRecord], now: datetime) -> dict[str, LastConsumer]:
        left = (((queue,), consumer) for queue, consumer in self._consumers.items())
        latest = latest_of_each([*left, *map(consumption, workers)])
        return {
            queue: consumer
            for queue, consumer in latest.items()
            if now - consumer.seen_at <= CONSUMERS_KEPT_FOR
        }

    def _in_force(self, key: tuple[str, str | None, bool], now: datetime) -> Pause | None:
        pause = self._pauses.get(key)
        if pause is None or pause.automatic or pause.until is None or pause.until > now:
            return pause
        return None
