"""Rules about what becomes of a message between its publisher and the end of the run."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    over = ledger.over
    if over is None:
        return
    if over.how is not None:
        yield "", f"the store is damaged: {over.how}"
    kept = {*over.waiting, *over.letters}
    for key, message in ledger.messages.items():
        if message.acknowledged is not None and _is_missing(message, kept):
            yield key, f"{key} was acknowledged and is lost"
        for lease in message.leases:
            gone = lease.gone
            if gone is None:
                continue
            id_ = lease.claimed.id
            if gone.outcome == "dead" and id_ not in over.letters:
                yield key, f"{key} died and is no dead letter"
            if id_ in over.waiting:
                yield key, f"{key} is there although it is {gone.outcome or 'acked'}"


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
    waiting = set(ledger.over.waiting if ledger.over else ())
    maybe_stored = {line.key for line in ledger.lines if line.what == "uncertain"}
    for key, message in ledger.messages.items():
        if message.intended is None:
            yield key, f"{key} is there, and no one published it"
            continue
        if message.refused is None or message.acknowledged is not None:
            continue
        if message.is_timer and (key in maybe_stored or _is_killed(message.intended.process, ledger)):
            continue
        if message.leases or waiting & message.ids:
            yield key, f"{key} was {message.refused.what.replace('_', ' ')} and is delivered"


def _is_killed(publisher: str, ledger: Ledger) -> bool:
    """Whether it was: it publishes a timer again without a line before, and may have been killed meanwhile."""
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


def returns(ledger: Ledger) -> Iterator[tuple[float, str]]:
    """After each outage of the whole store: how long the next claim took of each queue, and the next publish stored.

    When every server of a cluster is there again: the same of each process, which may have lost its own. There a claim
    that was answered is enough, though it found nothing: `claim_ended` is not written of one that failed.
    """
    of_queues: defaultdict[str, list[float]] = defaultdict(list)
    of_processes: defaultdict[str, list[float]] = defaultdict(list)
    for line in ledger.lines:
        if line.what == "claimed":
            of_queues[f"claim of {line.queue}"].append(line.at)
        if line.what in ("claimed", "claim_ended"):
            of_processes[f"claim by {line.process}"].append(line.at)
        elif line.what == "acknowledged":
            intended = ledger.messages[line.key or ""].intended
            of_queues[f"publish to {intended.queue if intended is not None else None}"].append(line.at)
            of_processes[f"publish by {line.process}"].append(line.at)
    # While its clock is moved back, nothing is due.
    outages = [fault for fault in ledger.faults if fault.target is None and fault.skew is None]
    returned = [fault.until for fault in outages if fault.until is not None]
    yield from _nexts(of_queues, returned, outages)
    for line in ledger.returned:
        # Others have begun since.
        there = {what: moments for what, moments in of_processes.items() if moments[0] < line.at}
        yield from _nexts(there, [line.at], outages)


def _nexts(
    uses: Mapping[str, Sequence[float]], returned: Iterable[float], outages: Sequence[Line]
) -> Iterator[tuple[float, str]]:
    for at in returned:
        away = _next_outage(at, outages)
        for what, moments in uses.items():
            place = bisect_left(moments, at)
            # Without a next one it was the end of the run: `delivered` says whether something was left.
            if place == len(moments):
                continue
            # What waits while the store is away again waits for the store.
            if moments[place] < away or away - at > RETURN_SECONDS:
                yield min(moments[place], away) - at, what


def _next_outage(at: float, outages: Iterable[Line]) -> float:
    """When the store was away next: then already, if another outage goes on."""
    return min(
        (max(fault.sent or fault.at, at) for fault in outages if fault.until is None or fault.until > at),
        default=inf,
    )
