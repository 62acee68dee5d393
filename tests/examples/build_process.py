"""The build stages in a process that dies at a chosen step.

python -m tests.examples.build_process URL DIRECTORY MOMENT POLL
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from examples.build_signals.runner import BuildId, BuildStatus, Metadata
from examples.build_signals.scripted import Script, ScriptedRunner
from examples.build_signals.stages import Builds, Patience
from nightmail import ConstantRetry, OutboxBroker
from nightmail.message import Delivery
from nightmail.observe import Observer
from nightmail.stores.sqlite import begin_immediate
from tests.broker.callers import engine_url

MOMENTS = ("before the poll", "after the poll", "before the commit", "after the commit")
KILLED = 9
FATED_LEASE = 2.0
"""Of a process that is to be killed: as short as a busy machine can renew it."""
ACCEPTED, RUNNING = timedelta(seconds=0.15), timedelta(seconds=0.1)
QUICK = Patience(
    between={BuildStatus.ACCEPTED: ACCEPTED, BuildStatus.RUNNING: RUNNING},
    failures=ConstantRetry(delay=0, jitter=0, max_attempts=3),
)


class Fate:
    """Which step is the last of this process, if one is."""

    def __init__(self, moment: str | None = None, poll: int = 0) -> None:
        self._moment = moment
        self._poll = poll
        self._polls = 0

    def polls(self, number: int) -> None:
        """The poll of this number is under way."""
        self._polls = number

    def strikes_at(self, moment: str) -> None:
        """Die here if this is the step, as a process does that is killed."""
        if moment == self._moment and self._polls == self._poll:
            os._exit(KILLED)


class FatedRunner(ScriptedRunner):
    """Follows the script, and dies before or after a poll."""

    def __init__(self, directory: Path, script: Script, fate: Fate) -> None:
        super().__init__(directory, script)
        self._fate = fate
        self.triggered: list[tuple[Sequence[str], Sequence[str]]] = []

    async def trigger(self, base: Sequence[str], head: Sequence[str], metadata: Metadata) -> BuildId:
        self.triggered.append((base, head))
        return await super().trigger(base, head, metadata)

    async def status(self, build_id: BuildId) -> tuple[BuildStatus, Metadata]:
        self._fate.polls(self.polls(build_id) + 1)
        self._fate.strikes_at("before the poll")
        answer = await super().status(build_id)
        self._fate.strikes_at("after the poll")
        return answer


class Attempts(Observer):
    """Which attempt each handler run was."""

    def __init__(self) -> None:
        self.seen: set[int] = set()

    def started(self, delivery: Delivery) -> None:
        self.seen.add(delivery.attempt)


@asynccontextmanager
async def stages(
    url: str,
    runner: FatedRunner,
    fate: Fate | None = None,
    patience: Patience = QUICK,
    observer: Observer | None = None,
    lease: float = 60.0,
) -> AsyncIterator[Builds]:
    """The stages at work on this database."""
    engine = create_async_engine(engine_url(url))
    if url.startswith("sqlite"):
        begin_immediate(engine)

    class Fated(AsyncSession):
        async def commit(self) -> None:
            if fate is not None:
                fate.strikes_at("before the commit")
            await super().commit()
            if fate is not None:
                fate.strikes_at("after the commit")

    broker = OutboxBroker(
        url,
        create_tables=True,
        logger=None,
        lease_ttl_seconds=lease,
        observer=observer or Observer(),
        session_factory=async_sessionmaker(engine, class_=Fated, expire_on_commit=False),
    )
    builds = Builds(broker, async_sessionmaker(engine, expire_on_commit=False), runner, patience)
    await broker.start()
    try:
        yield builds
    finally:
        await broker.stop()
        await engine.dispose()


async def until_nothing_is_left(builds: Builds) -> None:
    """Until every message has ended, and no letter waits to be looked after."""
    empty = 0
    async with asyncio.timeout(30):
        # Twice: MySQL counts messages and dead letters one after the other, and in between a letter's handler may have
        # ended the letter and published a message.
        while empty < 2:
            empty = 0 if await builds.broker.stats() else empty + 1
            await asyncio.sleep(0.02)


async def main(url: str, directory: str, moment: str, poll: str) -> None:
    """Work until it is time to die."""
    fate = Fate(moment, int(poll))
    runner = FatedRunner(Path(directory), Script(), fate)
    async with stages(url, runner, fate, lease=FATED_LEASE) as builds:
        await until_nothing_is_left(builds)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
