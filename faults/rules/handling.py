"""Rules about what workers make of a delivery."""

from __future__ import annotations

import signal
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise
from math import inf
from typing import Final, TypeAlias

from faults.journal import BY_A_MESSAGE, CANCELLED, Line
from faults.ledger import Lease, Ledger, Message, Process, Spans
from faults.rules.leases import CLOCKS
from faults.rules.messages import is_stored
from faults.workload.config import TOGETHER
from faults.workload.process import STALL
from faults.workload.recorded import SLOW

LOOK_SECONDS: Final = 5.0
"""How often a worker looks that has nothing to do, and hears of nothing."""
PICKUP_SECONDS: Final = LOOK_SECONDS + 5.0
"""How soon a message that is due is claimed, if a worker has nothing to do: a busy machine gets as long again."""
WAKEUPS_CUT: Final = "wake-ups cut"
OLD_SNAPSHOT: Final = "old snapshot"
UNHELPED: Final = (WAKEUPS_CUT, OLD_SNAPSHOT)
"""Faults that may only make a message wait: a run with one of them is judged by how long that was."""
AFTERMATH_SECONDS: Final = 10.0
"""For how long what a fault has left behind may still hold a message back: a connection, a lock, a lease."""
UNHEARD_SECONDS: Final = 60.0
"""The same of a claim whose answer was never heard."""
LAST_SECONDS: Final = 3.0
"""How long a stop may take after the grace period: `Worker.stop` promises 2.5 s."""
SLOW_CLAIM: Final = 0.5
"""How late a claim's answer may be heard, in seconds, before its leases may end by themselves."""
TAKEOVER_SECONDS: Final = 10.0
"""How long after the end of its lease what a worker had is with another, if one is free."""
BY_THE_MACHINE: Final = (STALL, SLOW)
"""Faults that nothing injected: a busy machine."""
PAUSED_WITHIN: Final = 1.0
"""How long after a pause the last handler of what is paused may start, in seconds."""
Held: TypeAlias = tuple[float, float, int]
"""From when to when a process had a message, and on which of its deliveries."""
ALONE_FROM: Final = 3
"""From which delivery on a message that may have killed its process has to run alone."""


def runs_once(ledger: Ledger) -> Iterator[tuple[str, str]]:
    """A handler runs only what its process claimed, and each delivery once."""
    for line in ledger.orphans:
        yield (
            line.key or "",
            f"{line.process} wrote {line.what!r} for message {line.id}, which it did not claim",
        )
    for key, message in ledger.messages.items():
        for lease in message.leases:
            if len(lease.started) > 1:
                yield key, f"{lease.process} ran the same delivery of {key} {len(lease.started)} times"


def right_outcome(ledger: Ledger) -> Iterator[tuple[str, str]]:
    """What is written is what became of the run: nothing is done that did not end well, no stop is a failure."""
    for key, message in ledger.messages.items():
        for lease in message.leases:
            how = (
                lease.ended.how if lease.ended is not None else "not run" if not lease.started else "cut off"
            )
            # Its handler's transaction is opened before the handler: if that fails, the run has failed without a start.
            if how == "not run" and _is_transactional(message) and touched(lease, inf, ledger):
                continue
            for _, line in lease.settling:
                if not _is_right(line, how, lease, ledger):
                    yield key, f"{line.outcome!r} was written for {key}, which was {how}"


def _is_transactional(message: Message) -> bool:
    return message.intended is not None and message.intended.transactional


def _is_right(line: Line, how: str | None, lease: Lease, ledger: Ledger) -> bool:
    match line.outcome:
        case "done":
            return how == "ok"
        case "dead" if line.reason == "max_deliveries":
            booted = ledger.processes[lease.process].booted
            return booted is not None and lease.claimed.deliveries > booted.max_deliveries
        case "retry" | "dead":
            # A handler that returned may still fail to commit.
            return _may_still_try(line, lease, ledger) and (
                how == "failed"
                or _may_not_have_committed(line, lease, ledger)
                or _ran_too_long(line, lease, ledger)
            )
        case _:
            return how != "ok" or bool(lease.acking)


