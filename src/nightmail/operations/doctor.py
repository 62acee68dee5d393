"""What is wrong with this system, and what to do about it."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from operator import attrgetter, itemgetter

from nightmail.controls import LastConsumer, LeasedMessage, Pause, WorkerRecord
from nightmail.errors import (
    NightmailError,
    NotAllowed,
    SchemaDrift,
    SchemaMissing,
    SchemaOutdated,
    UnsuitableServer,
)
from nightmail.findings import Code, Examined, Finding
from nightmail.operations import ailments
from nightmail.operations.liveness import clock_of_host, consumers, is_live, subscribers, total
from nightmail.operations.workers import clock_of
from nightmail.records import DeadFilter, DeadLetter, PendingMessage, QueueStats
from nightmail.store import FullStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """From when on something is worth telling."""

    dying_within: timedelta = timedelta(minutes=15)
    dying: int = 10
    """So many dead letters within that time are too many."""
    late: timedelta = timedelta(minutes=1)
    lost_leases: int = 3
    handler: timedelta = timedelta(minutes=15)
    failed_attempts: int = 3
    failing: int = 10
    """So many waiting messages that have failed that often are too many, if they are half of those looked at."""
    blocked: timedelta = timedelta(hours=1)
    paused: timedelta = timedelta(days=1)
    skew: timedelta = timedelta(seconds=5)
    slow_report: timedelta = timedelta(seconds=10)
    """How long a worker's report may take to reach the store: as long as stores wait for a connection. A clock is only
    behind if it is so by more than this, too; no delay makes one look as if it were ahead."""
    sample: int = 100
    """How many waiting messages of a queue are looked at."""
    keys: int = 10
    """Of how many ordering keys of a queue, those with the oldest messages, it is asked whether they are blocked."""
    letters: int = 500
    """How many dead letters are looked at, the newest: counting all of them by cause takes too long."""
    letter_bytes: int = 4 * 1024 * 1024
    """How much of them is read at most."""


DEFAULTS = Thresholds()


async def diagnose(store: FullStore, thresholds: Thresholds = DEFAULTS) -> list[Finding]:
    """What is wrong, the worst first. Raises only where the store does not answer."""
    problem = await _problem(store)
    found: list[Finding] = []
    processes = 0
    # Without tables there is nothing to look at.
    if problem is None or problem.code is not Code.SCHEMA_MISSING:
        try:
            found, processes = await _look(store, thresholds)
        except NightmailError:
            # On a replica, with old or changed tables, or without rights, not everything can be read: that is told.
            if problem is None:
                raise
    if isinstance(store, Examined):
        try:
            found += await store.examine(processes=processes)
        except UnsuitableServer:
            # One that no connection can be made to is told already.
            if problem is None:
                raise
    # What makes a server unsuitable is told once, by the store if it knows more about it.
    if problem is not None and not any(each.evidence in problem.evidence for each in found):
        found.append(problem)
    return sorted(found, key=lambda each: (-each.severity, each.code, each.what))


async def _problem(store: FullStore) -> Finding | None:
    """What a service would refuse to start for."""
    try:
        await store.check(adopt=False)
    except SchemaMissing as error:
        return ailments.schema_missing(error)
    except SchemaOutdated as error:
        return ailments.schema_outdated(error)
    except SchemaDrift as error:
        return ailments.schema_drift(error)
    except NotAllowed as error:
        return ailments.rights_missing(error)
    except UnsuitableServer as error:
        return ailments.unsuitable_server(error)
    return None


async def _look(store: FullStore, thresholds: Thresholds) -> tuple[list[Finding], int]:
    """What the queues, their workers and their dead letters show, and how many processes are at work."""
    asked = datetime.now(UTC)
    now = await clock_of(store)
    took = datetime.now(UTC) - asked
    skew = now - (asked + took / 2)
    seen = Seen(
        now=now,
        stats=await store.stats(),
        workers=await store.workers(),
        last_consumers=await store.last_consumers(),
        leases=await store.leases(),
        pauses=await store.pauses(),
        dead=await store.dead(DeadFilter(), limit=thresholds.letters, max_bytes=thresholds.letter_bytes),
        thresholds=thresholds,
    )
    found = list(seen.findings())
    differing = _differing_clocks([each for each in seen.workers if is_live(each, now)], thresholds)
    # What the round trip took cannot be told from skew.
    if abs(skew) - took / 2 > thresholds.skew:
        found.append(ailments.clock_skew(skew))
        # Its workers need not say the same.
        differing.pop(socket.gethostname(), None)
    if differing:
        found.append(ailments.clocks_of_hosts(differing))
    for queue, stats in seen.stats.items():
        if stats.ready or stats.scheduled:
            waiting = await store.peek(queue, limit=thresholds.sample)
            found += _failing(queue, waiting, thresholds)
            found += await _blocked(store, queue, now, thresholds)
    return found, sum(is_live(each, now) for each in seen.workers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What one look at a store shows."""

    now: datetime
    stats: dict[str, QueueStats]
    workers: Sequence[WorkerRecord]
    last_consumers: Mapping[str, LastConsumer]
    """Of each queue."""
    leases: Sequence[LeasedMessage]
    pauses: Sequence[Pause]
    dead: Sequence[DeadLetter]
    """The newest of them."""
    thresholds: Thresholds

    def findings(self) -> Iterator[Finding]:
        """All that this shows."""
        yield from self._workers()
        yield from self._leases()
        yield from self._letters()
        for pause in self.pauses:
            if pause.automatic:
                yield ailments.breaker_open(pause, self.now, self.stats.get(pause.queue, QueueStats()))
            elif self.now - pause.since > self.thresholds.paused:
                yield ailments.pause_forgotten(pause, self.now, self.stats.get(pause.queue, QueueStats()))

    def _workers(self) -> Iterator[Finding]:
        for queue, stats in sorted(self.stats.items()):
            if stats.ready and not any(is_live(each, self.now) for each in consumers(queue, self.workers)):
                yield ailments.no_worker(queue, stats, self.last_consumers.get(queue), self.now)
        yield from self._busy()
        for worker in self.workers:
            held = [lease for lease in self.leases if lease.worker_id == worker.id]
            if held and not is_live(worker, self.now):
                yield ailments.worker_silent(worker, held, self.now)
        live = [worker for worker in self.workers if is_live(worker, self.now)]
        if len({worker.version for worker in live}) > 1:
            yield ailments.versions_mixed(live)
        yield from _short_of_threads(live)
        yield from _outliving(live)

    def _busy(self) -> Iterator[Finding]:
        for queue, stats in sorted(self.stats.items()):
            if (stats.oldest_due_age or timedelta(0)) <= self.thresholds.late:
                continue
            live = [each for each in consumers(queue, self.workers) if is_live(each, self.now)]
            own = [
                each
                for worker in live
                for each in subscribers(worker)
                if queue in each.get("queues", ()) and not each.get("dead_letters")
            ]
            slots, running = int(total(own, "max_workers")), int(total(own, "running"))
            if own and running >= slots > 0:
                mean = total(own, "handler_seconds") / len(own)
                yield ailments.workers_busy(queue, stats, live, slots=slots, mean=mean)

    def _leases(self) -> Iterator[Finding]:
        again = [lease for lease in self.leases if lease.deliveries > 1]
        live = [each for each in self.workers if is_live(each, self.now)]
        reported = [(each, lost) for each in live if (lost := int(total(subscribers(each), "leases_lost")))]
        if max(len(again), sum(lost for _, lost in reported)) >= self.thresholds.lost_leases:
            yield ailments.leases_lost(again, reported)
        longest = min(self.leases, key=attrgetter("claimed_at"), default=None)
        if longest is not None and self.now - longest.claimed_at > self.thresholds.handler:
            holder = next((each for each in self.workers if each.id == longest.worker_id), None)
            yield ailments.handler_long(longest, holder, self.now)

    def _letters(self) -> Iterator[Finding]:
        if not self.dead:
            return
        # The counts were read a moment earlier: some may have died since.
        among = ailments.Newest(
            self.dead, max(len(self.dead), sum(each.dead for each in self.stats.values()))
        )
        since = self.now - self.thresholds.dying_within
        lately = sum(letter.died_at >= since for letter in self.dead)
        if lately >= self.thresholds.dying:
            yield ailments.dead_letters_growing(among, lately, self.thresholds.dying_within)
        else:
            yield ailments.dead_letters_waiting(among)


