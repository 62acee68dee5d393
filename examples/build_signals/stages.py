"""Three stages and what lies between them.

    build-requests ──trigger──▶ build-signals ──poll──╮──▶ build-changes ──▶ the stage that waits for the build
                                     ▲     ╰─ postpone ╯
                                     ╰── dead letters: the build counts as failed

One message follows each build. It asks the runner for the build's status, and postpones itself until the build has
ended: waiting is not a failure, so it costs no attempts, however long it takes. An unreachable runner is a failure.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

from examples.build_signals.runner import KEY, BuildId, BuildRunner, BuildStatus
from examples.build_signals.tables import Batch, Build, Wake
from nightmail import ExponentialRetry, OutboxBroker
from nightmail.annotations import OutboxMessage, OutboxSession
from nightmail.retry import RetryPolicy

REQUESTS: Final = "build-requests"
SIGNALS: Final = "build-signals"
CHANGES: Final = "build-changes"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Patience:
    """How often to ask, and for how long."""

    between: Mapping[BuildStatus, timedelta] = field(
        default_factory=lambda: {
            BuildStatus.ACCEPTED: timedelta(seconds=5),
            BuildStatus.RUNNING: timedelta(seconds=2),
        }
    )
    at_all: timedelta = timedelta(hours=2)
    """After this long the signal dies, and its build counts as failed."""
    failures: RetryPolicy = field(default_factory=lambda: ExponentialRetry(max_attempts=5))
    """How an unreachable runner is retried."""


class Builds:
    """The stages, on a broker whose sessions are those of the application's database."""

    def __init__(
        self,
        broker: OutboxBroker,
        sessions: async_sessionmaker[AsyncSession],
        runner: BuildRunner,
        patience: Patience | None = None,
    ) -> None:
        self.broker = broker
        self._sessions = sessions
        self._runner = runner
        self._patience = patience or Patience()
        broker.subscriber(REQUESTS)(self.build)
        broker.subscriber(SIGNALS, retry=self._patience.failures, give_up_after=self._patience.at_all)(
            self.poll
        )
        broker.subscriber(SIGNALS, dead_letters=True)(self.give_up)
        broker.subscriber(CHANGES)(self.wake)

    async def request(self, session: AsyncSession, batch: Batch) -> None:
        """Have this batch built, if the caller's transaction commits."""
        session.add(batch)
        await session.flush()  # The database gives the batch its id.
        await self.broker.publish(batch.id, REQUESTS, session=session)

    async def build(self, batch_id: int, session: OutboxSession, msg: OutboxMessage) -> None:
        """Trigger the build; persist it and publish its signal in one transaction."""
        batch = await session.get(Batch, batch_id)
        if batch is None:
            await msg.reject("no such batch")
            return
        if await session.scalar(select(Build.id).where(Build.batch_id == batch_id)) is not None:
            return  # Delivered before, and committed: the build has its signal.
        # A process that dies after this line triggers again: the key makes that the same build.
        build_id = await self._runner.trigger(batch.base, batch.head, {KEY: f"batch-{batch_id}"})
        session.add(Build(id=build_id, batch_id=batch_id, status=BuildStatus.ACCEPTED))
        await session.flush()
        await self.broker.publish(build_id, SIGNALS, timer_id=build_id, session=session)

    async def poll(self, build_id: BuildId, session: OutboxSession, msg: OutboxMessage) -> None:
        """Ask for the status: wake the next stage if it has changed, poll again later if the build has not ended."""
        async with self._sessions() as looking:
            build = await looking.get(Build, build_id)
            batch = None if build is None else await looking.get(Batch, build.batch_id)
        if build is None or batch is None:
            await msg.reject("no such build")
            return
        if build.state.is_terminal:
            return
        if not batch.wanted:
            await self._ask_to_stop(build_id)
        # The runner may be slow: meanwhile nothing is locked but this message.
        status, _ = await self._runner.status(build_id)
        if status is not build.state:
            await self._change(session, build_id, status)
        if not status.is_terminal:
            await msg.postpone(self._patience.between[status])

    async def give_up(self, build_id: BuildId, session: OutboxSession, msg: OutboxMessage) -> None:
        """The signal died: how the build ended will never be known, so it counts as failed."""
        reason = "given up" if msg.dead is None else msg.dead.reason
        await self._change(session, build_id, BuildStatus.FAILED, note=f"its signal died: {reason}")

    async def wake(self, change: dict[str, str], session: OutboxSession) -> None:
        """Where the next stage would continue: merge what was built, or try something else."""
        session.add(Wake(build_id=change["build"], status=BuildStatus(change["status"])))

    async def _change(
        self, session: AsyncSession, build_id: BuildId, status: BuildStatus, note: str | None = None
    ) -> None:
        """Write the new status, and wake the next stage for it: both, or neither."""
        build = await session.get(Build, build_id)
        if build is None or build.state.is_terminal:
            return
        build.status, build.note = status, note
        await session.flush()
        # The timer id names the change: each status change of each build wakes once, and one after the other.
        await self.broker.publish(
            {"build": build_id, "status": status},
            CHANGES,
            timer_id=f"{build_id}/{status}",
            ordering_key=build_id,
            session=session,
        )

    async def _ask_to_stop(self, build_id: BuildId) -> None:
        """Best effort: repeated with every poll, so a failure here must not fail the poll."""
        try:
            await self._runner.cancel(build_id)
        except Exception:
            log.warning("build %s could not be asked to stop", build_id, exc_info=True)
