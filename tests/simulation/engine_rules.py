"""Rules about what the engine makes of a delivery."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.simulation.events import (
    Claimed,
    Ended,
    Killed,
    Over,
    ProbedAgain,
    Reported,
    Resumed,
    Settled,
    Started,
    StopEnded,
)
from tests.simulation.ledger import Entry, Hand, Lease, Ledger, Run, overlaps

LAST_SECONDS: Final = 3.0
"""How long a stop may take after the grace period: `Worker.stop` promises 2.5 s, rounded up for a clock that drifts."""
ALONE_FROM: Final = 3
"""From which delivery on a message has to run alone."""
PATIENCE: Final = 10_000_000
"""How long a quarantined message waits for others at most, in microseconds."""
RECALL: Final = 1_800_000
"""How long after a failed claim its recall is sent at the latest: the longest pause between two tries, and a little."""
HANDED_BACK: Final = 600_000
"""How long a store has to answer before a stop ends, for everything to be handed back: a pause between two tries, and
a few round trips."""
LAST_WRITES: Final = 2_500_000
"""How long a stop tries to write, once nothing runs any more; after that it only signs off."""
KNOWN: Final = 1_000_000
"""How soon a worker knows of a pause or a stop that the store has told it, in microseconds."""
GAVE_IN: Final = ("cancelled", "failed", "undone", "lost")
"""How a handler ends that was cancelled."""
LIVELY: Final = 25_000_000
"""How soon after the last fault everything due must be delivered, in microseconds."""
LIVELY_POISON: Final = 20_000_000
"""How much longer for each delivery that a poison message gets."""


def runs_once(event: Started, ledger: Ledger) -> Iterator[str]:
    """A handler runs only what its worker claimed, and each delivery once."""
    claim = ledger.claims.get((event.id, event.token))
    if claim is None or claim.worker != event.worker:
        yield f"{event.worker} runs message {event.id}, which it did not claim"
    elif (event.id, event.token) in ledger.runs:
        yield f"{event.worker} runs the same delivery of message {event.id} again"


def right_outcome(event: Settled, ledger: Ledger) -> Iterator[str]:
    """What is written is what became of the run: nothing is done that did not end well, no shutdown is a failure."""
    if event.result != "written":
        return
    claim = ledger.claims.get((event.id, event.token))
    if claim is None:
        return  # `fenced` says so.
    run = ledger.runs.get((event.id, event.token))
    hand = ledger.workers[claim.worker]
    allowed = _without_run(claim, ledger) if run is None else _after(run, claim, hand)
    if ledger.messages[event.id].to_stop:
        allowed += _stopped(run, claim, hand)
    if run is not None and run.how == "cancelled" and _has_stopped_neighbour(run, ledger):
        allowed.append("release")
    said = event.outcome if event.reason is None else f"{event.outcome}: {event.reason}"
    if said not in allowed:
        how = "not run" if run is None else run.how or "still running"
        expected = " or ".join(allowed) or "nothing"
        yield f"{said!r} was written for message {event.id}, which was {how}: expected {expected}"


def _without_run(claim: Claimed, ledger: Ledger) -> list[str]:
    allowed = ["release"]
    if claim.superseded:
        allowed.append("done")
    if claim.deliveries > ledger.workers[claim.worker].settings.max_deliveries:
        allowed.append("dead: max_deliveries")
    entry = ledger.messages[claim.id]
    if entry.stored.expires is not None and entry.stored.expires <= claim.at:
        allowed.append("dead: expired")
    return allowed


def _stopped(run: Run | None, claim: Claimed, hand: Hand) -> list[str]:
    """What a message may end as that an operator wants stopped: if it ran to its end first, as it did."""
    interrupted = run is None or run.how in ("cancelled", "failed", "undone")
    return ["dead: stopped"] if interrupted else []


def _has_stopped_neighbour(run: Run, ledger: Ledger) -> bool:
    """Whether another message of the same batch was to be stopped: its handler cannot be ended for one alone.

    It may have been replaced since, and then nothing is to be stopped any more: its holder had been told.
    """
    return any(
        other is not run
        and other.worker == run.worker
        and other.started == run.started
        and (ledger.messages[other.id].to_stop or claim in ledger.told)
        for claim, other in ledger.runs.items()
    )


def _after(run: Run, claim: Claimed, hand: Hand) -> list[str]:
    settings = hand.settings
    failed = ["dead: retries_exhausted" if claim.attempts + 1 >= settings.max_attempts else "retry"]
    if settings.breaker:
        # While its queue is paused for such failures: handed back, or as a probe put off.
        failed += ["release", "postpone"]
    ended = run.ended or claim.at
    stopped = hand.stops_since is not None and hand.stops_since <= ended
    match run.how:
        case "ok":
            return ["done"]
        case "retry" | "postpone":
            return [run.how]
        case "reject":
            return ["dead: no such customer"]
        case "pauses":
            return ["postpone"]
        case "failed" | "undone":
            return [*failed, "release"] if stopped else failed
        case "cancelled":
            timed_out = ended - run.started >= settings.timeout * 0.99
            return (failed if timed_out else []) + (["release"] if stopped else [])
        case None | "acked" | "lost":
            return []


def no_needless_duplicate(event: Claimed, ledger: Ledger) -> Iterator[str]:
    """A lease expires only if its holder is dead, stands still or cannot reach the store: duplicates need a fault."""
    entry = ledger.messages[event.id]
    lease = entry.lease
    if lease is not None and not _expiry_is_explained(lease, entry, ledger):
        worker = lease.claim.worker
        yield f"the lease of {worker} on message {event.id} ended at {lease.until / 1e6:.3f} although {worker} was well"


def _expiry_is_explained(lease: Lease, entry: Entry, ledger: Ledger) -> bool:
    claim = lease.claim
    hand = ledger.workers[claim.worker]
    length = hand.settings.lease
    if claim.unheard or lease.acked or (hand.killed is not None and hand.killed <= lease.until):
        return True
    if hand.stop_ended is not None and hand.stop_ended <= lease.until:
        return True  # `stops_in_time` says whether it could have handed it back.
    run = ledger.runs.get((entry.id, claim.token))
    if run is not None and run.how == "lost":
        return True
    # A lease is renewed once a quarter of it is gone, and that is checked six times: half a lease is enough. What a
    # claim took whose reply was lost is recalled before the next claim.
    late = lease.until - (RECALL if lease.heard is None else length * 6 // 10)
    # An event loop that blocks cannot hear what its claim brought, nor recall it: its keeper does not know of it.
    deaf = [(since, until) for since, until in hand.blocked if lease.heard is None or lease.heard > since]
    return (
        overlaps(hand.frozen, lease.until - length, lease.until)
        or overlaps(hand.upset, late, lease.until)
        or overlaps(deaf, late, lease.until)
    )


def starts_nothing_paused(event: Started, ledger: Ledger) -> Iterator[str]:
    """What was claimed before its queue was paused does not start once that can be known."""
    entry = ledger.messages[event.id]
    claim = ledger.claims.get((event.id, event.token))
    if claim is None or not ledger.workers[event.worker].was_well(event.at - 2 * KNOWN, event.at):
        return
    for pause in ledger.paused(entry, event.at):
        if event.at - pause.since > KNOWN and not (pause.automatic and claim.probe):
            yield f"{event.worker} starts message {event.id}, which is paused since {pause.since / 1e6:.3f}"


def stops_when_told(event: Started | Ended, ledger: Ledger) -> Iterator[str]:
    """A message that its worker is told to stop does not start, and does not run to its end."""
    told = ledger.told.get((event.id, event.token))
    if told is None or event.at - told <= KNOWN or (isinstance(event, Ended) and event.how in GAVE_IN):
        return
    if ledger.workers[event.worker].was_well(told, event.at):
        does = "starts" if isinstance(event, Started) else "runs"
        yield f"{event.worker} {does} message {event.id}, which it was told to stop at {told / 1e6:.3f}"


def resumes_after_success(event: Resumed, ledger: Ledger) -> Iterator[str]:
    """An automatic pause ends when a probe has succeeded."""
    if not event.automatic:
        return
    runs = [ledger.runs.get(probe) for probe in ledger.probes.get(event.queue, [])]
    if not any(run is not None and run.how in ("ok", "acked") for run in runs):
        yield f"{event.queue} was resumed although no probe had succeeded"


def probes_again_unheard(event: ProbedAgain, ledger: Ledger) -> Iterator[str]:
    """Only a probe that did not run makes room for the next one: one that ran has said something of its queue."""
    if (event.id, event.token) in ledger.runs:
        yield f"{event.queue} is probed again at once although the handler of message {event.id} ran"


def signs_off(event: Reported | Over, ledger: Ledger) -> Iterator[str]:
    """A process that stops in order is forgotten, and does not come back."""
    if isinstance(event, Reported):
        if event.id in ledger.signed_off and not ledger.workers[event.worker].upset:
            yield f"process {event.id} of {event.worker} reported after it had signed off"
        return
    for id_, worker in ledger.reporters.items():
        hands = [hand for hand in ledger.workers.values() if hand.process == ledger.workers[worker].process]
        in_order = all(
            hand.stop_ended is not None
            and hand.killed is None
            and hand.stops_since is not None
            and not hand.upset
            and hand.was_well(hand.stops_since, hand.stop_ended)
            for hand in hands
        )
        if in_order and id_ not in ledger.signed_off:
            yield f"process {id_} of {worker} stopped without signing off"


def stops_in_time(event: StopEnded, ledger: Ledger) -> Iterator[str]:
    """A stop takes its grace period and a little more, and hands everything back if the store lets it."""
    hand = ledger.workers[event.worker]
    asked = hand.stop_asked
    if asked is None:
        return
    grace = 0 if asked.hurry else hand.settings.grace
    stood_still = sum(
        max(min(until, event.at) - max(since, asked.at), 0) for since, until in hand.frozen + hand.blocked
    )
    took = event.at - asked.at - stood_still
    if took > grace * 1.01 + LAST_SECONDS * 1_000_000:
        yield f"{event.worker} took {took / 1e6:.3f} s to stop, with {grace / 1e6:g} s of grace"
    answered_since = event.at - HANDED_BACK
    if not hand.was_well(answered_since, event.at) or _only_signed_off(event, hand, ledger):
        return
    for entry in ledger.messages.values():
        lease = entry.lease
        if lease is None or lease.claim.worker != event.worker or lease.acked or lease.claim.unheard:
            continue
        if lease.until <= asked.at:
            continue  # Its claim's reply was lost, and so was every recall: it has ended by itself.
        if lease.claim.at > answered_since:
            continue  # The store took its time with this claim: none was left to hand it back.
        run = ledger.runs.get((entry.id, lease.claim.token))
        if run is None or run.how not in (None, "lost"):
            yield f"{event.worker} stopped and left message {entry.id} leased"


def _only_signed_off(event: StopEnded, hand: Hand, ledger: Ledger) -> bool:
    """Whether its last writes were given up while it was not well, and it then waited for its process to sign off."""
    runs = [run for run in ledger.runs.values() if run.worker == event.worker]
    if any(run.ended is None for run in runs):
        return False
    gave_up = LAST_WRITES + max([hand.stops_since or 0, *(run.ended or 0 for run in runs)])
    if gave_up >= event.at or hand.was_well(gave_up - HANDED_BACK, gave_up):
        return False
    # What a process reports and signs off travels on the line of any of its workers.
    return any(
        not other.was_well(event.at - HANDED_BACK, event.at)
        for other in ledger.workers.values()
        if other.process == hand.process
    )


def poison_alone(event: Started | Killed | Over, ledger: Ledger) -> Iterator[str]:
    """A message that keeps killing its process takes no other run along from its third time on, and ends."""
    if isinstance(event, Started):
        claim = ledger.claims.get((event.id, event.token))
        most = ledger.workers[event.worker].settings.max_deliveries
        if claim is not None and claim.deliveries > most:
            yield f"message {event.id} runs for the {claim.deliveries}th time without an outcome, at most {most}"
    if isinstance(event, Killed) and event.by is not None:
        yield from _casualties(event, event.by, ledger)
    if isinstance(event, Over) and not ledger.troubles:
        for entry in ledger.messages.values():
            runs = sum(1 for id_, _ in ledger.runs if id_ == entry.id)
            most = max(hand.settings.max_deliveries for hand in ledger.workers.values())
            if entry.stored.poison and entry.gone == "dead" and entry.stored.expires is None and runs != most:
                yield f"message {entry.id} was given up after {runs} runs, not {most}"


def _casualties(event: Killed, by: int, ledger: Ledger) -> Iterator[str]:
    """What else ran in a process that was killed by a message in quarantine there."""
    process = ledger.workers[event.worker].process
    killers = {
        lease: run
        for lease, run in ledger.runs.items()
        if run.id == by and run.ended is None and ledger.workers[run.worker].process == process
    }
    # By the leases of this process: the store's may be another's by now, if this one stood still.
    if not all(ledger.claims[lease].deliveries >= ALONE_FROM for lease in killers):
        return
    for lease, run in ledger.runs.items():
        if lease in killers or run.ended is not None or run.worker != event.worker:
            continue
        if any(run.started > killer.started - PATIENCE for killer in killers.values()):
            yield f"message {by}, quarantined in {process}, took message {run.id} of {run.worker} along"


def delivered(event: Over, ledger: Ledger) -> Iterator[str]:
    """When the faults are over, everything that is due is delivered soon."""
    if ledger.calm_at is not None:
        for entry in ledger.messages.values():
            if entry.gone is None and event.at >= latest(entry, ledger):
                yield f"message {entry.id} waits since {entry.due / 1e6:.3f}"


def latest(entry: Entry, ledger: Ledger) -> int:
    """When this message must be gone at the latest, once all is calm."""
    begun = max(ledger.calm_at or 0, entry.due, entry.stored.at)
    deliveries = max((hand.settings.max_deliveries for hand in ledger.workers.values()), default=0)
    poison = any(each.stored.poison for each in ledger.messages.values())
    return begun + LIVELY + (LIVELY_POISON * deliveries if poison else 0)


def no_complaints(event: Over, _ledger: Ledger) -> Iterator[str]:
    """No error is left for the event loop to log, no worker ends by itself, none spins."""
    yield from event.complaints
