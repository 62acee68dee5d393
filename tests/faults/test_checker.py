"""The checker accepts a journal in which all is well, and rejects one for each way in which it is not."""

from __future__ import annotations

from typing import Any, Final

import pytest

from faults.checker import RULES, check
from faults.journal import BY_A_MESSAGE, Line
from faults.ledger import Ledger
from faults.rules.handling import duplicates_bound

ME: Final = "worker-1"
OTHER: Final = "worker-2"
KEY: Final = "publisher-1/0"
A: Final = "a"
LEASE: Final = 3.0
EPOCH: Final = 1_000_000.0
"""The store's clock when ours is at 0."""


def intended(at: float = 0.0, key: str = KEY, process: str = "publisher-1", **facts: Any) -> Line:
    return Line(what="intended", process=process, at=at, key=key, queue="plain", **facts)


def acknowledged(at: float = 0.1, key: str = KEY, id_: int | None = 1, process: str = "publisher-1") -> Line:
    return Line(what="acknowledged", process=process, at=at, key=key, id=id_)


def published(key: str = KEY, id_: int = 1, at: float = 0.0, **facts: Any) -> list[Line]:
    return [intended(at, key, **facts), acknowledged(at + 0.1, key, id_)]


def uncertain(**facts: Any) -> list[Line]:
    """A publish of which its publisher was told that it is unknown."""
    return [intended(**facts), Line(what="uncertain", process="publisher-1", at=0.1, key=KEY)]


def refused_each_time(since: float, until: float) -> list[Line]:
    """One publish a second of which its publisher is told that it is not stored."""
    keys = ((at, f"publisher-1/refused {at}") for at in range(int(since), int(until)))
    return [
        line for at, key in keys for line in (intended(at + 0.5, key), nemesis("refused", at + 0.6, key=key))
    ]


def unanswered(at: float, process: str = OTHER, queue: str = "plain") -> Line:
    """A claim that fails."""
    return Line(what="claiming", process=process, at=at, token=f"unanswered {at}", queue=queue)


def booted(process: str = ME, *, at: float = 0.0, **facts: Any) -> Line:
    usual: dict[str, Any] = {"lease": LEASE, "grace": 5.0, "max_deliveries": 3, "max_attempts": 10}
    return Line(what="booted", process=process, at=at, **usual | facts)


def claimed(at: float, token: str = A, process: str = ME, **facts: Any) -> Line:
    usual: dict[str, Any] = {
        "key": KEY, "id": 1, "sent": at - 0.01, "store_at": EPOCH + at, "due_at": EPOCH, "deliveries": 1,
        "lease": LEASE, "queue": "plain",
    }  # fmt: skip
    return Line(what="claimed", process=process, at=at, token=token, **usual | facts)


def looked(at: float, process: str = OTHER, queue: str = "plain") -> list[Line]:
    """A claim that finds nothing."""
    token = f"empty {at}"
    return [
        Line(what="claiming", process=process, at=at, token=token, queue=queue),
        Line(what="claim_ended", process=process, at=at, token=token),
    ]


def about(what: Any, at: float, token: str | None = A, process: str = ME, **facts: Any) -> Line:
    usual: dict[str, Any] = {"key": KEY, "id": 1}
    return Line(what=what, process=process, at=at, token=token, **usual | facts)


def settled(at: float, outcome: str = "done", token: str = A, process: str = ME, **facts: Any) -> list[Line]:
    usual: dict[str, Any] = {"result": "written", "sent": at}
    lease = {name: value for name, value in facts.items() if name in ("key", "id", "reason")}
    return [
        about("settling", at, token, process, outcome=outcome, **lease),
        about("settled", at + 0.01, token, process, outcome=outcome, **usual | facts),
    ]


def a_run(at: float, how: str = "ok", token: str = A, process: str = ME, **facts: Any) -> list[Line]:
    """A message is claimed, and its handler runs for a tenth of a second."""
    lease = {name: value for name, value in facts.items() if name in ("key", "id")}
    return [
        claimed(at, token, process, **facts),
        about("started", at, token, process, **lease),
        about("ended", at + 0.1, token, process, how=how, **lease),
    ]


def extended(at: float, token: str = A, process: str = ME, result: str = "written") -> Line:
    return about("extended", at + 0.01, token, process, sent=at, result=result)


def extended_other(at: float) -> Line:
    """The lease of another message is renewed."""
    return about("extended", at + 0.01, "b", key="publisher-1/1", id=2, sent=at, result="written")


def fault(at: float, target: str | None = ME, until: float | None = None, kind: str = "kill") -> Line:
    return Line(what="fault", process="nemesis", at=at, kind=kind, target=target, sent=at, until=until)


def pause(at: float, until: float, target: str | None = ME) -> Line:
    return fault(at, target, until, kind="pause")


def paused(at: float, until: float, queue: str = "plain", ordering_key: str | None = None) -> list[Line]:
    """An operator pauses a queue, and resumes it."""
    what = {"queue": queue, "ordering_key": ordering_key}
    return [nemesis("paused", at, **what), nemesis("resuming", until, **what)]


def step(at: float, seconds: float) -> Line:
    return Line(
        what="fault", process="nemesis", at=at, kind="store's clock stepped", sent=at, until=at, skew=seconds
    )


def nemesis(what: Any, at: float, **facts: Any) -> Line:
    return Line(what=what, process="nemesis", at=at, **facts)


def exited(code: int, at: float = 50.0, target: str = ME) -> Line:
    return nemesis("exited", at, target=target, code=code)


def end(at: float = 90.0, **facts: Any) -> list[Line]:
    return [nemesis("calm", at - 30), nemesis("over", at, **facts)]


