"""What is to happen in a history, drawn from its seed before it begins.

Each history has only some of the features (swarm testing): with all of them in each, rare ones would hide each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final, Literal, TypeAlias, get_args

from nightmail.message import OnConflict

Feature: TypeAlias = Literal[
    "kill", "freeze", "block", "stop", "hurry", "outage", "calls", "deaf", "poison", "session", "hang", "failing",
    "keys", "priorities", "timers", "expiry", "batch", "drift", "neighbours", "slow", "crowd",
    "pauses", "stop requests", "breakers",
]  # fmt: skip
RunKind: TypeAlias = Literal[
    "ok", "fail", "retry", "postpone", "reject", "hang", "stubborn", "cancels_itself", "block",
    "session", "session_fails", "session_left_open", "rearm", "rearm_fails", "kill", "pause",
]  # fmt: skip
TroubleKind: TypeAlias = Literal["kill", "freeze", "stop", "hurry", "outage"]

TROUBLES: Final[tuple[TroubleKind, ...]] = get_args(TroubleKind)
SHARE: Final = 0.4
"""How many of the features a history has."""


@dataclass(frozen=True, slots=True)
class Run:
    """How a handler behaves in one run."""

    kind: RunKind = "ok"
    seconds: float = 0.01
    after: float = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Publish:
    """A message to be published."""

    at: float
    tag: str
    queue: str
    due: float | None = None
    absolute: bool = False
    timer: str | None = None
    on_conflict: OnConflict = "skip"
    dedup: float | None = None
    expires: float | None = None
    key: str | None = None
    priority: int = 0
    runs: tuple[Run, ...] = ()
    poison: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A timer to be cancelled, or moved by so many seconds."""

    at: float
    queue: str
    timer: str
    move_by: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Steer:
    """What an operator does: pause or resume a queue or a key in it, or stop a message."""

    at: float
    kind: Literal["pause", "resume", "stop"]
    queue: str = ""
    key: str | None = None
    seconds: float | None = None
    """How long a pause is; `None`: until it is resumed."""
    tag: str = ""
    """Of the message to stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerPlan:
    """A breaker of a worker's."""

    failures: int
    pause: float
    maximum: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPlan:
    """A worker and its settings."""

    name: str
    queues: tuple[str, ...]
    max_workers: int
    lease: float
    grace: float
    timeout: float
    delay: float
    max_attempts: int
    max_deliveries: int
    batch: int | None = None
    breaker: BreakerPlan | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessPlan:
    """A process, its workers and its clock."""

    name: str
    workers: tuple[WorkerPlan, ...]
    offset: float
    rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """Something that happens to a process."""

    at: float
    kind: TroubleKind
    process: str
    seconds: float
    """How long it is frozen or cut off, or when it comes back."""
    steps: int = 1
    """After how many more steps of its event loop a kill strikes: between any two of them, that is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A whole history, but for what chance decides on the way."""

    features: frozenset[Feature]
    publishes: tuple[Publish, ...]
    changes: tuple[Change, ...]
    processes: tuple[ProcessPlan, ...]
    troubles: tuple[Trouble, ...]
    steers: tuple[Steer, ...] = ()
    upset: float = 0.0
    """How likely it is that a call to the store is upset."""
    deaf: float = 0.0
    """How likely it is that a wake-up gets lost; half as likely, it comes twice."""
    latency: float = 0.002
    calm_at: float = 10.0

    def lines(self) -> Iterator[str]:
        """The plan, to read."""
        yield f"features: {', '.join(sorted(self.features)) or 'none'}"
        yield f"calls upset: {self.upset:g}, wake-ups lost: {self.deaf:g}, latency: {self.latency:g} s"
        yield f"calm from second {self.calm_at:g} on"
        yield from map(str, (*self.processes, *self.publishes, *self.changes, *self.steers, *self.troubles))