def _may_still_try(line: Line, lease: Lease, ledger: Ledger) -> bool:
    """Whether a failed run is tried again, or was the last that there may be. A handler may have given it up itself."""
    booted = ledger.processes[lease.process].booted
    if booted is None or not booted.max_attempts:
        return True  # It was killed before it could say how often it tries.
    was_last = lease.claimed.attempts + 1 >= booted.max_attempts
    return line.outcome == ("dead" if was_last else "retry") or line.reason == "rejected"


def _may_not_have_committed(settling: Line, lease: Lease, ledger: Ledger) -> bool:
    """Whether its transaction had acked it, and its worker was not sure of the commit.

    Its time may be up while the answer to a commit is on its way: it counts as failed, and what is written is refused.
    """
    if any(each.result == "written" for each in lease.acked):
        return lease.written is None and _time_was_up(settling.at, lease, ledger)
    return bool(lease.acking)


def _ran_too_long(settling: Line, lease: Lease, ledger: Ledger) -> bool:
    """Whether its handler was cancelled because its time was up, perhaps before its first line."""
    ended = lease.ended if lease.started else settling
    if ended is None or ended.how not in (None, CANCELLED):
        return False
    return _time_was_up(ended.at, lease, ledger)


def _time_was_up(at: float, lease: Lease, ledger: Ledger) -> bool:
    """Whether its handler had had all its time by then."""
    booted = ledger.processes[lease.process].booted
    # Counted from before the handler's first line, but not from before the claim.
    return booted is not None and bool(booted.timeout) and at - lease.claimed.at >= booted.timeout - CLOCKS


def no_needless_duplicate(ledger: Ledger) -> Iterator[tuple[str, str]]:
    """A lease expires only if a fault hit its holder: without faults nothing runs twice."""
    for key, message in ledger.messages.items():
        for earlier, later in expired(message):
            if not touched(earlier, later.claimed.at, ledger):
                yield key, f"the lease of {earlier.process} on {key} expired although no fault had hit it"


def duplicates_bounded(ledger: Ledger) -> Iterator[tuple[str, str]]:
    """No more runs twice than faults have hit while it was leased."""
    count, bound = duplicates(ledger), duplicates_bound(ledger)
    if count > bound:
        yield "", f"{count} leases led to a second run, and faults have hit {bound}"


def duplicates(ledger: Ledger) -> int:
    """How many leases ended by themselves after their run had begun, and were followed by another run."""
    return sum(
        bool(earlier.started and later.started)
        for message in ledger.messages.values()
        for earlier, later in expired(message)
    )


def duplicates_bound(ledger: Ledger) -> int:
    """How many leases faults have hit in flight, after a run: no more than these may have led to a second one."""
    count = 0
    for message in ledger.messages.values():
        followed = {earlier.number: later.claimed.at for earlier, later in expired(message)}
        for lease in message.leases:
            until = min(followed.get(lease.number, inf), _over_at(lease))
            count += bool(lease.started) and _hit_in_flight(lease, until, ledger)
    return count


def _hit_in_flight(lease: Lease, until: float, ledger: Ledger) -> bool:
    """Whether a fault hit its holder between the claim and then. Unlike in `touched` nothing is allowed around it."""
    return _is_heard_late(lease) or ledger.hit(lease.process, _begun(lease), until)


def _over_at(lease: Lease) -> float:
    """When its holder knew what had become of it, or else when it had ended by itself at the latest."""
    answers = [line.at for line in (*lease.settled, *lease.acked) if line.result != "busy"]
    if answers:
        return min(answers)
    sent = (line for _, line in (*lease.settling, *lease.acking))
    ended = [lease.ended] if lease.ended is not None else []
    last = max(line.at for line in (lease.claimed, *lease.started, *ended, *lease.extended, *sent))
    return last + lease.claimed.lease


