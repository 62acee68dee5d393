"""Two builds on this machine: one that succeeds, and one that is no longer wanted. The file is SQLite's."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from datetime import timedelta
from pathlib import Path

from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

from examples.build_signals.local import LocalRunner
from examples.build_signals.runner import BuildStatus
from examples.build_signals.stages import Builds, Patience
from examples.build_signals.tables import Base, Batch, Build
from nightmail import OutboxBroker
from nightmail.stores.sqlite import begin_immediate

# The builds below take a second; in production the defaults would do.
QUICK = Patience(
    between={
        BuildStatus.ACCEPTED: timedelta(seconds=0.5),
        BuildStatus.RUNNING: timedelta(seconds=0.2),
    }
)
PATIENCE_SECONDS = 30.0
SLEEPS = "import sys, time; time.sleep(float(sys.argv[1]))"


async def main(file: Path) -> None:
    """Request both builds, drop one, and wait until both have ended."""
    engine = create_async_engine(f"sqlite+aiosqlite:///{file}")
    begin_immediate(engine)
    sessions = async_sessionmaker(engine, expire_on_commit=False)
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    runner = LocalRunner(sys.executable, "-c", SLEEPS)
    broker = OutboxBroker(f"sqlite:///{file}", session_factory=sessions, logger=None)
    builds = Builds(broker, sessions, runner, QUICK)
    await broker.start()
    async with sessions() as session, session.begin():
        await builds.request(session, Batch(base=[], head=["1"]))
        await builds.request(session, Batch(base=[], head=["60"]))
    print("two builds are requested: one of a second, one of a minute", flush=True)
    async with sessions() as session, session.begin():
        await session.execute(update(Batch).where(Batch.id == 2).values(wanted=False))
    print("the second is no longer wanted", flush=True)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await broker.stats():  # noqa: ASYNC110 - a look from outside, as an operator would
            await asyncio.sleep(0.1)
    async with sessions() as session:
        for build in await session.scalars(select(Build).order_by(Build.batch_id)):
            print(f"the build of batch {build.batch_id} {build.status}", flush=True)
    await broker.stop()
    await runner.close()
    await engine.dispose()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(main(Path(directory) / "builds.db"))