@dataclass(slots=True)
class Planner:
    """Draws a plan."""

    chance: Random
    features: frozenset[Feature] = field(default_factory=frozenset)
    # The same for all workers: a message may come to any of them.
    max_attempts: int = 1
    max_deliveries: int = 3

    def plan(self) -> Plan:
        """A history to be."""
        chance = self.chance
        self.features = frozenset(each for each in get_args(Feature) if chance.random() < SHARE)
        queues = ("a", "b")[: chance.randint(1, 2)]
        lease = chance.choice((1.0, 2.0, 6.0))
        self.max_attempts = chance.choice((1, 2, 4))
        self.max_deliveries = chance.choice((3, 4, 5))
        calm_at = chance.uniform(4.0, 9.0)
        processes = tuple(
            self._process(number, queues, lease) for number in range(1, chance.randint(1, 3) + 1)
        )
        count = chance.randint(10, 30) if "crowd" in self.features else chance.randint(2, 10)
        publishes = [self._publish(number, queues, calm_at) for number in range(count)]
        timers = sorted({(each.queue, each.timer) for each in publishes if each.timer is not None})
        changes = [
            Change(
                at=round(chance.uniform(0.0, calm_at), 4),
                queue=queue,
                timer=timer,
                move_by=chance.choice((None, 0.0, 0.5, 3.0)),
            )
            for queue, timer in timers
            for _ in range(chance.choice((0, 1, 2)))
        ]
        return Plan(
            features=self.features,
            publishes=tuple(sorted(publishes, key=lambda each: each.at)),
            changes=tuple(sorted(changes, key=lambda each: each.at)),
            processes=processes,
            troubles=tuple(self._troubles(processes, calm_at, lease)),
            steers=tuple(sorted(self._steers(publishes, queues, calm_at), key=lambda each: each.at)),
            upset=chance.choice((0.02, 0.1, 0.4)) if "calls" in self.features else 0.0,
            deaf=chance.choice((0.3, 1.0)) if "deaf" in self.features else 0.0,
            latency=0.03 if "slow" in self.features else 0.002,
            calm_at=calm_at,
        )

    def _process(self, number: int, queues: tuple[str, ...], lease: float) -> ProcessPlan:
        chance = self.chance
        drift = chance.uniform(-0.005, 0.005) if "drift" in self.features else 0.0
        workers = 2 if "neighbours" in self.features else 1
        shared = chance.random() < 0.5
        return ProcessPlan(
            name=f"p{number}",
            workers=tuple(
                # Every queue has a worker in each process: one that no worker serves would wait forever.
                self._worker(
                    name, queues[place::2] if workers == len(queues) == 2 and not shared else queues, lease
                )
                for place, name in enumerate("xy"[:workers])
            ),
            offset=round(chance.uniform(0.0, 1e6), 3),
            rate=1.0 + drift,
        )

    def _worker(self, name: str, queues: tuple[str, ...], lease: float) -> WorkerPlan:
        chance = self.chance
        return WorkerPlan(
            name=name,
            queues=queues,
            max_workers=chance.choice((1, 1, 2, 4)),
            lease=lease,
            grace=chance.choice((0.0, 0.5, 2.0)),
            timeout=chance.choice((0.5, 1.5, 3.0)),
            delay=chance.choice((0.0, 0.2, 1.0)),
            max_attempts=self.max_attempts,
            max_deliveries=self.max_deliveries,
            batch=chance.choice((2, 5)) if "batch" in self.features and chance.random() < 0.5 else None,
            breaker=self._breaker() if "breakers" in self.features else None,
        )

    def _publish(self, number: int, queues: tuple[str, ...], calm_at: float) -> Publish:
        chance, features = self.chance, self.features
        timer = f"t{chance.randint(1, 3)}" if "timers" in features and chance.random() < 0.6 else None
        on_conflict: OnConflict = "skip" if timer is None else chance.choice(get_args(OnConflict))
        dedups = timer is not None and on_conflict in ("skip", "raise") and chance.random() < 0.4
        due = chance.choice((None, None, None, 0.0, 0.3, 1.0, 5.0))
        expires = "expiry" in features and chance.random() < 0.3
        poison = "poison" in features and number == 1
        return Publish(
            at=round(chance.uniform(0.0, calm_at * 0.8) if chance.random() < 0.6 else 0.0, 4),
            tag=f"m{number}",
            queue=chance.choice(queues),
            due=due,
            absolute=due is not None and chance.random() < 0.3,
            timer=None if poison else timer,
            on_conflict="skip" if poison else on_conflict,
            dedup=chance.choice((0.5, 4.0)) if dedups and not poison else None,
            expires=(due or 0.0) + chance.choice((0.5, 3.0)) if expires else None,
            key=f"k{chance.randint(1, 2)}" if "keys" in features and chance.random() < 0.7 else None,
            priority=chance.randint(0, 9) if "priorities" in features else 0,
            runs=tuple(self._run(timer) for _ in range(chance.randint(0, 4))) if not poison else (),
            poison=poison,
        )  # fmt: skip

    def _run(self, timer: str | None) -> Run:
        chance, features = self.chance, self.features
        kinds: list[RunKind] = ["ok", "ok"]
        if "failing" in features:
            kinds += ["fail", "retry", "postpone", "reject", "cancels_itself"]
        if "hang" in features:
            kinds += ["hang", "stubborn"]
        if "block" in features:
            kinds += ["block"]
        if "session" in features:
            kinds += ["session", "session_fails", "session_left_open"]
        if "breakers" in features:
            kinds += ["fail", "pause"]
        if timer is not None:
            kinds += ["rearm", "rearm_fails"]
        return Run(
            chance.choice(kinds), chance.choice((0.0, 0.01, 0.3, 2.0, 6.0)), chance.choice((0.0, 0.3, 2.0))
        )

    def _breaker(self) -> BreakerPlan:
        chance = self.chance
        return BreakerPlan(
            failures=chance.choice((1, 2, 3)),
            pause=chance.choice((0.3, 1.0)),
            maximum=chance.choice((1.0, 4.0)),
        )

    def _steers(
        self, publishes: Sequence[Publish], queues: tuple[str, ...], calm_at: float
    ) -> Iterator[Steer]:
        chance = self.chance
        if "pauses" in self.features:
            for _ in range(chance.randint(1, 4)):
                at, queue = round(chance.uniform(0.0, calm_at * 0.8), 4), chance.choice(queues)
                key = (
                    f"k{chance.randint(1, 2)}" if "keys" in self.features and chance.random() < 0.5 else None
                )
                seconds = chance.choice((None, 0.5, 2.0, 5.0))
                yield Steer(at=at, kind="pause", queue=queue, key=key, seconds=seconds)
                if chance.random() < 0.5:
                    again = round(min(at + chance.uniform(0.1, 3.0), calm_at), 4)
                    yield Steer(at=again, kind="resume", queue=queue, key=key)
        if "stop requests" in self.features:
            for publish in publishes:
                for _ in range(chance.choice((0, 1, 2))):
                    at = min(publish.at + (publish.due or 0.0) + chance.uniform(0.0, 3.0), calm_at)
                    yield Steer(at=round(at, 4), kind="stop", tag=publish.tag)

    def _troubles(
        self, processes: tuple[ProcessPlan, ...], calm_at: float, lease: float
    ) -> Iterator[Trouble]:
        chance = self.chance
        for kind in TROUBLES:
            for _ in range(chance.randint(1, 3) if kind in self.features else 0):
                yield Trouble(
                    at=round(chance.uniform(0.0, calm_at), 4),
                    kind=kind,
                    process=chance.choice(processes).name,
                    seconds=round(chance.choice((0.3, 1.0, 1.5)) * lease, 3),
                    steps=chance.randint(1, 40),
                )
