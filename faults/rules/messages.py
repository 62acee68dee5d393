"""Rules about what becomes of a message between its publisher and the end of the run."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final

from faults.journal import Line
from faults.ledger import Ledger, Message

RETURN_SECONDS: Final = 10.0
"""How soon a store that is back must be in use again."""


def is_stored(message: Message) -> bool:
    """Whether it is certain that it was stored: its publisher was told so, or a worker has had it.

    Of an uncertain publish only a claim says so.
    """
    return message.acknowledged is not None or bool(message.leases)


def nothing_lost(ledger: Ledger) -> Iterator[tuple[str, str]]:
    """What was acknowledged is still there, or was removed by a write that a worker sent under its lease."""
    yield from lost(ledger)
    yield from astray(ledger)


def lost(ledger: Ledger) -> Iterator[tuple[str, str]]:
    """What was acknowledged and is gone."""
    over = ledger.over
    if over is None:
        return
    kept = {*over.waiting, *over.letters}
    for key, message in ledger.messages.items():
        if message.acknowledged is None:
            continue
        if _is_missing(message, kept):
            yield key, f"{key} was acknowledged and is lost"
        elif _is_no_letter(message, over):
            yield key, f"{key} died and is no dead letter"


def astray(ledger: Ledger) -> Iterator[tuple[str, str]]:
    """What else is not as it was left: done with and still there, dead and no dead letter, a file that is damaged."""
    over = ledger.over
    if over is None:
        return
    if over.how is not None:
        yield "", f"the store is damaged: {over.how}"
    for key, message in ledger.messages.items():
        if message.acknowledged is None and _is_no_letter(message, over):
            yield key, f"{key} died and is no dead letter"
        for lease in message.leases:
            gone = lease.gone
            if gone is not None and lease.claimed.id in over.waiting:
                yield key, f"{key} is there although it is {gone.outcome or 'acked'}"


def _is_no_letter(message: Message, over: Line) -> bool:
    """Whether a worker has given it up, and it is not among the dead letters."""
    return any(
        lease.gone is not None and lease.gone.outcome == "dead" and lease.claimed.id not in over.letters
        for lease in message.leases
    )


def nothing_vanishes(ledger: Ledger) -> Iterator[tuple[str, str]]:
    """The same of what a worker has had, although its publisher was never told that it is stored."""
    if ledger.over is None:
        return
    kept = {*ledger.over.waiting, *ledger.over.letters}
    for key, message in ledger.messages.items():
        if message.acknowledged is None and message.leases and _is_missing(message, kept):
            yield key, f"{key} was claimed and is gone"


def _is_missing(message: Message, kept: set[int]) -> bool:
    return kept.isdisjoint(message.ids) and not any(lease.removing < inf for lease in message.leases)


def no_phantom(ledger: Ledger) -> Iterator[tuple[str, str]]:
    """What was rolled back, or refused as not stored, never appears; nor does what no one published."""
    there = {*ledger.over.waiting, *ledger.over.letters} if ledger.over else set()
    last = {line.process: line.key for line in ledger.lines if line.what == "intended"}
    maybe_stored = {line.key for line in ledger.lines if line.what == "uncertain"}
    for key, message in ledger.messages.items():
        if message.intended is None:
            yield key, f"{key} is there, and no one published it"
            continue
        if message.refused is None or message.acknowledged is not None:
            continue
        publisher = message.intended.process
        if message.is_timer and (
            key in maybe_stored or (last[publisher] == key and _is_killed(publisher, ledger))
        ):
            continue
        if message.leases or there & message.ids:
            yield key, f"{key} was {message.refused.what.replace('_', ' ')} and is there"


def _is_killed(publisher: str, ledger: Ledger) -> bool:
    """Whether it was: it publishes its last timer again without a line before, and may have been killed meanwhile."""
    return any(fault.target == publisher and fault.until is None for fault in ledger.faults)


def effects_once(ledger: Ledger) -> Iterator[tuple[str, str]]:
    """What a handler writes in the transaction that ends its message is there once, and only if that has ended."""
    over = ledger.over
    if over is None:
        return
    effects = Counter(over.effects)
    kept = {*over.waiting, *over.letters}
    for key, count in effects.items():
        if count > 1:
            yield key, f"{key} has its effect {count} times"
        message = ledger.messages.get(key)
        if message is None or not any(lease.started for lease in message.leases):
            yield key, f"{key} has an effect, and no handler of it has run"
    for key, message in ledger.messages.items():
        if message.intended is None or not message.intended.transactional:
            continue
        if effects[key] and not kept.isdisjoint(message.ids):
            yield key, f"{key} has its effect and is still there"
        if not effects[key] and _is_gone(message, kept):
            yield key, f"{key} is gone without its effect"


def _is_gone(message: Message, kept: set[int]) -> bool:
    return is_stored(message) and kept.isdisjoint(message.ids)


def timer_ids(ledger: Ledger) -> Iterator[tuple[str, str]]:
    """However often a timer id is published while it is taken, one message is stored for it."""
    for key, message in ledger.messages.items():
        if len(message.ids) > 1:
            ids = ", ".join(map(str, sorted(message.ids)))
            yield key, f"{key} was stored {len(message.ids)} times: {ids}"


def delivered(ledger: Ledger) -> Iterator[tuple[str, str]]:
    """When the faults are over, everything that is due is delivered in the time that the run gives it."""
    over, calm = ledger.over, ledger.calm
    if over is None or calm is None or not over.waiting:
        return
    waiting = set(over.waiting)
    for key, message in ledger.messages.items():
        if waiting & message.ids:
            yield key, f"{key} still waits {over.at - calm.at:.1f} s after the last fault"
    unknown = waiting.difference(*(message.ids for message in ledger.messages.values()))
    if unknown:
        yield "", f"{len(unknown)} messages still wait {over.at - calm.at:.1f} s after the last fault"


def used_again(ledger: Ledger) -> Iterator[tuple[str, str]]:
    """A store that is back is in use within ten seconds: each queue, and by each process."""
    for seconds, what in returns(ledger):
        if seconds > RETURN_SECONDS:
            yield "", f"the store was back for {seconds:.1f} s without a {what}"


@dataclass(slots=True)
class _Use:
    """One way to use the store: claims of a queue, publishes by a process."""

    until: float
    """Until when it is to go on; `-inf` where it may end at any time."""
    moments: list[float] = field(default_factory=list)
    """When it succeeded."""
    asked: list[float] | None = None
    """When it was tried, if it need not be tried always."""

    def is_asked(self, since: float, until: float) -> bool:
        """Whether it was to succeed in this time."""
        return self.asked is None or any(since <= at < until for at in self.asked)


def returns(ledger: Ledger) -> Iterator[tuple[float, str]]:
    """After each outage of the whole store: how long the next claim took of each queue, and the next publish stored.

    The same of each process. On a cluster it may have lost its own server: there it counts from when every server is
    back. A claim or a look ahead that was answered is enough, though it found nothing: `claim_ended` is not written of
    a claim that failed.
    """
    # While its clock is moved back, nothing is due.
    outages = [fault for fault in ledger.faults if fault.target is None and fault.skew is None]
    returned = [fault.until for fault in outages if fault.until is not None]
    of_queues, of_processes = _uses(ledger)
    yield from _nexts(of_queues, returned, outages)
    for at in [line.at for line in ledger.returned] or returned:
        # Others have begun since.
        there = {what: use for what, use in of_processes.items() if use.moments and use.moments[0] < at}
        yield from _nexts(there, [at], outages)


def _uses(ledger: Ledger) -> tuple[dict[str, _Use], dict[str, _Use]]:
    """Those of each queue, and those by each process."""
    of_queues: dict[str, _Use] = {}
    of_processes: dict[str, _Use] = {}
    ends = _ends(ledger)
    calm = ledger.calm.at if ledger.calm is not None else ends[None]

    def by(process: str) -> float:
        return min(ends.get(process, inf), ends[None])

    for line in ledger.lines:
        if line.what == "claimed":
            # It may be empty from now on: `delivered` says if it is not.
            of_queues.setdefault(f"claim of {line.queue}", _Use(-inf)).moments.append(line.at)
        if line.what in ("claimed", "claim_ended", "looked"):
            claims = of_processes.setdefault(f"claim by {line.process}", _Use(by(line.process)))
            claims.moments.append(line.at)
        elif line.what in ("intended", "acknowledged"):
            intended = ledger.messages[line.key or ""].intended
            queue = intended.queue if intended is not None else None
            for use in (
                of_queues.setdefault(f"publish to {queue}", _Use(calm, asked=[])),
                of_processes.setdefault(
                    f"publish by {line.process}", _Use(min(by(line.process), calm), asked=[])
                ),
            ):
                moments = use.moments if line.what == "acknowledged" else use.asked
                assert moments is not None
                moments.append(line.at)
    return of_queues, of_processes


def _nexts(
    uses: Mapping[str, _Use], returned: Iterable[float], outages: Sequence[Line]
) -> Iterator[tuple[float, str]]:
    for at in returned:
        away = _next_outage(at, outages)
        for what, use in uses.items():
            place = bisect_left(use.moments, at)
            if place == len(use.moments):
                # Never again: how long it would have taken is not known, only that it was too long.
                ends = min(use.until, away)
                if ends - at > RETURN_SECONDS and use.is_asked(at, ends):
                    yield ends - at, what
            # What waits while the store is away again waits for the store.
            elif use.moments[place] < away or away - at > RETURN_SECONDS:
                yield min(use.moments[place], away) - at, what


def _ends(ledger: Ledger) -> dict[str | None, float]:
    """Until when each process was to be at work; under `None`, the end of the run."""
    over = ledger.over or ledger.lines[-1]
    ends: dict[str | None, float] = {None: over.at}
    for name, process in ledger.processes.items():
        ends[name] = min(
            (line.at for line in (process.stopping, process.exited) if line is not None), default=inf
        )
    for fault in ledger.faults:
        if fault.target is not None and fault.until is None:
            ends[fault.target] = min(ends.get(fault.target, inf), fault.sent or fault.at)
    return ends


def _next_outage(at: float, outages: Iterable[Line]) -> float:
    """When the store was away next: then already, if another outage goes on."""
    return min(
        (max(fault.sent or fault.at, at) for fault in outages if fault.until is None or fault.until > at),
        default=inf,
    )