def expired(message: Message) -> Iterator[tuple[Lease, Lease]]:
    """Each lease that ended by itself, with the one that followed it."""
    for earlier, later in pairwise(message.leases):
        if not earlier.may_have_ended(later.number) and earlier.claimed.id == later.claimed.id:
            yield earlier, later


def taken_over(ledger: Ledger) -> Iterator[tuple[str, str]]:
    """What a process had that was killed, frozen or cut off goes to another within its lease and ten seconds more."""
    for seconds, earlier, later in takeovers(ledger):
        length = earlier.claimed.lease
        if seconds > length + TAKEOVER_SECONDS:
            key = later.claimed.key or ""
            yield (
                key,
                f"{key} was taken over {seconds:.1f} s after {earlier.process} was hit, with a lease of {length:g} s",
            )


def takeovers(ledger: Ledger) -> Iterator[tuple[float, Lease, Lease]]:
    """Each lease that a fault ended, the next one of its message, and how long that took from the fault.

    Not those that had to wait: suspects, which run alone, what was paused, what is behind another of its ordering key,
    and where every worker was busy, or hit itself.
    """
    held_keys: defaultdict[str, list[Lease]] = defaultdict(list)
    for message in ledger.messages.values():
        if message.intended is not None and message.intended.ordering_key is not None:
            held_keys[message.intended.ordering_key] += message.leases
    for message in ledger.messages.values():
        for earlier, later in expired(message):
            hit_at = _hit_at(earlier, later, ledger)
            if hit_at is None or later.claimed.deliveries >= ALONE_FROM:
                continue
            seconds = later.claimed.at - hit_at
            if seconds > earlier.claimed.lease + TAKEOVER_SECONDS:
                since = hit_at + earlier.claimed.lease
                ordering_key = message.intended.ordering_key if message.intended is not None else None
                if (
                    _waits_for(message, since, later.claimed.at, ledger)
                    or any(
                        since <= each.claimed.at < later.claimed.at for each in held_keys[ordering_key or ""]
                    )
                    or not _a_worker_is_free(earlier, since, since + TAKEOVER_SECONDS, ledger)
                ):
                    continue
            yield seconds, earlier, later


def _hit_at(earlier: Lease, later: Lease, ledger: Ledger) -> float | None:
    """When the fault came that ended a lease: the last one that was injected into its process.

    A busy machine can stop a process for half a second many times while it goes on renewing its leases.
    """
    begins = [
        fault.sent or fault.at
        for fault in ledger.faults_of(earlier.process)
        if fault.target is not None
        and fault.kind not in BY_THE_MACHINE
        and earlier.claimed.at <= (fault.sent or fault.at) <= later.claimed.at
    ]
    return max(begins, default=None)


def picked_up(ledger: Ledger) -> Iterator[tuple[str, str]]:
    """What is due is claimed within the time in which an idle worker looks and five seconds more, if one is idle."""
    for seconds, lease in pickups(ledger):
        if seconds > PICKUP_SECONDS:
            key = lease.claimed.key or ""
            yield key, f"{key} was claimed {seconds:.1f} s after it was due, and a worker had nothing to do"