BOOTED: Final = [booted(), booted(OTHER)]
TAKEN_OVER: Final = [
    *BOOTED, *published(), claimed(1.0), about("started", 1.0), pause(1.1, 6.0),
    *a_run(4.5, token="b", process=OTHER, deliveries=2),
]  # fmt: skip
"""A worker freezes with a message, and another takes it over."""
LEFT_BEHIND: Final = [*published(), claimed(1.0), about("started", 1.0), fault(1.1)]
"""A worker is killed with a message."""
IN_LINE: Final = [
    *BOOTED, *published(ordering_key="k"), *published("publisher-1/1", 2, 0.5, ordering_key="k"),
]  # fmt: skip
POISON_AGAIN: Final = [
    claimed(4.5, "b", "worker-3", deliveries=2), about("started", 4.5, "b", "worker-3"), fault(4.5, "worker-3"),
    claimed(8.0, "c", "worker-4", deliveries=3), about("started", 8.0, "c", "worker-4"), fault(8.0, "worker-4"),
]  # fmt: skip
POISON_RUNS: Final = [claimed(1.0), about("started", 1.0), fault(1.0), *POISON_AGAIN]
"""What kills its process is run as often as it may be."""
ALL_THERE: Final = [*BOOTED, *published(), *a_run(1.0), *settled(1.2), nemesis("returned", 2.0)]
"""Every server of a cluster is back, and a worker was at work before."""
ONE_MORE: Final = [*published("publisher-1/1", 2), *a_run(12.5, token="c", key="publisher-1/1", id=2)]
"""That worker claims a message again."""
DONE_ONCE_MORE: Final = settled(12.7, token="c", key="publisher-1/1", id=2)


def buried_along(*, started: bool) -> list[Line]:
    """A message that kills no process is claimed three times beside one that does, and is given up then.

    The third time the other should have run alone.
    """
    other: dict[str, Any] = {"key": "publisher-1/1", "id": 2}
    lines = [
        *BOOTED, booted("worker-3"), booted("worker-4"), *published(), *published("publisher-1/1", 2, poison=True),
    ]  # fmt: skip
    for number, (at, process) in enumerate(((1.0, ME), (4.5, "worker-3"), (8.0, "worker-4"))):
        token = "xyz"[number]
        lines += [
            claimed(at, token, process, deliveries=number + 1),
            *([about("started", at, token, process)] if started else []),
            claimed(at, token, process, deliveries=number + 1, **other),
            about("started", at + 0.1, token, process, **other),
            fault(at + 0.2, process, kind=BY_A_MESSAGE),
        ]
    return [
        *lines, claimed(11.5, "d", OTHER, deliveries=4),
        *settled(11.6, "dead", "d", OTHER, reason="max_deliveries"), *end(letters=(1, 2)),
    ]  # fmt: skip


def due(at: float, process: str = ME, **facts: Any) -> list[Line]:
    """A message that is published at 0 is claimed and handled only then."""
    return [*a_run(at, process=process, **facts), *settled(at + 0.2, process=process)]


def used(since: float, until: float, process: str = ME, queue: str = "bulk") -> list[Line]:
    """Wake-ups are cut, and a process claims something each second."""
    asked = [line for at in range(int(since), int(until)) for line in looked(float(at), process, queue)]
    return [fault(since, "those that listen", since, "wake-ups cut"), *asked]