def _short_of_threads(live: Sequence[WorkerRecord]) -> Iterator[Finding]:
    """Processes whose handlers may need more of anyio's threads at once than there are."""
    for worker in live:
        # Anything may report itself: what is no list names none.
        own = [
            each
            for each in subscribers(worker)
            if isinstance(names := each.get("blocking_dependencies"), list) and names
        ]
        threads = min(
            (each["shared_threads"] for each in own if isinstance(each.get("shared_threads"), int)),
            default=None,
        )
        handlers = int(total(own, "max_workers"))
        if threads is not None and handlers > threads:
            names = sorted({str(name) for each in own for name in each["blocking_dependencies"]})
            yield ailments.threads_short(worker, names, handlers=handlers, threads=threads)


def _outliving(live: Sequence[WorkerRecord]) -> Iterator[Finding]:
    """Queues whose handlers run for longer than their leases last: of each the process where they take longest."""
    longest: dict[str, tuple[float, float, WorkerRecord]] = {}
    for worker in live:
        for each in subscribers(worker):
            took, lease = total([each], "longest_handler_seconds"), total([each], "lease_seconds")
            if took > lease > 0 and isinstance(queues := each.get("queues"), list):
                for queue in map(str, queues):
                    longest[queue] = max(
                        longest.get(queue, (0.0, 0.0, worker)), (took, lease, worker), key=itemgetter(0)
                    )
    for queue, (took, lease, worker) in sorted(longest.items(), key=itemgetter(0)):
        yield ailments.handler_outlives_lease(queue, worker, took=took, lease=lease)


