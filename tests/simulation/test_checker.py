"""The checker accepts a journal in which all is well, and rejects one for each way in which it is not."""

from __future__ import annotations

from typing import Any, Final

import pytest

from tests.simulation.checker import RULES, check
from tests.simulation.events import (
    Acked,
    Acknowledged,
    Booted,
    Calm,
    Cancelled,
    Claimed,
    Committed,
    Ended,
    Event,
    Extended,
    Fault,
    Frozen,
    Killed,
    Over,
    Paused,
    ProbedAgain,
    Received,
    Reported,
    Rescheduled,
    Resumed,
    Settled,
    SignedOff,
    Started,
    StopAsked,
    StopEnded,
    StopRequested,
    Stored,
)

S: Final = 1_000_000
ME: Final = "p1#1.x"
OTHER: Final = "p2#1.x"
BESIDE: Final = "p1#1.y"
THIRD: Final = "p3#1.x"


def booted(worker: str = ME, **facts: Any) -> Booted:
    usual = {"lease": 2 * S, "grace": S, "timeout": 3 * S, "max_attempts": 2, "max_deliveries": 3}
    return Booted(at=0, worker=worker, **usual | facts)


def stored(id_: int | None = 1, at: int = 0, **facts: Any) -> Stored:
    usual: dict[str, Any] = {"tag": f"m{id_}", "queue": "a", "due": at}
    return Stored(at=at, id=id_, **usual | facts)


def claimed(at: int, id_: int = 1, token: str = "c1", worker: str = ME, **facts: Any) -> Claimed:
    usual = {"until": at + 2 * S, "attempts": 0, "deliveries": 1}
    return Claimed(at=at, id=id_, token=token, worker=worker, **usual | facts)


def received(at: int, id_: int = 1, token: str = "c1") -> Received:
    return Received(at=at, id=id_, token=token)


def started(at: int, id_: int = 1, token: str = "c1", worker: str = ME) -> Started:
    return Started(at=at, id=id_, token=token, worker=worker)


def ended(at: int, how: Any = "ok", id_: int = 1, token: str = "c1", worker: str = ME) -> Ended:
    return Ended(at=at, id=id_, token=token, worker=worker, how=how)


def settled(at: int, outcome: Any = "done", id_: int = 1, token: str = "c1", **facts: Any) -> Settled:
    usual: dict[str, Any] = {"worker": ME, "result": "written", "changed": True}
    return Settled(at=at, id=id_, token=token, outcome=outcome, **usual | facts)


def told(at: int, id_: int = 1, token: str = "c1") -> Extended:
    """A renewal is answered with the wish that it be stopped."""
    return Extended(at=at, id=id_, token=token, until=at + 2 * S, written=True, stop=True)


