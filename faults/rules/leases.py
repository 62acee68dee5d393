"""Rules about leases. They hold whatever the engine does, if it writes only under its leases."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import inf
from typing import Final

from faults.ledger import Lease, Ledger, Message

CLOCKS: Final = 0.010
"""How far the monotonic clock may run from the store's within one lease, in seconds. Where both times of a comparison
are the store's, nothing is allowed."""


def never_early(ledger: Ledger) -> Iterator[tuple[str, str]]:
    """No message is leased before it is due, by the store's clock; nor before its delay has passed by ours."""
    for key, message in ledger.messages.items():
        for lease in message.leases:
            early = (lease.claimed.due_at or 0.0) - lease.store_at
            if early > 0 and not _stepped_during(lease, ledger):
                yield key, f"{key} was leased {early:.6f} s before it was due"
        if message.leases and message.intended is not None and not message.is_timer:
            due = message.intended.at + message.intended.delay
            claimed = min(lease.claimed.at for lease in message.leases)
            early = due - claimed - CLOCKS
            # A store whose clock is moved forward cannot know better.
            if early > 0 and not ledger.stepped(message.intended.at, claimed):
                yield key, f"{key} was leased {early:.3f} s before its delay had passed"


def _stepped_during(lease: Lease, ledger: Ledger) -> bool:
    """Whether the store's clock was moved while the claim looked: what it found was free and due when it looked."""
    return ledger.stepped(lease.claimed.sent or lease.claimed.at, lease.claimed.at)


def one_lease(ledger: Ledger) -> Iterator[tuple[str, str]]:
    """No message has two live leases."""
    for key, message in ledger.messages.items():
        for earlier, later in _successive(message):
            gone = earlier.gone
            if gone is not None:
                yield key, f"{key} was leased to {later.process} although it is {gone.outcome or 'acked'}"
            elif not earlier.may_have_ended(later.number):
                left = _left(earlier, later, ledger)
                if left > 0 and not _stepped_during(later, ledger):
                    who = f"{key} was leased to {later.process} while {earlier.process} had it"
                    yield key, f"{who}, {left:.3f} s before that lease ended"


def _left(earlier: Lease, later: Lease, ledger: Ledger) -> float:
    """How much of a lease was left when the next one began."""
    length = earlier.claimed.lease
    left = earlier.store_at + length - later.store_at
    for renewal in earlier.extended:
        if renewal.result != "written" or renewal.sent is None or renewal.at > later.claimed.at:
            continue
        if not ledger.stepped(renewal.sent, later.claimed.at):
            left = max(left, renewal.sent + length - later.claimed.at - CLOCKS)
    return left


def fenced(ledger: Ledger) -> Iterator[tuple[str, str]]:
    """A write without the lease changes nothing, and what the holder of the lease writes is not refused."""
    for key, message in ledger.messages.items():
        for earlier, later in _successive(message):
            for write in (*earlier.settled, *earlier.extended):
                stale = write.sent is not None and write.sent > later.claimed.at
                if stale and write.result == "written":
                    what = write.outcome or "a renewal"
                    yield (
                        key,
                        f"{earlier.process} wrote {what} for {key} after {later.process} had taken it over",
                    )
            # Of several acks the last one was heard, if any was.
            is_stale = bool(earlier.acking) and earlier.acking[-1][0] > later.number
            if is_stale and any(line.result == "written" for line in earlier.acked):
                yield key, f"{earlier.process} acked {key} after {later.process} had taken it over"
        if message.leases and _is_refused(message.leases[-1], ledger):
            last = message.leases[-1]
            yield key, f"{last.process} held the lease of {key}, and its write was refused"


def _is_refused(last: Lease, ledger: Ledger) -> bool:
    """Whether the last holder lost its message although no other claim can have taken it."""
    if last.acking or not any(line.result == "lost" for line in last.settled):
        return False
    return not ledger.unheard_by(last.settled[-1].at)