def pickups(ledger: Ledger) -> Iterator[tuple[float, Lease]]:
    """Each first claim of a message, and how long after it was due and certainly stored.

    Not where anything else explains it: an injected fault, shortly before or meanwhile, a claim that was
    never heard, a pause, an ordering key; and beyond the bound only if a worker had nothing at all to do. Only runs are
    judged in which no process is killed or stopped under load: there, on a busy
    machine, too much else makes a message wait.
    """
    if not any(fault.kind in UNHELPED for fault in ledger.faults):
        return
    injected = Spans(fault for fault in ledger.faults if _may_delay(fault, ledger))

    @cache
    def held_by(process: str, queues: tuple[str, ...]) -> list[Held]:
        return [
            (_begun(lease), _over_at(lease), lease.claimed.deliveries)
            for lease in ledger.leases_of(process)
            if lease.claimed.queue in queues or lease.claimed.deliveries >= ALONE_FROM
        ]

    for message in ledger.messages.values():
        first = message.leases[0] if message.leases else None
        if first is None or message.acknowledged is None or first.claimed.deliveries > 1:
            continue
        is_ordered = message.intended is not None and message.intended.ordering_key is not None
        since = max(
            first.claimed.at - max(first.store_at - (first.claimed.due_at or first.store_at), 0.0),
            message.acknowledged.at,
        )
        until = first.claimed.at
        if (
            is_ordered
            or injected.touch(since - AFTERMATH_SECONDS, until)
            or ledger.unheard_by(until) > ledger.unheard_by(since - UNHEARD_SECONDS)
            or _waits_for(message, since, until, ledger)
        ):
            continue
        if until - since <= PICKUP_SECONDS:
            yield max(until - since, 0.0), first
            continue
        waited = [
            _waited(name, process, since, until, ledger)
            for name, process in ledger.processes.items()
            if _is_idle(process, held_by(name, _group(first.claimed.queue)), since, until, ledger)
        ]
        if waited:
            yield max(waited), first


def _group(queue: str | None) -> tuple[str, ...]:
    """The queues that are claimed together with this one."""
    return TOGETHER if queue in TOGETHER else (queue or "",)


def _may_delay(fault: Line, ledger: Ledger) -> bool:
    """Whether it hit the store or a process, or a process did it itself: not what hits only wake-ups, or messages.

    A busy machine is counted apart: by how long it stood still.
    """
    is_of_a_process = fault.process in ledger.processes or fault.target in ledger.processes
    return fault.kind not in BY_THE_MACHINE and (fault.target is None or is_of_a_process)


def _waited(name: str, process: Process, since: float, until: float, ledger: Ledger) -> float:
    """For how long this process could have claimed it."""
    begun = max(since, process.booted.at if process.booted is not None else since)
    return until - begun - _stood_still(name, begun, until, ledger)


def _is_idle(
    process: Process,
    held: Sequence[Held],
    since: float,
    until: float,
    ledger: Ledger,
) -> bool:
    """Whether this worker was there all the time, and for long had nothing of such queues, while the store was used.

    Not one that may have a message which runs alone: it claims nothing else then.
    """
    booted = process.booted
    ends = (process.stopping, process.exited)
    if booted is None or not booted.lease or any(end is not None and end.at <= until for end in ends):
        return False
    begun = max(since, booted.at)
    if until - begun <= PICKUP_SECONDS:
        return False
    idle_from, idle_to = begun + LOOK_SECONDS, begun + PICKUP_SECONDS
    if not ledger.in_use(idle_from, idle_to):
        return False
    return not any(
        (taken <= idle_to and over >= idle_from)
        or (deliveries >= ALONE_FROM and taken <= until and over >= begun - AFTERMATH_SECONDS)
        for taken, over, deliveries in held
    )


def _waits_for(message: Message, since: float, until: float, ledger: Ledger) -> bool:
    """Whether it was paused, or the store's clock was moved."""
    paused = (pause for pause in ledger.pauses if pause.covers(message))
    return ledger.stepped(since, until) or any(
        pause.paused.at <= until and pause.ends_at >= since for pause in paused
    )