def a_run(at: int, how: Any, id_: int = 1, token: str = "c1", **claim: Any) -> list[Event]:
    """A message is claimed, and its handler runs for a tenth of a second."""
    return [
        claimed(at, id_, token, **claim),
        received(at, id_, token),
        started(at, id_, token),
        ended(at + S // 10, how, id_, token),
    ]


A_LAST_WRITE: Final = [
    booted(grace=3 * S, lease=9 * S), booted(BESIDE), stored(),
    Fault(at=S, worker=BESIDE, kind="late reply", verb="report", until=6 * S),
    claimed(S, until=10 * S), received(S), started(S), StopAsked(at=S, worker=ME), ended(2 * S, "failed"),
]  # fmt: skip
"""It could write from second 2 to 4.5, while a report of the worker beside it is on its way."""

WELL: Final[dict[str, list[Event]]] = {
    "a message is stored, runs and is done": [
        booted(), stored(), Acknowledged(at=1, tag="m1", id=1), *a_run(S, "ok"), settled(2 * S), Over(at=3 * S),
    ],
    "it fails, is retried when due, fails again and dies": [
        booted(), stored(), *a_run(S, "failed"), settled(2 * S, "retry", due=3 * S),
        *a_run(3 * S, "failed", token="c2", attempts=1),
        settled(4 * S, "dead", token="c2", reason="retries_exhausted"), Over(at=5 * S, letters=(1,)),
    ],
    "its worker is killed and another takes over": [
        booted(), booted(OTHER), stored(), claimed(S), received(S), started(S), Killed(at=2 * S, worker=ME),
        claimed(3 * S, token="c2", worker=OTHER, deliveries=2), Over(at=4 * S, waiting=(1,)),
    ],
    "a late worker is refused": [
        booted(), booted(OTHER), stored(), *a_run(S, "ok"), Frozen(at=S, worker=ME, until=4 * S),
        claimed(3 * S, token="c2", worker=OTHER, deliveries=2),
        settled(4 * S, result="lost", changed=False), Over(at=4 * S, waiting=(1,)),
    ],
    "its lease ends while its worker cannot reach the store": [
        booted(), booted(OTHER), stored(), claimed(S), received(S),
        Fault(at=2 * S, worker=ME, kind="hangs", verb="extend", until=9 * S),
        claimed(3 * S, token="c2", worker=OTHER, deliveries=2), Over(at=4 * S, waiting=(1,)),
    ],
    "it is acknowledged in a transaction": [
        booted(), stored(), claimed(S), received(S), started(S), Acked(at=S, id=1, token="c1"),
        Committed(at=2 * S, worker=ME, id=1, token="c1"), ended(2 * S, "acked"), Over(at=3 * S),
    ],
    "a timer is replaced, moved, cancelled and set again": [
        booted(), stored(timer="t"), stored(timer="t", at=1, on_conflict="replace"),
        Rescheduled(at=2, id=1, due=9 * S), Cancelled(at=3, id=1), stored(2, at=4, timer="t"),
        Over(at=5, waiting=(2,)),
    ],
    "a running timer is replaced, and dropped when it comes back": [
        booted(), stored(timer="t"), *a_run(S, "failed"), stored(2, at=S, timer="t", on_conflict="replace"),
        settled(2 * S, "retry", due=2 * S), claimed(2 * S, token="c2", attempts=1, superseded=True),
        settled(3 * S, token="c2"), Over(at=4 * S, waiting=(2,)),
    ],
    "a handler re-arms its timer": [
        booted(), stored(timer="t"), claimed(S), received(S), started(S), stored(2, at=S, timer="t", own=1),
        ended(S, "ok"), settled(2 * S), Over(at=3 * S, waiting=(2,)),
    ],
    "a shutdown hands back what it interrupted": [
        booted(), stored(), claimed(S), received(S), started(S), StopAsked(at=2 * S, worker=ME),
        ended(3 * S, "cancelled"), settled(3 * S, "release", due=0), StopEnded(at=3 * S, worker=ME),
        Over(at=4 * S, waiting=(1,)),
    ],
    "two messages of a key go one after the other": [
        booted(), stored(1, key="k"), stored(2, key="k"), *a_run(S, "ok"), settled(2 * S),
        *a_run(3 * S, "ok", 2, "c2"), settled(4 * S, id_=2, token="c2"), Over(at=5 * S),
    ],
    "a poison message is given up after its last delivery": [
        booted(max_deliveries=1), booted(OTHER, max_deliveries=1), stored(poison=True),
        claimed(S), received(S), started(S), Killed(at=S, worker=ME, by=1),
        claimed(3 * S, token="c2", worker=OTHER, deliveries=2),
        settled(3 * S, "dead", token="c2", worker=OTHER, reason="max_deliveries"), Over(at=4 * S, letters=(1,)),
    ],
    "a message kills a process that stood still until another one had it": [
        booted(max_deliveries=9), booted(OTHER, max_deliveries=9), stored(poison=True),
        claimed(S), received(S), started(S), Killed(at=S, worker=ME, by=1), booted(THIRD, max_deliveries=9),
        claimed(3 * S, token="c2", worker=OTHER, deliveries=2), received(3 * S, token="c2"),
        started(3 * S, token="c2", worker=OTHER), Frozen(at=3 * S, worker=OTHER, until=5 * S),
        claimed(5 * S, token="c3", worker=THIRD, deliveries=3), received(5 * S, token="c3"),
        started(5 * S, token="c3", worker=THIRD), Killed(at=5 * S, worker=OTHER, by=1),
        Over(at=5 * S, waiting=(1,)),
    ],
    "a queue is paused, and resumed": [
        booted(), stored(), Paused(at=1, queue="a"), Resumed(at=S, queue="a"), *a_run(2 * S, "ok"), settled(3 * S),
        Over(at=4 * S),
    ],
    "a pause ends by itself": [
        booted(), stored(), Paused(at=1, queue="a", until=S), *a_run(S, "ok"), settled(2 * S), Over(at=3 * S),
    ],
    "a pause of another key": [
        booted(), stored(key="k"), Paused(at=1, queue="a", key="l"), *a_run(S, "ok"), settled(2 * S), Over(at=3 * S),
    ],
    "a probe fails, the next one succeeds, and the queue is resumed": [
        booted(breaker=True), stored(), Paused(at=1, queue="a", until=S, automatic=True),
        *a_run(S, "failed", probe=True), settled(S, "postpone", due=2 * S),
        *a_run(2 * S, "ok", token="c2", probe=True), settled(3 * S, token="c2"),
        Resumed(at=3 * S, queue="a", automatic=True), Over(at=4 * S),
    ],
    "a probe does not run, and the next one comes at once": [
        booted(breaker=True), stored(expires=S), stored(2), Paused(at=1, queue="a", until=2 * S, automatic=True),
        claimed(2 * S, probe=True), received(2 * S), settled(2 * S, "dead", reason="expired"),
        ProbedAgain(at=2 * S, queue="a", id=1, token="c1"), *a_run(2 * S, "ok", 2, token="c2", probe=True),
        settled(3 * S, id_=2, token="c2"), Resumed(at=3 * S, queue="a", automatic=True), Over(at=4 * S, letters=(1,)),
    ],
    "what runs is stopped": [
        booted(), stored(), claimed(S), received(S), started(S), StopRequested(at=S, id=1), told(2 * S),
        ended(2 * S, "cancelled"), settled(2 * S, "dead", reason="stopped"), Over(at=3 * S, letters=(1,)),
    ],
    "of a batch one is stopped and the others are handed back": [
        booted(), stored(), stored(2), claimed(S), claimed(S, 2), received(S), received(S, 2), started(S),
        started(S, 2), StopRequested(at=S, id=1), told(2 * S), ended(2 * S, "cancelled"), ended(2 * S, "cancelled", 2),
        settled(2 * S, "dead", reason="stopped"), settled(2 * S, "release", 2),
        Over(at=3 * S, waiting=(2,), letters=(1,)),
    ],
    "of a batch one is stopped, and replaced before the others are handed back": [
        booted(), stored(timer="t"), stored(2), claimed(S), claimed(S, 2), received(S), received(S, 2), started(S),
        started(S, 2), StopRequested(at=S, id=1), told(2 * S),
        Extended(at=2 * S, id=2, token="c1", until=5 * S, written=True), ended(2 * S, "cancelled"),
        ended(2 * S, "cancelled", 2), stored(at=4 * S + 1, timer="t", on_conflict="replace"),
        settled(4 * S + 2, "release", 2),
        Over(at=4 * S + 3, waiting=(1, 2)),
    ],
    "a process reports, stops and signs off": [
        booted(), Reported(at=1, worker=ME, id="p"), StopAsked(at=S, worker=ME), SignedOff(at=S, id="p"),
        StopEnded(at=S, worker=ME), Over(at=2 * S),
    ],
    "a stop gives up its last writes, and then waits for a report of the worker beside it": [
        *A_LAST_WRITE, Fault(at=2 * S, worker=ME, kind="late reply", verb="settle", until=5 * S),
        StopEnded(at=6 * S, worker=ME), Over(at=6 * S, waiting=(1,)),
    ],
}  # fmt: skip

POISONED: Final = [
    booted(max_deliveries=9), booted(OTHER, max_deliveries=9), stored(1, poison=True), stored(2, due=9 * S),
    claimed(S, worker=OTHER), Killed(at=S, worker=OTHER),
    claimed(4 * S, token="c2", worker=OTHER, deliveries=2),
    claimed(9 * S, token="c3", deliveries=3), received(9 * S, token="c3"), started(9 * S, token="c3"),
]  # fmt: skip

BROKEN: Final[dict[str, tuple[str, list[Event]]]] = {
    "a message is leased before it is due": ("never_early", [booted(), stored(due=S), claimed(S - 1)]),
    "it is leased before its retry is due": ("never_early", [
        booted(), stored(), *a_run(S, "failed"), settled(2 * S, "retry", due=4 * S),
        claimed(3 * S, token="c2", attempts=1),
    ]),
    "two workers have it": ("one_lease", [
        booted(), booted(OTHER), stored(), claimed(S), claimed(2 * S, token="c2", worker=OTHER, deliveries=2),
    ]),
    "it is leased again after its lease was extended": ("one_lease", [
        booted(), booted(OTHER), stored(), claimed(S), Extended(at=2 * S, id=1, token="c1", until=4 * S, written=True),
        claimed(3 * S + 1, token="c2", worker=OTHER, deliveries=2),
    ]),
    "it is leased although it is done": ("one_lease", [
        booted(), stored(), *a_run(S, "ok"), settled(2 * S), claimed(3 * S, token="c2"),
    ]),
    "a late worker settles it": ("fenced", [
        booted(), booted(OTHER), stored(), *a_run(S, "ok"), Frozen(at=S, worker=ME, until=4 * S),
        claimed(3 * S, token="c2", worker=OTHER, deliveries=2), settled(4 * S),
    ]),
    "a late worker is told that it lost, but changes something": ("fenced", [
        booted(), booted(OTHER), stored(), *a_run(S, "ok"), Killed(at=2 * S, worker=ME),
        claimed(3 * S, token="c2", worker=OTHER, deliveries=2), settled(4 * S, result="lost"),
    ]),
    "a late worker extends it": ("fenced", [
        booted(), stored(), *a_run(S, "ok"), settled(2 * S),
        Extended(at=3 * S, id=1, token="c1", until=5 * S, written=True),
    ]),
    "its effect is committed twice": ("fenced", [
        booted(), stored(), claimed(S), received(S), started(S), Acked(at=S, id=1, token="c1"),
        Committed(at=2 * S, worker=ME, id=1, token="c1"), Committed(at=2 * S, worker=ME, id=1, token="c1"),
    ]),
    "two messages of a key run at once": ("in_order", [
        booted(), stored(1, key="k"), stored(2, key="k"), claimed(S), claimed(S, 2),
    ]),
    "a message overtakes another of its key": ("in_order", [
        booted(), stored(1, key="k"), stored(2, key="k"), claimed(S, 2),
    ]),
    "a message overtakes another of its key that failed": ("in_order", [
        booted(), stored(1, key="k"), stored(2, key="k"), *a_run(S, "failed"), settled(2 * S, "retry", due=9 * S),
        claimed(3 * S, 2, "c2"),
    ]),
    "a timer id that is taken is taken again": ("timer_ids", [stored(1, timer="t"), stored(2, timer="t")]),
    "a timer id is taken within its dedup window": ("timer_ids", [
        booted(), stored(1, timer="t", dedup=9 * S), *a_run(S, "ok"), settled(2 * S), stored(2, at=3 * S, timer="t"),
    ]),
    "a free timer id is refused": ("timer_ids", [stored(None, timer="t")]),
    "a re-arm is refused": ("timer_ids", [
        booted(), stored(timer="t"), claimed(S), stored(None, at=S, timer="t", own=1),
    ]),
    "a running message is overwritten": ("timer_ids", [
        booted(), stored(timer="t"), claimed(S), stored(at=S, timer="t", on_conflict="replace"),
    ]),
    "a waiting timer gets a second message": ("timer_ids", [
        stored(1, timer="t"), stored(2, at=S, timer="t", on_conflict="replace"),
    ]),
    "a failure is not counted": ("counters", [
        booted(), stored(), *a_run(S, "failed"), settled(2 * S, "retry", due=2 * S), claimed(3 * S, token="c2"),
    ]),
    "a hand-back is counted": ("counters", [
        booted(), stored(), claimed(S), settled(2 * S, "release"), claimed(3 * S, token="c2", deliveries=2),
    ]),
    "a lost worker is not counted": ("counters", [
        booted(), booted(OTHER), stored(), claimed(S), Killed(at=2 * S, worker=ME),
        claimed(3 * S, token="c2", worker=OTHER),
    ]),
    "a message is gone": ("nothing_lost", [booted(), stored(), Over(at=S)]),
    "what was acknowledged was never stored": ("nothing_lost", [Acknowledged(at=0, tag="m1", id=1)]),
    "what is done is still there": ("nothing_lost", [
        booted(), stored(), *a_run(S, "ok"), settled(2 * S), Over(at=3 * S, waiting=(1,)),
    ]),
    "what died is no dead letter": ("nothing_lost", [
        booted(), stored(), *a_run(S, "reject"), settled(2 * S, "dead", reason="no such customer"), Over(at=3 * S),
    ]),
    "a delivery runs twice": ("runs_once", [booted(), stored(), *a_run(S, "ok"), started(2 * S)]),
    "a worker runs what it did not claim": ("runs_once", [booted(), stored(), started(S)]),
    "what did not run is done": ("right_outcome", [booted(), stored(), claimed(S), settled(2 * S)]),
    "what still runs is done": ("right_outcome", [booted(), stored(), claimed(S), started(S), settled(2 * S)]),
    "what failed is done": ("right_outcome", [booted(), stored(), *a_run(S, "failed"), settled(2 * S)]),
    "what failed too often is retried": ("right_outcome", [
        booted(max_attempts=1), stored(), *a_run(S, "failed"), settled(2 * S, "retry"),
    ]),
    "what failed once is given up": ("right_outcome", [
        booted(), stored(), *a_run(S, "failed"), settled(2 * S, "dead", reason="retries_exhausted"),
    ]),
    "a postponement counts as a failure": ("right_outcome", [
        booted(), stored(), *a_run(S, "postpone"), settled(2 * S, "retry"),
    ]),
    "a shutdown burns an attempt": ("right_outcome", [
        booted(), stored(), claimed(S), started(S), StopAsked(at=S, worker=ME), ended(2 * S, "cancelled"),
        settled(3 * S, "retry"),
    ]),
    "what was released had failed": ("right_outcome", [
        booted(), stored(), *a_run(S, "failed"), settled(2 * S, "release"),
    ]),
    "what is not expired dies of it": ("right_outcome", [
        booted(), stored(expires=9 * S), claimed(S), settled(2 * S, "dead", reason="expired"),
    ]),
    "a lease ends although its worker is well": ("no_needless_duplicate", [
        booted(), booted(OTHER), stored(), claimed(S), received(S), started(S),
        claimed(3 * S, token="c2", worker=OTHER, deliveries=2),
    ]),
    "a lease ends because an event loop is blocked": ("no_needless_duplicate", [
        booted(), booted(OTHER), stored(), claimed(S), received(S), started(S),
        Frozen(at=S, worker=ME, until=9 * S, thread=True), claimed(3 * S, token="c2", worker=OTHER, deliveries=2),
    ]),
    "a lease ends long after a fault": ("no_needless_duplicate", [
        booted(lease=9 * S), booted(OTHER), stored(), claimed(S, until=10 * S), received(S),
        Fault(at=2 * S, worker=ME, kind="lost reply", verb="settle", until=3 * S),
        claimed(10 * S, token="c2", worker=OTHER, deliveries=2),
    ]),
    "a stop takes too long": ("stops_in_time", [
        booted(), StopAsked(at=S, worker=ME), StopEnded(at=6 * S, worker=ME),
    ]),
    "a stop in a hurry takes its grace period": ("stops_in_time", [
        booted(grace=9 * S), StopAsked(at=S, worker=ME, hurry=True), StopEnded(at=9 * S, worker=ME),
    ]),
    "a stop leaves a lease behind": ("stops_in_time", [
        booted(), stored(), *a_run(S, "ok"), StopAsked(at=2 * S, worker=ME), StopEnded(at=2 * S, worker=ME),
    ]),
    "a stop leaves a lease behind although the store answered, and waits for a report": ("stops_in_time", [
        *A_LAST_WRITE, Fault(at=2 * S, worker=ME, kind="late reply", verb="settle", until=3 * S),
        StopEnded(at=6 * S, worker=ME),
    ]),
    "a stop gives up its last writes too early": ("stops_in_time", [
        *A_LAST_WRITE, Fault(at=2 * S, worker=ME, kind="late reply", verb="settle", until=3 * S),
        StopEnded(at=4 * S, worker=ME),
    ]),
    "a quarantined message takes another along": ("poison_alone", [
        *POISONED, claimed(9 * S, 2, "c4"), started(9 * S, 2, "c4"), Killed(at=9 * S, worker=ME, by=1),
    ]),
    "a poison message runs too often": ("poison_alone", [
        booted(max_deliveries=1), booted(OTHER, max_deliveries=1), stored(poison=True), claimed(S),
        Killed(at=S, worker=ME), claimed(4 * S, token="c2", worker=OTHER, deliveries=2),
        started(4 * S, token="c2", worker=OTHER),
    ]),
    "a poison message is given up too early": ("poison_alone", [
        booted(max_deliveries=2), booted(OTHER, max_deliveries=1), stored(poison=True), claimed(S), started(S),
        Killed(at=S, worker=ME, by=1), claimed(4 * S, token="c2", worker=OTHER, deliveries=2),
        settled(4 * S, "dead", token="c2", worker=OTHER, reason="max_deliveries"), Over(at=5 * S, letters=(1,)),
    ]),
    "a message waits for ever": ("delivered", [
        booted(), stored(), Calm(at=S), Over(at=99 * S, waiting=(1,)),
    ]),
    "a message of a paused queue is leased": ("obeys_pauses", [
        booted(), stored(), Paused(at=1, queue="a"), claimed(S),
    ]),
    "a message of a paused key is leased": ("obeys_pauses", [
        booted(), stored(key="k"), Paused(at=1, queue="a", key="k"), claimed(S),
    ]),
    "an automatic pause is over without a probe": ("obeys_pauses", [
        booted(), stored(), Paused(at=1, queue="a", until=S, automatic=True), claimed(2 * S),
    ]),
    "a probe comes too early": ("obeys_pauses", [
        booted(), stored(), Paused(at=1, queue="a", until=S, automatic=True), claimed(S - 1, probe=True),
    ]),
    "a second probe comes before the pause has passed again": ("obeys_pauses", [
        booted(), stored(), stored(2), Paused(at=0, queue="a", until=S, automatic=True), claimed(S, probe=True),
        claimed(2 * S - 1, 2, "c2", probe=True),
    ]),
    "after a pause was set again, a probe from before it makes room for another": ("obeys_pauses", [
        booted(), stored(), stored(2), Paused(at=0, queue="a", until=S, automatic=True), claimed(S, probe=True),
        Paused(at=S, queue="a", until=9 * S, automatic=True), ProbedAgain(at=S, queue="a", id=1, token="c1"),
        claimed(2 * S, 2, "c2", probe=True),
    ]),
    "a probe that failed makes room for the next one": ("probes_again_unheard", [
        booted(breaker=True), stored(), Paused(at=1, queue="a", until=S, automatic=True),
        *a_run(S, "failed", probe=True), ProbedAgain(at=2 * S, queue="a", id=1, token="c1"),
    ]),
    "what waited in memory starts although its queue is paused": ("starts_nothing_paused", [
        booted(), stored(), claimed(S), received(S), Paused(at=S, queue="a"), started(2 * S + 1),
    ]),
    "a stop is not heard": ("stops_when_told", [
        booted(), stored(), claimed(S), received(S), started(S), StopRequested(at=S, id=1), told(2 * S),
        ended(3 * S + 1, "ok"),
    ]),
    "what is to be stopped starts": ("stops_when_told", [
        booted(), stored(), claimed(S), received(S), StopRequested(at=S, id=1), told(2 * S), started(3 * S + 1),
    ]),
    "what was stopped is retried": ("right_outcome", [
        booted(), stored(), claimed(S), received(S), started(S), StopRequested(at=S, id=1), told(2 * S),
        ended(2 * S, "cancelled"), settled(2 * S, "retry"),
    ]),
    "what is not to be stopped is": ("right_outcome", [
        booted(), stored(), *a_run(S, "cancelled"), settled(2 * S, "dead", reason="stopped"),
    ]),
    "a queue is resumed after a probe that failed": ("resumes_after_success", [
        booted(breaker=True), stored(), Paused(at=1, queue="a", until=S, automatic=True),
        *a_run(S, "failed", probe=True), Resumed(at=2 * S, queue="a", automatic=True),
    ]),
    "a process stops without signing off": ("signs_off", [
        booted(), Reported(at=1, worker=ME, id="p"), StopAsked(at=S, worker=ME), StopEnded(at=S, worker=ME),
        Over(at=2 * S),
    ]),
    "a process comes back": ("signs_off", [
        booted(), Reported(at=1, worker=ME, id="p"), SignedOff(at=S, id="p"), Reported(at=2 * S, worker=ME, id="p"),
    ]),
    "a worker ends by itself": ("no_complaints", [booted(), Over(at=S, complaints=("run() raised",))]),
}  # fmt: skip


@pytest.mark.parametrize("journal", WELL.values(), ids=WELL.keys())
def test_a_journal_in_which_all_is_well_is_accepted(journal: list[Event]) -> None:
    assert check(journal) is None


@pytest.mark.parametrize(("rule", "journal"), BROKEN.values(), ids=BROKEN.keys())
def test_a_journal_that_breaks_a_promise_is_rejected_by_its_name(rule: str, journal: list[Event]) -> None:
    violation = check(journal)

    assert violation is not None
    assert violation.rule == rule


def test_every_rule_has_a_journal_that_breaks_it() -> None:
    assert {rule.__name__ for rule in RULES} == {rule for rule, _ in BROKEN.values()}