def in_order(ledger: Ledger) -> Iterator[tuple[str, str]]:
    """Messages of one ordering key go one at a time, in the order in which they were published.

    A publish whose answer was lost may arrive late: then it goes when it is seen, but still not beside another. The
    same holds while the store's clock is moved: what is due by it is what can be next.
    """
    lines: defaultdict[str, list[Message]] = defaultdict(list)
    for message in ledger.messages.values():
        if message.intended is not None and message.intended.ordering_key is not None and message.leases:
            lines[message.intended.ordering_key].append(message)
    for ordering_key, messages in lines.items():
        yield from _overtaken(ordering_key, messages, ledger)
        yield from _beside_another(ordering_key, messages)


def _overtaken(ordering_key: str, messages: Sequence[Message], ledger: Ledger) -> Iterator[tuple[str, str]]:
    """What went before a message that had been published before it."""
    first: Message | None = None
    for message in sorted(messages, key=_published, reverse=True):
        if message.acknowledged is None:
            continue
        if first is None or _leased(message) < _leased(first):
            first = message
        elif not ledger.stepped(_published(message), message.leases[0].claimed.at):
            yield first.key, f"{first.key} overtook {message.key} of the key {ordering_key}"


def _beside_another(ordering_key: str, messages: Sequence[Message]) -> Iterator[tuple[str, str]]:
    """What was leased before the one that had been leased before it was gone."""
    last: Message | None = None
    gone = -inf
    for message in sorted(messages, key=_leased):
        if last is not None and min(lease.number for lease in message.leases) <= gone:
            yield message.key, f"{message.key} was leased while {last.key} held the key {ordering_key}"
        removed = min((lease.removing for lease in message.leases), default=inf)
        if last is None or removed > gone:
            last, gone = message, removed


def _leased(message: Message) -> tuple[float, int]:
    """When it was first leased, by the store's clock: its worker may have heard of it only later."""
    return message.leases[0].claimed_at, message.leases[0].number


def _published(message: Message) -> float:
    return message.intended.at if message.intended is not None else 0.0


def counters(ledger: Ledger) -> Iterator[tuple[str, str]]:
    """`attempts` counts failures, `deliveries` claims without an outcome; a shutdown costs neither.

    Where an answer was lost both of its outcomes are possible, and a claim that was not heard may have taken anything.
    """
    for key, message in ledger.messages.items():
        attempts = deliveries = (0, 0)
        for lease in message.leases:
            claimed = lease.claimed
            unheard = ledger.unheard_by(claimed.at)
            if not attempts[0] <= claimed.attempts <= attempts[1]:
                yield key, f"{key} has {claimed.attempts} attempts, not {_either(attempts)}"
            if not deliveries[0] < claimed.deliveries <= deliveries[1] + 1 + unheard:
                expected = _either((deliveries[0] + 1, deliveries[1] + 1))
                yield key, f"{key} has {claimed.deliveries} deliveries, not {expected}"
            attempts, deliveries = _after(lease, (claimed.attempts,) * 2, (claimed.deliveries,) * 2)


def _either(bounds: tuple[int, int]) -> str:
    low, high = bounds
    return str(low) if low == high else f"{low} to {high}"


def _after(
    lease: Lease, attempts: tuple[int, int], deliveries: tuple[int, int]
) -> tuple[tuple[int, int], tuple[int, int]]:
    """What the counters may be when this lease is over: fewest and most."""
    written = lease.written
    if written is not None:
        return _counted(written.outcome, attempts, deliveries)
    if any(line.result == "lost" for line in lease.settled):
        return attempts, deliveries
    for _, line in lease.settling:
        # Sent, and its answer was not heard.
        some, more = _counted(line.outcome, attempts, deliveries)
        attempts = min(attempts[0], some[0]), max(attempts[1], some[1])
        deliveries = min(deliveries[0], more[0]), max(deliveries[1], more[1])
    return attempts, deliveries


def _counted(
    outcome: str | None, attempts: tuple[int, int], deliveries: tuple[int, int]
) -> tuple[tuple[int, int], tuple[int, int]]:
    match outcome:
        case "retry":
            return (attempts[0] + 1, attempts[1] + 1), (0, 0)
        case "release":
            return attempts, (deliveries[0] - 1, deliveries[1] - 1)
        case _:
            return (0, 0), (0, 0)


def _successive(message: Message) -> Iterator[tuple[Lease, Lease]]:
    """Each lease with the next one of the same id."""
    for id_ in message.ids:
        yield from pairwise(lease for lease in message.leases if lease.claimed.id == id_)