def _a_worker_is_free(lost: Lease, since: float, until: float, ledger: Ledger) -> bool:
    """Whether a process that nothing hit asked for more of its queue in this time, or had nothing to do."""
    for name, process in ledger.processes.items():
        booted, ends = process.booted, (process.stopping, process.exited)
        is_there = booted is not None and booted.lease and booted.at <= since
        if not is_there or any(end is not None and end.at <= until for end in ends):
            continue
        if name == lost.process or ledger.hit(name, since, until):
            continue
        asked = ledger.claims_of(name, lost.claimed.queue or "")
        place = bisect_left(asked, since)
        if (place < len(asked) and asked[place] <= until) or not _is_busy(name, since, until, ledger):
            return True
    return False


def _is_busy(process: str, since: float, until: float, ledger: Ledger) -> bool:
    """Whether one of its handlers ran in this time."""
    return any(
        lease.started and lease.started[0].at <= until and (lease.ended is None or lease.ended.at >= since)
        for lease in ledger.leases_of(process)
    )


def touched(lease: Lease, until: float, ledger: Ledger) -> bool:
    """Whether a fault hit the holder of this lease while it had it."""
    # For the length of a lease after it the holder may still be busy with what it caused.
    return _is_heard_late(lease) or ledger.hit(lease.process, _begun(lease) - lease.claimed.lease, until)


def _is_heard_late(lease: Lease) -> bool:
    """An event loop that blocks cannot hear what its claim brought: its keeper does not know of it."""
    return lease.claimed.at - _begun(lease) > SLOW_CLAIM


def _begun(lease: Lease) -> float:
    return lease.claimed.sent or lease.claimed.at


def poison_alone(ledger: Ledger) -> Iterator[tuple[str, str]]:
    """A message that kills its process dies after exactly its limit, and from the third time on takes no run along.

    Until then several of them may wait in one process, and each that dies with it has been delivered once more. Nothing
    else is given up for the processes that it has lost, unless faults or such early runs have cost it each of them.
    """
    for key, message in ledger.messages.items():
        if message.intended is None or not message.intended.poison:
            yield from _buried_along(message, ledger)
            continue
        starts = [lease for lease in message.leases if lease.started]
        for lease in starts:
            yield from _taken_along(key, lease, ledger)
        booted = (process.booted for process in ledger.processes.values() if process.booted is not None)
        limits = {line.max_deliveries for line in booted if line.max_deliveries}
        letters = ledger.over.letters if ledger.over is not None else ()
        if is_stored(message) and limits:
            if message.ids.isdisjoint(letters):
                yield key, f"{key} kills its process and is no dead letter"
            elif len(starts) + sum(_dies_along(lease, ledger) for lease in message.leases) not in limits:
                yield key, f"{key} kills its process and was given up after {len(starts)} runs"


def _buried_along(message: Message, ledger: Ledger) -> Iterator[tuple[str, str]]:
    last = message.leases[-1] if message.leases else None
    if last is None or not any(line.reason == "max_deliveries" for _, line in last.settling):
        return
    for earlier, later in expired(message):
        killer = _killer(earlier, later, ledger)
        if killer is not None and killer.claimed.deliveries >= ALONE_FROM:
            what = (
                f"{killer.claimed.key}, on its delivery {killer.claimed.deliveries}, killed {earlier.process}"
            )
        elif killer is None and not touched(earlier, later.claimed.at, ledger):
            what = f"nothing had hit {earlier.process}"
        else:
            continue
        yield message.key, f"{message.key} kills no process and was given up for those that it lost: {what}"


def _killer(lost: Lease, later: Lease, ledger: Ledger) -> Lease | None:
    """The run that killed its process with this lease in hand."""
    if not any(fault.target == lost.process and fault.kind == BY_A_MESSAGE for fault in ledger.faults):
        return None
    for lease in ledger.leases_of(lost.process):
        message = ledger.messages[lease.claimed.key or ""]
        is_poison = message.intended is not None and message.intended.poison
        if is_poison and lease.started and _begun(lost) <= lease.started[-1].at <= later.claimed.at:
            return lease
    return None


