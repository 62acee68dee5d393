"""Publishers: they publish, cancel and reschedule as the plan says, over lines of their own that go wrong too."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from datetime import timedelta
from random import Random
from typing import Any

from nightmail.bell import Bells
from nightmail.errors import PublishUncertain, StoreUnavailable, TimerExists
from nightmail.message import Message
from tests.simulation.client import Client
from tests.simulation.events import Acknowledged, Intended
from tests.simulation.journal import Journal
from tests.simulation.line import Line
from tests.simulation.loop import World
from tests.simulation.plan import Change, Plan, Publish
from tests.simulation.server import Server


class Publishers:
    """Everything that writes messages, in one process that is never killed."""

    def __init__(self, plan: Plan, world: World, server: Server, journal: Journal, chance: Random) -> None:
        self.pending = len(plan.publishes) + len(plan.changes)
        """How many publishes, cancellations and moves are still to come or under way."""
        self._server = server
        loop = world.loop("publishers", offset=chance.uniform(0.0, 1e6))
        line = Line("publishers", chance, journal, upset=plan.upset, latency=plan.latency)
        self._client = Client(server, line, "publishers", loop, Bells())
        self._loop = loop
        for publish in plan.publishes:
            loop.call_later(publish.at, self._begin, self._publish(publish))
        for change in plan.changes:
            loop.call_later(change.at, self._begin, self._change(change))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        self._loop.start(self._counted(work))

    async def _counted(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        finally:
            self.pending -= 1

    async def _publish(self, plan: Publish) -> None:
        due = None if plan.due is None else timedelta(seconds=plan.due)
        message = Message(
            queue=plan.queue,
            body=plan.tag.encode(),
            due=self._server.now() + due if plan.absolute and due is not None else due,
            timer_id=plan.timer,
            on_conflict=plan.on_conflict,
            dedup_for=None if plan.dedup is None else timedelta(seconds=plan.dedup),
            expires_in=None if plan.expires is None else timedelta(seconds=plan.expires),
            ordering_key=plan.key,
            priority=plan.priority,
        )
        for _ in range(3):
            self._server.note(Intended, tag=plan.tag)
            try:
                id_ = await self._client.publish(message)
            except TimerExists:
                return
            except PublishUncertain:
                # With a timer id it is safe to publish again; without one it may be stored twice.
                if plan.timer is None:
                    return
            except StoreUnavailable:
                await asyncio.sleep(0.1)
            else:
                if id_ is not None:
                    self._server.note(Acknowledged, tag=plan.tag, id=id_)
                return

    async def _change(self, plan: Change) -> None:
        try:
            if plan.move_by is None:
                await self._client.cancel(plan.queue, plan.timer)
            else:
                await self._client.reschedule(plan.queue, plan.timer, timedelta(seconds=plan.move_by))
        except StoreUnavailable:
            pass
