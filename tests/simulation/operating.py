"""Operators: they pause, resume and stop as the plan says. What they ask for arrives: they would ask until it did."""

from __future__ import annotations

from datetime import timedelta

from tests.simulation.journal import Journal
from tests.simulation.loop import World
from tests.simulation.plan import Plan, Steer
from tests.simulation.server import Server

ME = "an operator"


class Operators:
    """Everyone who steers, in one process that is never killed."""

    def __init__(self, plan: Plan, world: World, server: Server, journal: Journal) -> None:
        self._server = server
        self._journal = journal
        loop = world.loop("operators")
        for steer in plan.steers:
            loop.call_later(steer.at, self._begin, steer)

    def _begin(self, steer: Steer) -> None:
        # On the server's loop: nothing of it gets lost on the way.
        if not self._journal.is_calm:
            self._server.loop.start(self._carry_out(steer))

    async def _carry_out(self, steer: Steer) -> None:
        server, faults = self._server, self._journal.faults
        match steer.kind:
            case "pause":
                until = None if steer.seconds is None else timedelta(seconds=steer.seconds)
                await server.pause(steer.queue, ordering_key=steer.key, until=until, by=ME)
                faults["pause"] += 1
            case "resume":
                await server.resume(steer.queue, key=steer.key)
            case "stop":
                for id_ in server.ids_of(steer.tag):
                    faults["stop request"] += await server.request_stop(id_, ME)
