"""Rules about messages and leases. They hold whatever the engine does, if it writes only under its leases."""

from __future__ import annotations

from collections.abc import Iterator

from tests.simulation.events import Acknowledged, Claimed, Committed, Extended, Over, Settled, Stored
from tests.simulation.ledger import Ledger


def never_early(event: Claimed, ledger: Ledger) -> Iterator[str]:
    """No message is leased before it is due, by the store's clock."""
    entry = ledger.messages[event.id]
    if event.at < entry.due:
        yield f"message {event.id} was leased {(entry.due - event.at) / 1e6:.6f} s before it was due"


def one_lease(event: Claimed, ledger: Ledger) -> Iterator[str]:
    """No message has two live leases."""
    entry = ledger.messages[event.id]
    if entry.gone is not None:
        yield f"message {event.id} was leased although it is {entry.gone}"
    elif entry.lease is not None and entry.is_running(event.at):
        yield f"message {event.id} was leased to {event.worker} while {entry.lease.claim.worker} had it"


def obeys_pauses(event: Claimed, ledger: Ledger) -> Iterator[str]:
    """Nothing is leased of what is paused, but for one probe each time that an automatic pause has passed."""
    entry = ledger.messages[event.id]
    for pause in ledger.paused(entry, event.at):
        if not pause.automatic or not event.probe:
            yield f"message {event.id} was leased although it is paused since {pause.since / 1e6:.3f}"
        elif pause.until is not None and event.at < pause.until:
            yield f"message {event.id} was let through as a probe {(pause.until - event.at) / 1e6:.6f} s too early"


def fenced(event: Settled | Extended | Committed, ledger: Ledger) -> Iterator[str]:
    """A write without the lease changes nothing."""
    if isinstance(event, Settled):
        writes = event.changed or event.result == "written"
    elif isinstance(event, Extended):
        writes = event.written
    else:
        writes = True
    if writes and ledger.held(event.id, event.token) is None:
        yield f"a {type(event).__name__.lower()} under {event.token} changed message {event.id}, whose lease it is not"


def in_order(event: Claimed, ledger: Ledger) -> Iterator[str]:
    """Messages of one ordering key go one at a time, in the order of their ids among those that are due."""
    entry = ledger.messages[event.id]
    if entry.stored.key is None:
        return
    for other in ledger.of_key(entry):
        if other.is_head:
            yield f"message {event.id} was leased while {other.id} held the key {entry.stored.key}"
        elif not entry.is_head and other.id < event.id and other.due <= event.at:
            yield f"message {event.id} overtook {other.id} of the key {entry.stored.key}"


def timer_ids(event: Stored, ledger: Ledger) -> Iterator[str]:
    """A timer id has one owner, and a publish respects it and its dedup window as it was asked to."""
    if event.timer is None:
        return
    owner = ledger.owner(event.queue, event.timer)
    is_rearm = owner is not None and owner.id == event.own
    taken = owner is not None or ledger.windows.get((event.queue, event.timer), 0) > event.at
    polite = event.on_conflict in ("skip", "raise")
    if event.id is None:
        if is_rearm or not taken or event.on_conflict == "replace":
            yield f"{event.tag} was not stored although it could have taken the timer id {event.timer}"
    elif taken and polite and not is_rearm:
        yield f"{event.tag} was stored although the timer id {event.timer} was taken"
    elif owner is not None and owner.id == event.id and owner.is_running(event.at):
        yield f"{event.tag} overwrote message {owner.id} while it ran"
    elif owner is not None and owner.id != event.id and not owner.is_running(event.at) and not is_rearm:
        yield f"{event.tag} took the timer id {event.timer} from message {owner.id}, which waits"


def counters(event: Claimed, ledger: Ledger) -> Iterator[str]:
    """`attempts` counts failures, `deliveries` claims without an outcome."""
    entry = ledger.messages[event.id]
    if event.attempts != entry.attempts:
        yield f"message {event.id} has {event.attempts} attempts, not {entry.attempts}"
    if event.deliveries != entry.deliveries + 1:
        yield f"message {event.id} has {event.deliveries} deliveries, not {entry.deliveries + 1}"


def nothing_lost(event: Acknowledged | Over, ledger: Ledger) -> Iterator[str]:
    """What was stored is still there, or left in a way that is written down; what died is a dead letter."""
    if isinstance(event, Acknowledged):
        if event.id not in ledger.messages:
            yield f"{event.tag} was acknowledged as message {event.id}, which was never stored"
        return
    for id_, entry in ledger.messages.items():
        if entry.gone is None and id_ not in event.waiting:
            yield f"message {id_} is lost"
        if entry.gone is not None and id_ in event.waiting:
            yield f"message {id_} is there although it is {entry.gone}"
        if entry.gone == "dead" and id_ not in event.letters:
            yield f"message {id_} died and is no dead letter"