FINE: Final = {
    "handled": [*BOOTED, *published(), *a_run(1.0), *settled(1.2), *end()],
    "retried": [
        *BOOTED, *published(), *a_run(1.0, "failed"), *settled(1.2, "retry"),
        *a_run(2.0, token="b", attempts=1), *settled(2.2, token="b"), *end(),
    ],
    "in order, though one worker hears of its lease when it is over": [
        *IN_LINE, pause(1.0, 6.9), *a_run(4.5, token="b", process=OTHER, deliveries=2),
        *settled(4.7, token="b", process=OTHER), *a_run(5.0, token="c", process=OTHER, key="publisher-1/1", id=2),
        *settled(5.2, token="c", process=OTHER, key="publisher-1/1", id=2),
        claimed(7.0, sent=0.9, store_at=EPOCH + 1.0), *settled(7.1, "release", result="lost"), *end(),
    ],
    "cancelled for its time before its first line": [
        booted(timeout=0.1), *published(), claimed(1.0), *settled(1.2, "retry"),
        *a_run(2.0, token="b", attempts=1), *settled(2.2, token="b"), *end(),
    ],
    "killed with it": [
        *BOOTED, *published(), claimed(1.0), about("started", 1.0), fault(1.05),
        *a_run(4.5, token="b", process=OTHER, deliveries=2), *settled(4.7, token="b", process=OTHER), *end(),
    ],
    "paused with it, and late": [
        *TAKEN_OVER, about("ended", 6.1, how="ok"), *settled(6.2, result="lost"),
        *settled(6.5, token="b", process=OTHER), *end(),
    ],
    "done was not heard, and a fault is why": [
        *BOOTED, *published(), *a_run(1.0), about("settling", 1.2, outcome="done"), pause(1.21, 1.22),
        *a_run(4.5, token="b", process=OTHER, deliveries=2), *settled(4.7, token="b", process=OTHER), *end(),
    ],
    "its claim was heard too late to renew it": [
        *BOOTED, *published(), *a_run(4.2, sent=1.0, store_at=EPOCH + 1.0, token="b"),
        *a_run(4.25, token="c", process=OTHER, deliveries=2), *settled(4.4, token="c", process=OTHER),
        *settled(4.5, token="b", result="lost"), *end(),
    ],
    "done was heard the second time only, as unknown": [
        *BOOTED, *published(), *a_run(1.0), about("settling", 1.2, outcome="done"), *settled(1.4, result="unknown"),
        *end(),
    ],
    "a retry was not heard": [
        *BOOTED, *published(), *a_run(1.0, "failed"), about("settling", 1.2, outcome="retry"),
        *a_run(1.5, token="b", process=OTHER, attempts=1), *settled(1.7, token="b", process=OTHER), *end(),
    ],
    "a late ack is refused": [
        *TAKEN_OVER, about("ended", 6.1, how="ok"), about("acking", 6.2), about("acked", 6.3, result="lost"),
        *settled(6.5, token="b", process=OTHER), *end(),
    ],
    "killed, and said to be": [
        *BOOTED, *published(), *a_run(1.0), *settled(1.2), fault(2.0), exited(-9, 2.1), exited(0, target=OTHER), *end(),
    ],
    "asked to stop before it was ready to be asked": [*BOOTED, exited(-15, target="publisher-2"), *end()],
    "renewed while it runs": [
        *BOOTED, *published(), claimed(1.0), about("started", 1.0), extended(2.0), extended(3.0),
        about("ended", 5.0, how="ok"), *settled(5.1), *end(),
    ],
    "the store's clock goes forward, and its lease ends": [
        *BOOTED, *published(), claimed(1.0), about("started", 1.0), step(1.5, 8.0),
        *a_run(1.6, token="b", process=OTHER, deliveries=2, store_at=EPOCH + 9.6),
        *settled(1.8, token="b", process=OTHER), about("ended", 2.0, how="ok"), *settled(2.1, result="lost"), *end(),
    ],
    "the same, and its holder only hears of it": [
        *BOOTED, *published(), claimed(1.0), step(1.5, 8.0),
        *a_run(1.6, token="b", process=OTHER, deliveries=2, store_at=EPOCH + 9.6),
        *settled(1.8, token="b", process=OTHER), extended(2.0, result="lost"),
        about("stopping", 20.0, key=None, id=None, token=None), about("stopped", 20.1, key=None, id=None, token=None),
        *end(),
    ],
    "the store's clock goes forward, and a delay is over": [
        *BOOTED, *published(delay=5.0), step(0.5, 8.0), *a_run(1.0, store_at=EPOCH + 9.0, due_at=EPOCH + 5.0),
        *settled(1.2), *end(),
    ],
    "the store's clock goes back, and it is claimed again after a retry": [
        *BOOTED, *published(), step(0.5, 8.0), *a_run(1.0, "failed", store_at=EPOCH + 9.0), *settled(1.2, "retry"),
        step(1.5, 0.0), *a_run(12.0, token="b", attempts=1), *settled(12.2, token="b"), *end(),
    ],
    "the store's clock goes back, and the order changes": [
        *BOOTED, step(0.0, 8.0), *published(ordering_key="k"), step(0.4, 0.0),
        *published("publisher-1/1", 2, 0.5, ordering_key="k"),
        *a_run(1.0, key="publisher-1/1", id=2), *settled(1.2, key="publisher-1/1", id=2),
        *a_run(9.0, token="b"), *settled(9.2, token="b"), *end(),
    ],
    "dead after the last attempt": [
        booted(max_attempts=2), *published(), *a_run(1.0, "failed"), *settled(1.2, "retry"),
        *a_run(2.0, "failed", token="b", attempts=1), *settled(2.2, "dead", token="b", reason="retries_exhausted"),
        *end(letters=(1,)),
    ],
    "handed back by a stop": [
        *BOOTED, *published(), claimed(1.0), about("stopping", 1.1, key=None, id=None, token=None),
        *settled(1.2, "release"), about("stopped", 1.3, key=None, id=None, token=None),
        *a_run(1.5, token="b", process=OTHER), *settled(1.7, token="b", process=OTHER), *end(),
    ],
    "claimed, and heard of only after another had taken it over": [
        *BOOTED, *published(), *a_run(5.0, token="b", process=OTHER, deliveries=2),
        *settled(5.4, token="b", process=OTHER), claimed(9.0, sent=0.9, store_at=EPOCH + 1.0),
        about("extended", 9.1, result="lost"), about("stopping", 10.0, key=None, id=None, token=None),
        about("stopped", 10.1, key=None, id=None, token=None), *end(),
    ],
    "in its handler's transaction": [
        *BOOTED, *published(transactional=True), *a_run(1.0), about("acking", 1.2), *end(effects=(KEY,)),
    ],
    "a commit that failed": [
        *BOOTED, *published(transactional=True), *a_run(1.0), about("acking", 1.2), *settled(1.3, "retry"),
        *a_run(1.5, token="b", attempts=1), about("acking", 1.7, token="b"), *end(effects=(KEY,)),
    ],
    "dead, because the commit of its last attempt did not end in time": [
        booted(max_attempts=1), *published(transactional=True), *a_run(1.0), about("acking", 1.2),
        *settled(1.3, "dead", reason="retries_exhausted"), *end(letters=(1,)),
    ],
    "its commit ended when its time was up": [
        booted(timeout=0.2), *published(transactional=True), *a_run(1.0), about("acking", 1.15),
        about("acked", 1.25, result="written"), *settled(1.3, "retry", result="unknown"), *end(effects=(KEY,)),
    ],
    "rolled back": [*BOOTED, intended(), nemesis("rolled_back", 0.1, key=KEY), *end()],
    "refused once, and a timer": [
        *BOOTED, intended(timer=True), nemesis("refused", 0.1, key=KEY), acknowledged(), *a_run(1.0), *settled(1.2),
        *end(),
    ],
    "refused once and unknown once, and a timer": [
        *BOOTED, *uncertain(timer=True), nemesis("refused", 0.2, key=KEY), *a_run(1.0), *settled(1.2), *end(),
    ],
    "refused, and its publisher was killed while it published again": [
        *BOOTED, intended(timer=True), nemesis("refused", 0.1, key=KEY), fault(0.3, "publisher-1"), *a_run(1.0),
        *settled(1.2), *end(),
    ],
    "unknown, and not stored": [*BOOTED, *uncertain(transactional=True), *end()],
    "unknown, and stored": [*BOOTED, *uncertain(), *a_run(1.0), *settled(1.2), *end()],
    "unknown, and a dead letter": [
        *BOOTED, *uncertain(), *a_run(1.0, "failed"), *settled(1.2, "dead", reason="rejected"), *end(letters=(1,)),
    ],
    "unknown, and in its handler's transaction": [
        *BOOTED, *uncertain(transactional=True), *a_run(1.0), about("acking", 1.2), *end(effects=(KEY,)),
    ],
    "used again at once, with nothing to claim": [
        *ALL_THERE, *looked(2.1, ME), *ONE_MORE, *DONE_ONCE_MORE, *end(),
    ],
    "gone again before it had to be in use": [
        *ALL_THERE, fault(2.8, None, 6.0, "failover"), *ONE_MORE, *DONE_ONCE_MORE, *end(),
    ],
    "used again only to look ahead": [
        *ALL_THERE, *(about("looked", float(at), None, key=None, id=None) for at in range(5, 60, 5)),
        about("stopping", 60.0, key=None, id=None, token=None), about("stopped", 60.1, key=None, id=None, token=None),
        *end(),
    ],
    "never again by a process that is asked to stop, by one that is killed, and by a publisher that has nothing more": [
        *BOOTED, booted("worker-3"), *published(), *a_run(1.0), *settled(1.2), *looked(1.3), *looked(1.4, "worker-3"),
        nemesis("returned", 2.0), *looked(3.0, "worker-3"), about("stopping", 3.0, key=None, id=None, token=None),
        about("stopped", 3.1, key=None, id=None, token=None), fault(4.0, OTHER), exited(-9, target=OTHER),
        *looked(13.0, "worker-3"), *end(),
    ],
    "some servers are back while others are hit": [
        *ALL_THERE, fault(1.9, None, 11.0, "failover"), *ONE_MORE, *DONE_ONCE_MORE, *end(),
    ],
    "in order": [
        *IN_LINE, *a_run(1.0), *settled(1.2),
        *a_run(1.4, token="b", key="publisher-1/1", id=2),
        *settled(1.6, token="b", key="publisher-1/1", id=2), *end(),
    ],
    "poison": [
        *BOOTED, *published(poison=True), *POISON_RUNS,
        claimed(11.5, "d", OTHER, deliveries=4), *settled(11.6, "dead", "d", OTHER, reason="max_deliveries"),
        *end(letters=(1,)),
    ],
    "poison that dies along with another one, and is given up after one run less": [
        *BOOTED, booted("publisher-1", max_deliveries=0), *published(poison=True),
        claimed(1.0), fault(1.0, kind=BY_A_MESSAGE), *POISON_AGAIN,
        claimed(11.5, "d", OTHER, deliveries=4), *settled(11.6, "dead", "d", OTHER, reason="max_deliveries"),
        *end(letters=(1,)),
    ],
    "poison, of which it is unknown whether it was stored": [*BOOTED, *uncertain(poison=True), *end()],
    "started just after its queue was paused, and just after it was resumed": [
        *BOOTED, *paused(0.5, 6.0), *published(), *published("publisher-1/1", 2),
        *a_run(1.4), *settled(1.6),
        *a_run(6.1, token="b", key="publisher-1/1", id=2), *settled(6.3, token="b", key="publisher-1/1", id=2), *end(),
    ],
    "another key is paused": [
        *BOOTED, *paused(0.5, 6.0, ordering_key="k"), *published(ordering_key="l"), *a_run(3.0), *settled(3.2), *end(),
    ],
    "paused while its process stood still": [
        *BOOTED, *paused(0.5, 6.0), *published(), claimed(0.4), fault(0.6, until=2.2, kind="stall"),
        about("started", 2.3), about("ended", 2.4, how="ok"), *settled(2.5), *end(),
    ],
    "given up, because its processes were killed that often": [
        *BOOTED, booted("worker-3"), booted("worker-4"), *published(), claimed(1.0), fault(1.1),
        claimed(4.5, "b", "worker-3", deliveries=2), fault(4.6, "worker-3"),
        claimed(8.0, "c", "worker-4", deliveries=3), fault(8.1, "worker-4"),
        claimed(11.5, "d", OTHER, deliveries=4), *settled(11.6, "dead", "d", OTHER, reason="max_deliveries"),
        *end(letters=(1,)),
    ],
    "claimed late, because none was there": [booted(at=20.0), *published(), *used(1, 30, OTHER), *due(25.0), *end()],
    "claimed late, because all were busy": [
        booted(), *published(), *used(1, 30), *published("publisher-1/1", 2),
        claimed(0.5, "b", key="publisher-1/1", id=2, queue="timer"),
        about("started", 0.5, "b", key="publisher-1/1", id=2), extended_other(2.0), extended_other(4.0),
        about("ended", 8.0, "b", key="publisher-1/1", id=2, how="ok"),
        *settled(8.1, token="b", key="publisher-1/1", id=2), *due(15.0), *end(),
    ],
    "claimed late, because the store was hit": [
        booted(), *published(), fault(3.0, None, 4.0, "failover"), *used(4, 30), *due(13.0), *end(),
    ],
    "claimed late, because its process stood still": [
        booted(), *published(), fault(3.0, ME, 12.0, "stall"), *used(1, 3), *used(13, 30), *due(15.0), *end(),
    ],
    "claimed late, because its queue was paused": [
        booted(), *published(), *paused(0.5, 14.0), *used(1, 30), *due(15.0), *end(),
    ],
    "claimed late, behind another of its ordering key": [
        booted(), *published(ordering_key="k"), *used(1, 30), *due(15.0), *end(),
    ],
    "claimed late, and the store was not used meanwhile": [
        booted(), *published(), *used(1, 2), *due(15.0), *end(),
    ],
    "claimed late, where much else may be why": [
        booted(), *published(), *used(1, 30)[1:], *due(15.0), *end(),
    ],
    "due late": [booted(), *published(delay=14.0), *used(1, 30), *due(15.0, due_at=EPOCH + 14.5), *end()],
    "taken over late, because no worker was free": [
        *BOOTED, *LEFT_BEHIND, *published("publisher-1/1", 2),
        claimed(3.0, "b", OTHER, key="publisher-1/1", id=2),
        about("started", 3.0, "b", OTHER, key="publisher-1/1", id=2),
        about("ended", 15.0, "b", OTHER, key="publisher-1/1", id=2, how="ok"),
        *settled(15.05, token="b", process=OTHER, key="publisher-1/1", id=2),
        *a_run(15.1, token="c", process=OTHER, deliveries=2), *settled(15.3, token="c", process=OTHER), *end(),
    ],
    "taken over late, because its queue was paused": [
        *BOOTED, *LEFT_BEHIND, *paused(1.5, 15.0), *looked(8.0),
        *a_run(15.1, token="b", process=OTHER, deliveries=2), *settled(15.3, token="b", process=OTHER), *end(),
    ],
    "taken over late, as a suspect": [
        *BOOTED, *published(), claimed(0.5, "x", "worker-3"), fault(0.6, "worker-3"),
        claimed(4.0, deliveries=2), fault(4.1),
        *a_run(18.0, token="b", process=OTHER, deliveries=3), *settled(18.2, token="b", process=OTHER), *end(),
    ],
    "still there, as a dead letter": [
        *BOOTED, *published(), *a_run(1.0, "failed"), *settled(1.2, "dead", reason="rejected"), *end(letters=(1,)),
    ],
}  # fmt: skip

