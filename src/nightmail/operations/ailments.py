"""What a doctor says about queues, workers and dead letters on any store: the words of each finding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from operator import attrgetter

from nightmail.controls import LastConsumer, LeasedMessage, Pause, WorkerRecord
from nightmail.errors import NotAllowed, SchemaDrift, SchemaMissing, SchemaOutdated, UnsuitableServer
from nightmail.findings import Code, Finding, Severity
from nightmail.operations.liveness import last_seen, name_of
from nightmail.operations.shell import command, resume_command
from nightmail.records import DeadLetter, PendingMessage, QueueStats, StoredMessage, fingerprint
from nightmail.wording import count, length, moment, several, when

_SHOWN = 3
"""How many examples evidence has."""


def no_worker(queue: str, stats: QueueStats, last: LastConsumer | None, now: datetime) -> Finding:
    """Messages that no process takes."""
    seen = last_seen(None, None) if last is None else last_seen(name_of(last), now - last.seen_at)
    late = "" if stats.oldest_due_age is None else f", the oldest for {length(stats.oldest_due_age)}"
    return Finding(
        code=Code.NO_WORKER,
        severity=Severity.FATAL,
        subject=(queue,),
        what=f"no live worker consumes queue {queue}",
        evidence=f"{several(stats.ready, 'message')} ready{late}; {seen}",
        consequence="nothing of this queue is delivered",
        remedy="start the service that consumes it, or mend its name: `nightmail workers` shows who consumes what",
    )


def worker_silent(worker: WorkerRecord, held: Sequence[LeasedMessage], now: datetime) -> Finding:
    """A worker that still has leases but says nothing."""
    ends = max(lease.lease_until for lease in held)
    return Finding(
        code=Code.WORKER_SILENT,
        severity=Severity.WARNING,
        subject=(worker.id,),
        what=f"worker {name_of(worker)} holds messages and is silent",
        evidence=(
            f"last seen {when(worker.seen_at, now)}; it holds {several(len(held), 'message')}, "
            f"such as {held[0].id} of {held[0].queue}"
        ),
        consequence=(
            f"if the process is gone, its messages go to other workers when their leases end ({moment(ends)}); if it "
            "lives, a handler blocks its event loop: it keeps its messages, and gets nothing done"
        ),
        remedy=(
            f"look at process {worker.pid} on {worker.host}: `py-spy dump --pid {worker.pid}` shows what blocks it; "
            "restart it, and run blocking code in a `def` handler"
        ),
    )


def workers_busy(
    queue: str, stats: QueueStats, live: Sequence[WorkerRecord], *, slots: int, mean: float
) -> Finding:
    """Every handler of a queue is in use, and messages are late."""
    pace = f"; a handler takes {length(timedelta(seconds=mean))} on average" if mean > 0 else ""
    late = stats.oldest_due_age or timedelta(0)
    where = "1 process" if len(live) == 1 else f"{count(len(live))} processes"
    busy = f"the only handler in {where} is" if slots == 1 else f"all {count(slots)} handlers in {where} are"
    return Finding(
        code=Code.WORKERS_BUSY,
        severity=Severity.WARNING,
        subject=(queue,),
        what=f"queue {queue} has more work than its workers can do",
        evidence=(
            f"{several(stats.ready, 'message')} ready, the oldest for {length(late)}; {busy} busy{pace}"
        ),
        consequence="messages are late, and later by the minute while more come than are done",
        remedy=(
            "`nightmail workers` shows what runs where, and since when; end a handler that hangs with "
            "`nightmail stop ID`. Else start more processes, raise `max_workers`, or make the handler faster: it may "
            "wait for something slow"
        ),
    )


def versions_mixed(live: Sequence[WorkerRecord]) -> Finding:
    """Two versions of the library at work."""
    by_version = {
        version: [each for each in live if each.version == version]
        for version in sorted({worker.version for worker in live})
    }
    return Finding(
        code=Code.VERSIONS_MIXED,
        severity=Severity.NOTICE,
        what="workers run different versions of Nightmail",
        evidence="; ".join(
            f"{version}: {', '.join(map(name_of, some[:_SHOWN]))}{' and others' if len(some) > _SHOWN else ''}"
            for version, some in by_version.items()
        ),
        consequence="normal during a deployment; if it stays, some processes were forgotten and run old code",
        remedy="finish the deployment: restart the processes of the older version",
    )


def leases_lost(again: Sequence[LeasedMessage], reported: Sequence[tuple[WorkerRecord, int]]) -> Finding:
    """Messages that were delivered before without an outcome, and workers that lost some."""
    evidence = []
    if again:
        worst = max(again, key=attrgetter("deliveries"))
        evidence.append(
            f"{several(len(again), 'running message')} had been delivered before without a result; the worst is "
            f"{worst.id} of {worst.queue}, in delivery {worst.deliveries}"
        )
    if reported:
        worker, most = max(reported, key=lambda pair: pair[1])
        total = sum(lost for _, lost in reported)
        evidence.append(
            f"workers lost {several(total, 'lease')} since they started, most of them {name_of(worker)} ({count(most)})"
        )
    return Finding(
        code=Code.LEASES_LOST,
        severity=Severity.WARNING,
        what="leases keep being lost",
        evidence="; ".join(evidence),
        consequence="work is done twice, and after ten deliveries without a result a message becomes a dead letter",
        remedy=(
            "find what ends or freezes the processes: kills for want of memory, stops without a grace period, machines "
            "that are suspended"
        ),
    )


def handler_long(lease: LeasedMessage, holder: WorkerRecord | None, now: datetime) -> Finding:
    """A handler that runs for very long."""
    where = f"worker {lease.worker_id}" if holder is None else name_of(holder)
    return Finding(
        code=Code.HANDLER_LONG,
        severity=Severity.NOTICE,
        subject=(str(lease.id),),
        what=f"a handler of queue {lease.queue} has been running for {length(now - lease.claimed_at)}",
        evidence=(
            f"message {lease.id}, attempt {lease.attempts + 1}, on {where} since {moment(lease.claimed_at)}; its lease "
            f"is renewed, now until {moment(lease.lease_until)}"
        ),
        consequence="it takes up one of its subscriber's `max_workers`, and a deployment waits for it",
        remedy=(
            f"`nightmail why {lease.id}`; end it with `nightmail stop {lease.id}`; bound such handlers with "
            "`handler_timeout`"
        ),
    )


def handler_outlives_lease(queue: str, worker: WorkerRecord, *, took: float, lease: float) -> Finding:
    """Handlers that run for longer than their lease lasts."""
    return Finding(
        code=Code.HANDLER_OUTLIVES_LEASE,
        severity=Severity.NOTICE,
        what=f"handlers of queue {queue} run for longer than their lease lasts",
        evidence=(
            f"one took {length(timedelta(seconds=took))} of late on {name_of(worker)}; the lease lasts "
            f"{length(timedelta(seconds=lease))}, and is renewed while the handler runs"
        ),
        consequence=(
            "a worker that cannot renew it, because it is frozen or cut off from the store, loses the message while "
            "the handler runs: another worker runs it a second time, at the same time"
        ),
        remedy=(
            "nothing, if its effects are in one transaction with the ack: a second run then has none. Else give this "
            "subscriber a longer `lease_ttl_seconds`: what a dead process held then goes to another later"
        ),
        subject=(queue,),
    )


def threads_short(worker: WorkerRecord, names: Sequence[str], *, handlers: int, threads: int) -> Finding:
    """Synchronous dependencies that share too few threads."""
    return Finding(
        code=Code.THREADS_SHORT,
        severity=Severity.WARNING,
        subject=(worker.id,),
        what=f"synchronous dependencies of worker {name_of(worker)} may wait for threads",
        evidence=(
            f"{count(handlers)} handlers may call {', '.join(names[:_SHOWN])} at once"
            f"{' and others' if len(names) > _SHOWN else ''}; anyio has {several(threads, 'thread')} for the whole "
            "process"
        ),
        consequence=(
            "handlers wait for a free thread before they start, and so does everything else in the process that "
            "needs one"
        ),
        remedy=(
            "make these dependencies `async def`, lower `max_workers`, or raise "
            "`anyio.to_thread.current_default_thread_limiter().total_tokens` before the broker starts"
        ),
    )


@dataclass(frozen=True, slots=True)
class Newest:
    """The newest dead letters, of so many."""

    letters: Sequence[DeadLetter]
    count: int

    def how_many(self, some: int) -> str:
        """So many of these letters: at least so many, if all of them are, and there are more."""
        more = some == len(self.letters) < self.count
        return f"{count(some)} or more messages" if more else several(some, "message")

    @property
    def largest(self) -> str:
        """The largest group among them, in words."""
        by_cause: dict[tuple[str, str, str | None], list[DeadLetter]] = {}
        for each in self.letters:
            error = None if each.error is None else fingerprint(each.error)
            by_cause.setdefault((each.queue, each.reason, error), []).append(each)
        (queue, reason, error), group = max(by_cause.items(), key=lambda item: len(item[1]))
        among = "" if len(self.letters) == self.count else f" among the newest {count(len(self.letters))}"
        return (
            f"the largest group{among}: {count(len(group))} of {queue}, {reason}{f', {error}' if error else ''} "
            f"(for example {group[0].id}, last {moment(max(each.died_at for each in group))})"
        )


def dead_letters_growing(dead: Newest, lately: int, within: timedelta) -> Finding:
    """Messages die now."""
    return Finding(
        code=Code.DEAD_LETTERS_GROWING,
        severity=Severity.WARNING,
        what=f"{dead.how_many(lately)} died within the last {length(within)}",
        evidence=f"{several(dead.count, 'dead letter')} in all; {dead.largest}",
        consequence="they are not lost, and not delivered either: dead letters wait for a person",
        remedy=(
            "`nightmail dead groups` shows the causes; stop it with `nightmail pause QUEUE`, mend the cause, then "
            "`nightmail dead redrive QUEUE --rate 50`"
        ),
    )


def dead_letters_waiting(dead: Newest) -> Finding:
    """Messages have died, but not lately."""
    return Finding(
        code=Code.DEAD_LETTERS_WAITING,
        severity=Severity.NOTICE,
        what=f"{several(dead.count, 'dead letter')} wait{'s' if dead.count == 1 else ''} for a decision",
        evidence=dead.largest,
        consequence="they stay until they are redriven or purged",
        remedy="`nightmail dead groups`, then `nightmail dead redrive` or `nightmail dead purge`",
    )


def retries_fail(queue: str, failed: Sequence[PendingMessage], looked_at: int, attempts: int) -> Finding:
    """Attempts that fail again and again."""
    worst = max(failed, key=attrgetter("attempts"))
    return Finding(
        code=Code.RETRIES_FAIL,
        severity=Severity.WARNING,
        subject=(queue,),
        what=f"retries in queue {queue} keep failing",
        evidence=(
            f"of the {several(looked_at, 'message')} due next, {count(len(failed))} have failed {attempts} times or "
            f"more; {worst.id} has failed {worst.attempts} times"
        ),
        consequence="each goes on until its retries are used up, and then becomes a dead letter",
        remedy=(
            f"`{command('pause', queue, '--reason', '...')}` stops the clock while you mend the cause; the log of the "
            "workers has the errors"
        ),
    )


def key_blocked(
    queue: str, blocked: Sequence[tuple[PendingMessage, StoredMessage]], now: datetime
) -> Finding:
    """Ordering keys in which nothing moves."""
    waiting, holder = min(blocked, key=lambda pair: pair[0].due_at)
    keys = "1 ordering key" if len(blocked) == 1 else f"{count(len(blocked))} ordering keys"
    return Finding(
        code=Code.KEY_BLOCKED,
        severity=Severity.WARNING,
        subject=(queue,),
        what=f"{keys} of queue {queue} ha{'s' if len(blocked) == 1 else 've'} been blocked for over an hour",
        evidence=(
            f"key {waiting.ordering_key}: message {waiting.id} has been due for {length(now - waiting.due_at)} behind "
            f"{holder.id}, which has failed {several(holder.attempts, 'time')}"
        ),
        consequence="no later message of such a key is delivered: that is what an ordering key promises",
        remedy=(
            f"`nightmail why {holder.id}`; mend what makes it fail, or let it die "
            f"(`nightmail stop {holder.id}` while it runs)"
        ),
    )


def pause_forgotten(pause: Pause, now: datetime, stats: QueueStats) -> Finding:
    """A pause that is older than a day."""
    key = pause.ordering_key
    what = f"queue {pause.queue}" if key is None else f"ordering key {key} of queue {pause.queue}"
    until = "with no end" if pause.until is None else f"until {when(pause.until, now)}"
    return Finding(
        code=Code.PAUSE_FORGOTTEN,
        severity=Severity.WARNING,
        subject=(pause.queue,) if key is None else (pause.queue, key),
        what=f"{what} has been paused for {length(now - pause.since)}",
        evidence=(
            f"by {pause.by} since {moment(pause.since)}, {until}{_because(pause)}; "
            f"{several(stats.ready, 'message')} ready"
        ),
        consequence="nothing of it is delivered while it is paused",
        remedy=f"`{resume_command(pause.queue, key)}`, if the reason is gone",
    )


def breaker_open(pause: Pause, now: datetime, stats: QueueStats) -> Finding:
    """A queue that paused itself."""
    return Finding(
        code=Code.BREAKER_OPEN,
        severity=Severity.WARNING,
        subject=(pause.queue,),
        what=f"the breaker of queue {pause.queue} is open",
        evidence=(
            f"{pause.by} paused it {when(pause.since, now)}{_because(pause)}; {several(stats.ready, 'message')} ready"
        ),
        consequence="one message at a time is let through to try; the others wait, and use up no attempts",
        remedy=(
            "mend what the handler depends on: the next try that succeeds closes it. To close it by hand: "
            f"`{command('resume', pause.queue, '--breaker')}`"
        ),
    )


def _because(pause: Pause) -> str:
    return f' ("{pause.reason}")' if pause.reason else ""


def clock_skew(skew: timedelta) -> Finding:
    """This machine and the store disagree about the time."""
    return _skewed(
        what=f"this machine's clock is {_off(skew)} the store's",
        evidence="two readings of this clock around one of the store's",
    )


def clocks_of_hosts(behind: Mapping[str, tuple[timedelta, WorkerRecord]]) -> Finding:
    """Hosts of workers and the store disagree about the time: by how much, and which worker said so."""
    worst = sorted(behind.items(), key=lambda item: (-abs(item[1][0]), item[0]))
    host, (skew, worker) = worst[0]
    some = ", ".join(f"{name} ({_off(off).removesuffix(' of')})" for name, (off, _) in worst[:_SHOWN])
    shown = worker.seen_at - skew
    return _skewed(
        what=(
            f"the clock of {host} is {_off(skew)} the store's"
            if len(worst) == 1
            else f"clocks differ from the store's: {some}{' and others' if len(worst) > _SHOWN else ''}"
        ),
        evidence=(
            f"worker {name_of(worker)} reported at {moment(shown)} by its own clock, and at {moment(worker.seen_at)} "
            "by the store's"
        ),
        hosts=sorted(behind),
    )


def _skewed(*, what: str, evidence: str, hosts: Sequence[str] = ()) -> Finding:
    return Finding(
        code=Code.CLOCK_SKEW,
        severity=Severity.WARNING,
        subject=tuple(hosts),
        what=what,
        evidence=evidence,
        consequence=(
            "nothing is lost: due times go by the store's clock. But an `activate_at` computed on such a machine is "
            "off by as much, and so are the times in its logs"
        ),
        remedy="let all machines take their time from NTP (chrony, systemd-timesyncd)",
    )


def _off(skew: timedelta) -> str:
    return f"{length(abs(skew))} behind" if skew > timedelta(0) else f"{length(abs(skew))} ahead of"


def schema_missing(error: SchemaMissing) -> Finding:
    """There are no tables."""
    return Finding(
        code=Code.SCHEMA_MISSING,
        severity=Severity.FATAL,
        what="the tables were never made here",
        evidence=" ".join(str(error).split()),
        consequence="nothing can be published or delivered; a service without `create_tables=True` refuses to start",
        remedy="`nightmail migrate`, if this is the right database: `nightmail migrate --sql` prints what that does",
    )


def schema_outdated(error: SchemaOutdated) -> Finding:
    """A migration was forgotten."""
    return Finding(
        code=Code.SCHEMA_OUTDATED,
        severity=Severity.FATAL,
        what="the tables are older than this version needs",
        evidence=" ".join(str(error).split()),
        consequence="a service of this version refuses to start; those of the version before go on with these tables",
        remedy="`nightmail migrate`, while the old version runs; then start the new one",
    )


def schema_drift(error: SchemaDrift) -> Finding:
    """The tables are not what they should be."""
    return Finding(
        code=Code.SCHEMA_DRIFT,
        severity=Severity.FATAL,
        what="the tables are not those of this version",
        evidence=" ".join(str(error).split()),
        consequence="a service refuses to start on them; without an index, claims get slower as the queue grows",
        remedy="`nightmail migrate --repair` makes missing indexes; what else was changed by hand, change back",
    )


def unsuitable_server(error: UnsuitableServer) -> Finding:
    """The server is not fit to keep messages."""
    return Finding(
        code=Code.UNSUITABLE_SERVER,
        severity=Severity.FATAL,
        what="the server is not fit to keep messages",
        evidence=" ".join(str(error).split()),
        consequence="a service refuses to start on it",
        remedy="change what the evidence names, or use another server",
    )


def rights_missing(error: NotAllowed) -> Finding:
    """This account may not look at everything."""
    return Finding(
        code=Code.RIGHTS_MISSING,
        severity=Severity.NOTICE,
        what="this account may not do everything a service does",
        evidence=" ".join(str(error).split()),
        consequence="fine for one who only looks; a service with this account would not start",
        remedy="docs/stores.md lists the rights that a service needs",
    )