def _dies_along(lease: Lease, ledger: Ledger) -> bool:
    """Whether another message killed its process before it was started itself: that is a delivery, too."""
    return (
        not lease.started
        and not lease.settling
        and any(fault.target == lease.process and fault.kind == BY_A_MESSAGE for fault in ledger.faults)
    )


def _taken_along(poison: str, killer: Lease, ledger: Ledger) -> Iterator[tuple[str, str]]:
    if killer.claimed.deliveries < ALONE_FROM:
        return
    died = killer.started[0].at
    for lease in ledger.leases_of(killer.process):
        key = lease.claimed.key or ""
        if key == poison or not lease.started:
            continue
        if lease.started[0].at <= died and (lease.ended is None or lease.ended.at > died):
            yield key, f"{poison}, on its delivery {killer.claimed.deliveries}, took {key} along"


def stops_in_time(ledger: Ledger) -> Iterator[tuple[str, str]]:
    """A process that is asked to stop ends within its grace period and a little more, and leaves no lease behind."""
    for name, process in ledger.processes.items():
        stopping, stopped, booted = process.stopping, process.stopped, process.booted
        if stopping is None or booted is None:
            continue
        if any(fault.until is None or fault.until >= stopping.at for fault in ledger.faults_of(name)):
            continue
        if stopped is None:
            yield "", f"{name} was asked to stop, and did not"
            continue
        took = stopped.at - stopping.at
        if took > booted.grace + LAST_SECONDS:
            yield "", f"{name} took {took:.1f} s to stop, with {booted.grace:g} s of grace"
        for lease in ledger.leases_of(name):
            key = lease.claimed.key or ""
            over = lease.settled or lease.acking or _taken_over(lease, ledger.messages[key], stopping.at)
            if not over:
                yield key, f"{name} stopped and left {key} leased"


def _taken_over(lease: Lease, message: Message, before: float) -> bool:
    """Whether it had ended by itself by then: its message was leased again, by the order of the store."""
    later = message.leases[message.leases.index(lease) + 1 :]
    return any(each.claimed.id == lease.claimed.id and each.claimed.at < before for each in later)


def ends_well(ledger: Ledger) -> Iterator[tuple[str, str]]:
    """A process ends with exit code 0, unless it was killed: no error gets out of the product unseen."""
    for name, process in ledger.processes.items():
        code = process.exited.code if process.exited is not None else None
        if not code:
            continue
        killed = any(fault.target == name and fault.until is None for fault in ledger.faults)
        # Before it has started, SIGTERM ends it as it ends every process.
        unready = code == -signal.SIGTERM and process.booted is None
        if not unready and not (code == -signal.SIGKILL and killed):
            yield "", f"{name} ended with {code}"


def obeys_pauses(ledger: Ledger) -> Iterator[tuple[str, str]]:
    """Of what is paused no handler starts any more, in any process, from a second after the pause to its end.

    Time in which the process stood still, or waited for the store, does not count.
    """
    for pause in ledger.pauses:
        what = pause.paused.ordering_key or pause.paused.queue
        for key, message in ledger.messages.items():
            if not pause.covers(message):
                continue
            for lease in message.leases:
                for started in lease.started:
                    if pause.paused.at + PAUSED_WITHIN < started.at < pause.ends_at:
                        late = started.at - pause.paused.at
                        if (
                            late - _stood_still(lease.process, pause.paused.at, started.at, ledger)
                            > PAUSED_WITHIN
                        ):
                            yield key, f"{lease.process} started {key} {late:.2f} s after {what} was paused"


def _stood_still(process: str, since: float, until: float, ledger: Ledger) -> float:
    """For how long in this time a fault hit this process."""
    hit = sorted(
        (max(fault.sent or fault.at, since), min(inf if fault.until is None else fault.until, until))
        for fault in ledger.faults_of(process)
    )
    total, counted = 0.0, since
    for begins, ends in hit:
        total += max(ends - max(begins, counted), 0.0)
        counted = max(counted, ends)
    return total