BROKEN: Final = {
    "nothing_lost": {
        "acknowledged, and gone": [*BOOTED, *published(), *end()],
        "damaged": [*BOOTED, *end(how="row 1 missing from index")],
        "gone with a killed process": [*BOOTED, *published(), claimed(1.0), fault(1.1), *end()],
        "gone, and its removal was refused": [
            *TAKEN_OVER[:-1], fault(4.7, OTHER), about("ended", 6.1, how="ok"), *settled(6.2, result="lost"), *end(),
        ],
        "gone, and its ack was refused": [
            *TAKEN_OVER[:-1], fault(4.7, OTHER), about("ended", 6.1, how="ok"), about("acking", 6.2),
            about("acked", 6.3, result="lost"), *end(),
        ],
        "acked, and still there": [
            *BOOTED, *published(), *a_run(1.0), about("acking", 1.2), about("acked", 1.3, result="written"),
            *end(waiting=(1,)),
        ],
        "dead, and no dead letter": [
            *BOOTED, *published(), *a_run(1.0, "failed"), *settled(1.2, "dead", reason="rejected"), *end(),
        ],
        "unknown, dead, and no dead letter": [
            *BOOTED, *uncertain(), *a_run(1.0, "failed"), *settled(1.2, "dead", reason="rejected"), *end(),
        ],
    },
    "nothing_vanishes": {
        "unknown, claimed, and gone": [*BOOTED, *uncertain(), claimed(1.0), fault(1.1), *end()],
        "unknown, failed, and gone": [*BOOTED, *uncertain(), *a_run(1.0, "failed"), *settled(1.2, "retry"), *end()],
    },
    "no_phantom": {
        "no one published it": [*BOOTED, *a_run(1.0, key="forked"), *settled(1.2, key="forked"), *end()],
        "rolled back, and delivered": [
            *BOOTED, intended(), nemesis("rolled_back", 0.1, key=KEY), *a_run(1.0), *settled(1.2), *end(),
        ],
        "refused, and there": [
            *BOOTED, intended(), nemesis("refused", 0.1, key=KEY), nemesis("left", 80.0, key=KEY, id=1),
            *end(waiting=(1,)),
        ],
        "rolled back, and a dead letter": [
            *BOOTED, intended(), nemesis("rolled_back", 0.1, key=KEY), nemesis("left", 80.0, key=KEY, id=1),
            *end(letters=(1,)),
        ],
        "a timer, refused, and its publisher was killed while it published another one": [
            *BOOTED, intended(timer=True), nemesis("refused", 0.1, key=KEY),
            intended(0.2, "publisher-1/1", timer=True), fault(0.3, "publisher-1"), *a_run(1.0), *settled(1.2), *end(),
        ],
        "a timer, refused each time, and delivered": [
            *BOOTED, intended(timer=True), nemesis("refused", 0.1, key=KEY), nemesis("refused", 0.3, key=KEY),
            fault(0.4, "publisher-2"), *a_run(1.0), *settled(1.2), *end(),
        ],
    },
    "effects_once": {
        "twice": [
            *BOOTED, *published(transactional=True), *a_run(1.0), about("acking", 1.2), *end(effects=(KEY, KEY)),
        ],
        "none": [*BOOTED, *published(transactional=True), *a_run(1.0), about("acking", 1.2), *end()],
        "an effect of what is not done": [
            *BOOTED, *published(transactional=True), *a_run(1.0), about("acking", 1.2),
            *end(effects=(KEY,), waiting=(1,)),
        ],
        "unknown, acked, and none": [
            *BOOTED, *uncertain(transactional=True), *a_run(1.0), about("acking", 1.2),
            about("acked", 1.3, result="written"), *end(),
        ],
        "unknown, done, and none": [
            *BOOTED, *uncertain(transactional=True), *a_run(1.0), *settled(1.2), *end(),
        ],
        "an effect of what was rolled back": [
            *BOOTED, intended(transactional=True), nemesis("rolled_back", 0.1, key=KEY), *end(effects=(KEY,)),
        ],
        "an effect of what was refused": [
            *BOOTED, intended(transactional=True), nemesis("refused", 0.1, key=KEY), *end(effects=(KEY,)),
        ],
        "an effect of what was claimed, and did not run": [
            *BOOTED, *published(transactional=True), claimed(1.0), *settled(1.1, "release"),
            *end(effects=(KEY,)),
        ],
        "an effect of what no one published": [*BOOTED, *end(effects=(KEY,))],
    },
    "timer_ids": {
        "stored twice": [
            *BOOTED, *published(timer=True), *a_run(1.0), *settled(1.2), *a_run(1.5, token="b", id=2),
            *settled(1.7, token="b", id=2), *end(),
        ],
    },
    "used_again": {
        "claimed too late": [
            *BOOTED, fault(1.0, None, 2.0, "server killed"), *published(at=2.1), *a_run(12.5), *settled(12.7),
            *end(13.0),
        ],
        "one queue too late": [
            *BOOTED, *published(), *a_run(1.0, queue="ordered"), *settled(1.2), fault(1.3, None, 2.0, "server killed"),
            *published("publisher-1/1", 2), *a_run(2.1, token="b", key="publisher-1/1", id=2),
            *settled(2.3, token="b", key="publisher-1/1", id=2), *published("publisher-1/2", 3),
            *a_run(12.5, token="c", key="publisher-1/2", id=3, queue="ordered"),
            *settled(12.7, token="c", key="publisher-1/2", id=3), *end(),
        ],
        "by one process too late": [
            *BOOTED, *published(), *a_run(1.0), *settled(1.2), nemesis("returned", 2.0),
            *published("publisher-1/1", 2), *a_run(2.1, token="b", process=OTHER, key="publisher-1/1", id=2),
            *settled(2.3, token="b", process=OTHER, key="publisher-1/1", id=2), *published("publisher-1/2", 3),
            *a_run(12.5, token="c", key="publisher-1/2", id=3),
            *settled(12.7, token="c", key="publisher-1/2", id=3), *end(),
        ],
        "published too late": [
            *BOOTED, *published(), fault(1.0, None, 1.1, "server killed"), *a_run(1.2), *settled(1.3),
            *published("publisher-1/1", 2, at=11.1), *end(13.0, waiting=(2,)),
        ],
        "by one process too late, though another looked": [
            *ALL_THERE, *looked(2.1, OTHER), *ONE_MORE, *DONE_ONCE_MORE, *end(),
        ],
        "by one process too late, though it asked": [
            *ALL_THERE, unanswered(2.1, ME), *ONE_MORE, *DONE_ONCE_MORE, *end(),
        ],
        "never again by one process": [
            *ALL_THERE, *looked(3.0, OTHER), about("stopping", 52.0, key=None, id=None, token=None), *end(),
        ],
        "never again by one process of those that have one server": [
            *BOOTED, *published(), *a_run(1.0), *settled(1.2), fault(1.3, None, 2.0, "server killed"),
            *looked(3.0, OTHER), about("stopping", 52.0, key=None, id=None, token=None), *end(),
        ],
        "each publish is refused": [
            *BOOTED, *published(), *a_run(1.0), *settled(1.2), fault(1.3, None, 2.0, "server killed"),
            *looked(3.0, ME), *refused_each_time(2.5, 50.0), *end(),
        ],
        "each publish of one process is refused": [
            *ALL_THERE, *looked(3.0, ME), *refused_each_time(2.5, 50.0),
            intended(3.0, "publisher-2/0", "publisher-2"), acknowledged(3.1, "publisher-2/0", 2, "publisher-2"), *end(),
        ],
        "by one process too late, and then gone again": [
            *ALL_THERE, fault(12.1, None, 12.3, "failover"), *ONE_MORE, *DONE_ONCE_MORE, *end(),
        ],
    },
    "delivered": {"it still waits": [*BOOTED, *published(), *end(waiting=(1,))]},
    "never_early": {
        "by the store's clock": [
            *BOOTED, *published(), *a_run(1.0, due_at=EPOCH + 1.000001), *settled(1.2), *end(),
        ],
        "by ours": [*BOOTED, *published(delay=2.0), *a_run(1.0), *settled(1.2), *end()],
    },
    "one_lease": {
        "two at once": [
            *BOOTED, *published(), claimed(1.0), pause(1.1, 6.0), *a_run(3.9, token="b", process=OTHER, deliveries=2),
            *settled(4.2, token="b", process=OTHER), *end(),
        ],
        "a renewed one": [
            *BOOTED, *published(), claimed(1.0), extended(3.0), pause(3.1, 9.0),
            *a_run(5.5, token="b", process=OTHER, deliveries=2), *settled(5.7, token="b", process=OTHER), *end(),
        ],
        "of what is acked": [
            *BOOTED, *published(), *a_run(1.0), about("acking", 1.2), about("acked", 1.3, result="written"),
            *a_run(8.0, token="b"), *settled(8.2, token="b"), *end(),
        ],
        "of what is done": [
            *BOOTED, *published(), *a_run(1.0), *settled(1.2), *a_run(8.0, token="b", deliveries=1),
            *settled(8.2, token="b"), *end(),
        ],
    },
    "fenced": {
        "a late done": [*TAKEN_OVER, about("ended", 6.1, how="ok"), *settled(6.2), *end()],
        "a late ack": [
            *TAKEN_OVER, about("ended", 6.1, how="ok"), about("acking", 6.2), about("acked", 6.3, result="written"),
            *end(),
        ],
        "a late renewal": [*TAKEN_OVER, extended(6.1), *settled(6.5, token="b", process=OTHER), *end()],
        "the holder is refused": [
            *TAKEN_OVER, *settled(6.5, token="b", process=OTHER, result="lost"), *end(),
        ],
    },
    "in_order": {
        "overtaken": [
            *IN_LINE, *a_run(1.0, token="b", key="publisher-1/1", id=2),
            *settled(1.2, token="b", key="publisher-1/1", id=2), *a_run(1.4), *settled(1.6), *end(),
        ],
        "side by side": [
            *IN_LINE, *a_run(1.0), *a_run(1.1, token="b", process=OTHER, key="publisher-1/1", id=2), *settled(1.3),
            *settled(1.4, token="b", process=OTHER, key="publisher-1/1", id=2), *end(),
        ],
    },
    "counters": {
        "a stop that counts as an attempt": [
            *BOOTED, *published(), claimed(1.0), *settled(1.2, "release"), *a_run(1.5, token="b", attempts=1),
            *settled(1.7, token="b"), *end(),
        ],
        "a stop that counts as a delivery": [
            *BOOTED, *published(), claimed(1.0), *settled(1.2, "release"), *a_run(1.5, token="b", deliveries=2),
            *settled(1.7, token="b"), *end(),
        ],
        "a kill that does not count": [
            *BOOTED, *published(), claimed(1.0), fault(1.1), *a_run(4.5, token="b", process=OTHER),
            *settled(4.7, token="b", process=OTHER), *end(),
        ],
    },
    "runs_once": {
        "the same delivery twice": [
            *BOOTED, *published(), *a_run(1.0), about("started", 1.1), *settled(1.2), *end(),
        ],
        "what was not claimed": [
            *BOOTED, *published(), about("started", 0.5, "z"), *a_run(1.0), *settled(1.2), *end(),
        ],
    },
    "right_outcome": {
        "done before it ran": [*BOOTED, *published(), claimed(1.0), *settled(1.2), *end()],
        "done although it failed": [*BOOTED, *published(), *a_run(1.0, "failed"), *settled(1.2), *end()],
        "dead although it went well": [
            *BOOTED, *published(), *a_run(1.0), *settled(1.2, "dead", reason="retries_exhausted"), *end(letters=(1,)),
        ],
        "a cancelled run that counts": [
            *BOOTED, *published(), *a_run(1.0, "cancelled"), *settled(1.2, "retry"),
            *a_run(2.0, token="b", attempts=1), *settled(2.2, token="b"), *end(),
        ],
        "a retry of what was not run and had time left": [
            booted(timeout=5.0), *published(), claimed(1.0), *settled(1.2, "retry"),
            *a_run(2.0, token="b", attempts=1), *settled(2.2, token="b"), *end(),
        ],
        "dead although its ack was written": [
            *BOOTED, *published(transactional=True), *a_run(1.0), about("acking", 1.2),
            about("acked", 1.25, result="written"), *settled(1.3, "dead", reason="retries_exhausted"),
            *end(letters=(1,)),
        ],
        "a retry although its ack was written, and it had time left": [
            booted(timeout=5.0), *published(transactional=True), *a_run(1.0), about("acking", 1.2),
            about("acked", 1.25, result="written"), *settled(1.3, "retry", result="lost"), *end(effects=(KEY,)),
        ],
        "a retry that was written although its ack was": [
            booted(timeout=0.2), *published(transactional=True), *a_run(1.0), about("acking", 1.15),
            about("acked", 1.25, result="written"), *settled(1.3, "retry"), *end(effects=(KEY,)),
        ],
        "dead after the first failure": [
            *BOOTED, *published(), *a_run(1.0, "failed"), *settled(1.2, "dead", reason="retries_exhausted"),
            *end(letters=(1,)),
        ],
        "tried again after the last attempt": [
            booted(max_attempts=1), *published(), *a_run(1.0, "failed"), *settled(1.2, "retry"),
            *a_run(2.0, token="b", attempts=1), *settled(2.2, token="b"), *end(),
        ],
        "given up too soon": [
            *BOOTED, *published(), claimed(1.0, deliveries=1), *settled(1.2, "dead", reason="max_deliveries"),
            *end(letters=(1,)),
        ],
    },
    "no_needless_duplicate": {
        "a lease that was not renewed": [
            *BOOTED, *published(), claimed(1.0), about("started", 1.0),
            *a_run(4.5, token="b", process=OTHER, deliveries=2), *settled(4.7, token="b", process=OTHER), *end(),
        ],
        "done was not heard, and no fault is why": [
            *BOOTED, *published(), *a_run(1.0), about("settling", 1.2, outcome="done"),
            *a_run(4.5, token="b", process=OTHER, deliveries=2), *settled(4.7, token="b", process=OTHER), *end(),
        ],
        "an ack was not heard, and no fault is why": [
            *BOOTED, *published(), *a_run(1.0), about("acking", 1.2),
            *a_run(4.5, token="b", process=OTHER, deliveries=2), *settled(4.7, token="b", process=OTHER), *end(),
        ],
        "a fault that hit another process": [
            *BOOTED, *published(), claimed(1.0), fault(1.1, OTHER),
            *a_run(4.5, token="b", process="worker-3", deliveries=2), *settled(4.7, token="b", process="worker-3"),
            *end(),
        ],
    },
    "duplicates_bounded": {
        "a fault that was over before it was claimed": [
            *BOOTED, *published(), pause(0.3, 0.5), claimed(1.0), about("started", 1.0),
            *a_run(4.5, token="b", process=OTHER, deliveries=2), *settled(4.7, token="b", process=OTHER), *end(),
        ],
        "two, and a fault hit one": [
            *BOOTED, *published(), *published("publisher-1/1", 2), claimed(1.0), about("started", 1.0),
            pause(1.1, 1.3), claimed(1.4, "c", key="publisher-1/1", id=2),
            about("started", 1.5, "c", key="publisher-1/1", id=2),
            *a_run(4.5, token="b", process=OTHER, deliveries=2), *settled(4.7, token="b", process=OTHER),
            *a_run(4.9, token="d", process=OTHER, deliveries=2, key="publisher-1/1", id=2),
            *settled(5.1, token="d", process=OTHER, key="publisher-1/1", id=2), *end(),
        ],
        "a fault of the whole store that came when its message was done": [
            *BOOTED, *published(), *published("publisher-1/1", 2), *a_run(1.0), *settled(1.2),
            fault(1.3, None, 1.4, "failover"), claimed(1.5, "c", key="publisher-1/1", id=2),
            about("started", 1.5, "c", key="publisher-1/1", id=2),
            *a_run(4.9, token="d", process=OTHER, deliveries=2, key="publisher-1/1", id=2),
            *settled(5.1, token="d", process=OTHER, key="publisher-1/1", id=2), *end(),
        ],
    },
    "taken_over": {
        "late, although a worker looked": [
            *BOOTED, *LEFT_BEHIND, *looked(8.0), *a_run(15.1, token="b", process=OTHER, deliveries=2),
            *settled(15.3, token="b", process=OTHER), *end(),
        ],
        "late, although a worker had nothing to do": [
            *BOOTED, *LEFT_BEHIND, *a_run(15.1, token="b", process=OTHER, deliveries=2),
            *settled(15.3, token="b", process=OTHER), *end(),
        ],
    },
    "picked_up": {
        "late, although it had nothing to do": [booted(), *published(), *used(1, 30), *due(15.0), *end()],
        "late, although another had nothing to do": [*BOOTED, *published(), *used(1, 30), *due(55.0, OTHER), *end()],
        "late, although it claimed of that queue and found nothing": [
            booted(), *published(), *used(1, 14, queue="plain,ordered,timer"), *due(15.0), *end(),
        ],
        "late, beside an old snapshot": [
            booted(), *published(), fault(0.5, "another application", 20.0, "old snapshot"), *used(1, 30)[1:],
            *due(15.0), *end(),
        ],
        "late, and its process stood still for a moment": [
            booted(), *published(), fault(3.0, ME, 4.0, "stall"), *used(1, 30), *due(15.0), *end(),
        ],
    },
    "poison_alone": {
        "it lives on": [*BOOTED, *published(poison=True), claimed(1.0), about("started", 1.0), fault(1.0), *end()],
        "unknown, and it lives on": [
            *BOOTED, *uncertain(poison=True), *POISON_RUNS, claimed(11.5, "d", OTHER, deliveries=4),
            about("started", 11.5, "d", OTHER), fault(11.5, OTHER), *end(waiting=(1,)),
        ],
        "it dies too soon": [
            *BOOTED, *published(poison=True), claimed(1.0), about("started", 1.0), fault(1.0),
            claimed(4.5, "b", OTHER, deliveries=4), *settled(4.6, "dead", "b", OTHER, reason="max_deliveries"),
            *end(letters=(1,)),
        ],
        "it dies too soon, and was handed back before another killed its process": [
            *BOOTED, *published(poison=True), claimed(1.0), *settled(1.1, "release"), fault(1.2, kind=BY_A_MESSAGE),
            *POISON_AGAIN, claimed(11.5, "d", OTHER, deliveries=4),
            *settled(11.6, "dead", "d", OTHER, reason="max_deliveries"), *end(letters=(1,)),
        ],
        "it dies without a run": [
            *BOOTED, booted("publisher-1", max_deliveries=0), *published(poison=True), claimed(1.0, deliveries=4),
            *settled(1.1, "dead", reason="max_deliveries"), *end(letters=(1,)),
        ],
        "another one is buried with it, and was never started": buried_along(started=False),
        "another one is buried with it, and was started": buried_along(started=True),
        "another one is buried, and nothing had hit its processes": [
            *BOOTED, *published(), claimed(1.0), *a_run(4.5, token="b", process=OTHER, deliveries=2),
            claimed(8.0, "c", deliveries=3), claimed(11.5, "d", OTHER, deliveries=4),
            *settled(11.6, "dead", "d", OTHER, reason="max_deliveries"), *end(letters=(1,)),
        ],
        "it takes another along": [
            *BOOTED, *published(poison=True), *published("publisher-1/1", 2),
            claimed(1.0, deliveries=3), about("started", 1.5),
            claimed(1.0, "b", key="publisher-1/1", id=2), about("started", 1.2, "b", key="publisher-1/1", id=2),
            fault(1.5), *end(letters=(1,), waiting=(2,)),
        ],
    },
    "stops_in_time": {
        "too slow": [
            *BOOTED, about("stopping", 1.0, key=None, id=None, token=None),
            about("stopped", 10.0, key=None, id=None, token=None), *end(),
        ],
        "never": [*BOOTED, about("stopping", 1.0, key=None, id=None, token=None), *end()],
        "with a lease left": [
            *BOOTED, *published(), claimed(1.0), about("stopping", 1.1, key=None, id=None, token=None),
            about("stopped", 1.2, key=None, id=None, token=None), *end(waiting=(1,)),
        ],
    },
    "ends_well": {
        "by an error": [*BOOTED, exited(1), *end()],
        "by an error, before it could be killed": [*BOOTED, fault(2.0), exited(1, 2.1), *end()],
        "by a kill of the system's": [*BOOTED, exited(-9), *end()],
        "killed, after another was": [*BOOTED, fault(1.0, OTHER), exited(-9), *end()],
        "by SIGTERM, and it had started": [*BOOTED, exited(-15), *end()],
    },
    "obeys_pauses": {
        "claimed before, and started too late": [
            *BOOTED, *paused(0.5, 6.0), *published(), claimed(0.4), about("started", 1.6),
            about("ended", 1.7, how="ok"), *settled(1.8), *end(),
        ],
        "claimed while it is paused": [*BOOTED, *paused(0.5, 6.0), *published(), *a_run(3.0), *settled(3.2), *end()],
        "of a paused key": [
            *BOOTED, *paused(0.5, 6.0, ordering_key="k"), *published(ordering_key="k"), *a_run(3.0), *settled(3.2),
            *end(),
        ],
        "after a short standstill": [
            *BOOTED, *paused(0.5, 6.0), *published(), claimed(0.4), fault(0.6, until=1.1, kind="stall"),
            about("started", 2.1), about("ended", 2.4, how="ok"), *settled(2.5), *end(),
        ],
        "another process stood still": [
            *BOOTED, *paused(0.5, 6.0), *published(), fault(0.6, OTHER, until=2.2, kind="stall"), *a_run(2.0),
            *settled(2.2), *end(),
        ],
    },
}  # fmt: skip


