"""One history: a plan drawn from a seed, carried out on virtual time, and checked as it goes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Final

from tests.simulation.checker import Checker, Violation
from tests.simulation.events import Calm, Event, Over
from tests.simulation.handling import Script
from tests.simulation.journal import Journal
from tests.simulation.loop import Spinning, World
from tests.simulation.nature import simulated
from tests.simulation.operating import Operators
from tests.simulation.plan import Plan, Planner, ProcessPlan, Trouble
from tests.simulation.process import Process
from tests.simulation.publishing import Publishers
from tests.simulation.server import Server

LONGEST: Final = 600.0
"""How long a history may last, in virtual seconds."""
RESTART_SECONDS: Final = (0.05, 1.0)


@dataclass(frozen=True, slots=True)
class History:
    """What happened."""

    seed: int
    plan: Plan
    events: list[Event]
    faults: Counter[str]
    steps: int
    seconds: float
    violation: Violation | None

    def text(self) -> str:
        """All of it, to read."""
        verdict = "kept every promise" if self.violation is None else f"VIOLATION: {self.violation}"
        return "\n".join((f"seed {self.seed}", *self.plan.lines(), "", *map(str, self.events), "", verdict))


def run(seed: int) -> History:
    """The history of this seed: the same each time, byte for byte."""
    chance = Random(seed)
    plan = Planner(chance).plan()
    return Stage(plan, chance).run(seed)


class Stage:
    """Where a plan is carried out."""

    def __init__(self, plan: Plan, chance: Random) -> None:
        self._plan = plan
        self._chance = chance
        self._world = World(chance)
        self._checker = Checker()
        self._journal = Journal(self._world, self._checker.hear)
        self._processes: dict[str, Process] = {}
        self._lives: Counter[str] = Counter()
        self._ending = False

    def run(self, seed: int) -> History:
        """Carry it out."""
        world, journal, checker = self._world, self._journal, self._checker
        with simulated(world, self._chance):
            try:
                self._set_up()
                world.run(self._plan.calm_at, lambda: checker.violation is not None)
                self._calm_down()
                world.run(LONGEST, self._is_delivered_or_late)
                self._stop_all()
                world.run(LONGEST, lambda: checker.violation is not None or self._all_stopped())
            except Spinning as spinning:
                world.complaints.append(str(spinning))
            server = self._server
            complaints = tuple(world.complaints)
            journal.note(
                Over(at=world.micros, waiting=server.waiting, letters=server.letters, complaints=complaints)
            )
            seconds = world.now
            world.end()
        return History(
            seed, self._plan, journal.events, journal.faults, world.steps, seconds, checker.violation
        )

    def _set_up(self) -> None:
        plan, world, journal, chance = self._plan, self._world, self._journal, self._chance
        self._server = Server(world, journal, chance)
        self._server.wakeups.lost = plan.deaf
        self._server.poison.update(each.tag for each in plan.publishes if each.poison)
        self._script = Script(plan.publishes)
        self._publishers = Publishers(plan, world, self._server, journal, chance)
        Operators(plan, world, self._server, journal)
        # Director of troubles and restarts: a process cannot start itself.
        self._director = world.loop("director")
        for process in plan.processes:
            self._director.call_later(chance.uniform(0.0, 0.5), self._boot, process)
        for trouble in plan.troubles:
            self._director.call_later(trouble.at, self._strike, trouble)

    def _boot(self, plan: ProcessPlan) -> None:
        if self._ending:
            return
        self._lives[plan.name] += 1
        ended: Callable[[], object] = partial(self._boot_later, plan)
        self._processes[plan.name] = Process(
            plan,
            self._lives[plan.name],
            history=self._plan,
            world=self._world,
            server=self._server,
            journal=self._journal,
            script=self._script,
            chance=self._chance,
            ended=ended,
        )

    def _boot_later(self, plan: ProcessPlan) -> None:
        self._director.call_later(self._chance.uniform(*RESTART_SECONDS), self._boot, plan)

    def _strike(self, trouble: Trouble) -> None:
        process = self._processes.get(trouble.process)
        if process is None or process.is_dead:
            return
        self._journal.faults[trouble.kind] += 1
        match trouble.kind:
            case "kill":
                process.kill_in(trouble.steps)
            case "freeze":
                process.freeze(trouble.seconds)
            case "stop" | "hurry":
                process.stop(hurry=trouble.kind == "hurry")
            case "outage":
                process.cut_off(trouble.seconds)

    def _calm_down(self) -> None:
        self._journal.is_calm = True
        self._script.is_calm = True
        for process in self._processes.values():
            process.kill_in(None)
        self._server.loop.start(self._server.resume_all())
        self._journal.note(Calm(at=self._world.micros))

    def _is_delivered_or_late(self) -> bool:
        checker = self._checker
        return checker.violation is not None or self._is_delivered() or checker.is_late(self._world.micros)

    def _is_delivered(self) -> bool:
        # What an open transaction has acked is not to be seen; its process may be dead, and then it comes back.
        if self._publishers.pending or self._server.transactions:
            return False
        return not any(queue.rows for queue in self._server.data.tables.queues.values())

    def _stop_all(self) -> None:
        self._ending = True
        for process in self._processes.values():
            process.stop()

    def _all_stopped(self) -> bool:
        return all(process.is_dead for process in self._processes.values())