def _differing_clocks(
    live: Sequence[WorkerRecord], thresholds: Thresholds
) -> dict[str, tuple[timedelta, WorkerRecord]]:
    """By host: how far its clock is behind the store's, and the worker that says so."""
    least: dict[str, tuple[timedelta, WorkerRecord]] = {}
    for worker in live:
        if (shown := clock_of_host(worker)) is not None:
            behind = worker.seen_at - shown
            # A report that was slow to arrive seems to come from a clock that is behind: the fastest is nearest to it.
            least[worker.host] = min(
                least.get(worker.host, (behind, worker)), (behind, worker), key=itemgetter(0)
            )
    return {
        host: (behind, worker)
        for host, (behind, worker) in least.items()
        if not -thresholds.skew <= behind <= thresholds.skew + thresholds.slow_report
    }


def _failing(queue: str, waiting: Sequence[PendingMessage], thresholds: Thresholds) -> Iterator[Finding]:
    failed = [each for each in waiting if each.attempts >= thresholds.failed_attempts]
    if len(failed) >= thresholds.failing and 2 * len(failed) >= len(waiting):
        yield ailments.retries_fail(queue, failed, len(waiting), thresholds.failed_attempts)


async def _blocked(store: FullStore, queue: str, now: datetime, thresholds: Thresholds) -> list[Finding]:
    """Ordering keys on which something has waited for too long: one finding for the queue."""
    late = await store.peek(queue, due_before=now - thresholds.blocked, limit=thresholds.sample)
    first_of = {each.ordering_key: each for each in reversed(late) if each.ordering_key is not None}
    # Reversed, so that the first of each key is kept: the oldest is last.
    oldest = list(reversed(first_of.values()))[: thresholds.keys]
    blocked = []
    for message in oldest:
        # One that has ended since is blocked no more, and a worker's account may not read what became of it.
        with suppress(NotAllowed):
            facts = await store.facts(message.id)
            if facts.key_held_by is not None:
                blocked.append((message, facts.key_held_by))
    return [ailments.key_blocked(queue, blocked, now)] if blocked else []