def rules_broken(journal: list[Line]) -> set[str]:
    return {violation.rule for violation in check(Ledger(journal))}


@pytest.mark.parametrize("journal", FINE.values(), ids=FINE)
def test_a_journal_in_which_all_is_well_passes(journal: list[Line]) -> None:
    assert check(Ledger(journal)) == []


@pytest.mark.parametrize(
    ("rule", "journal"),
    [
        pytest.param(rule, journal, id=f"{rule}: {case}")
        for rule, cases in BROKEN.items()
        for case, journal in cases.items()
    ],
)
def test_a_broken_promise_is_found_and_named(rule: str, journal: list[Line]) -> None:
    assert rule in rules_broken(journal)


def test_no_more_may_run_twice_than_ran_and_was_hit_in_flight() -> None:
    hit = fault(1.15, None, 3.0, "failover")
    journal = [
        *BOOTED, *published(), *a_run(0.5), *settled(0.7), claimed(1.0, "waits"), *a_run(1.1, token="hit"),
        *settled(1.2, token="hit"), hit, *a_run(3.5, token="late"), *settled(3.7, token="late"), *end(),
    ]  # fmt: skip

    assert duplicates_bound(Ledger(journal)) == 1


def test_every_rule_has_a_journal_that_breaks_it() -> None:
    assert set(BROKEN) == {rule.__name__ for rule in RULES}
