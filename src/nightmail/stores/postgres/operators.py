"""Queries and actions for operators: the verbs of `Inspection`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from uuid import UUID

from nightmail.clock import Clock
from nightmail.limits import CLAIM_BYTES
from nightmail.message import check_queue
from nightmail.records import DeadFilter, DeadLetter, PendingMessage, QueueStats, Swept
from nightmail.stores.postgres.inspecting import CustomPlanSession, Inspecting
from nightmail.stores.postgres.redriving import Redriving
from nightmail.stores.postgres.runtime import Runtime
from nightmail.stores.postgres.sweeping import Sweeping
from nightmail.stores.postgres.transaction import Direct, Session
from nightmail.stores.sql.statements import Statement


class ForOperators(ABC):
    """The operators' part of the store. Everything here uses the publish connection."""

    def __init__(self, statements: Mapping[str, Statement], clock: Clock) -> None:
        self._inspecting = Inspecting(statements, clock)
        self._redriving = Redriving(statements, clock)
        self._sweeping = Sweeping(statements, clock)

    @property
    @abstractmethod
    def _runtime(self) -> Runtime:
        """What exists while the store is open."""

    async def peek(
        self,
        queue: str | None = None,
        *,
        timer_id: str | None = None,
        due_before: datetime | None = None,
        limit: int = 100,
        transaction: object | None = None,
    ) -> list[PendingMessage]:
        """See `Inspection.peek`."""

        async def ask(session: Session) -> list[PendingMessage]:
            return await self._inspecting.peek(
                session, queue=queue, timer_id=timer_id, due_before=due_before, limit=limit
            )

        async def ask_if_ours(session: Session, identity: UUID) -> list[PendingMessage]:
            await self._runtime.callers.is_ours(session, identity)
            return await ask(session)

        if transaction is not None:
            return await self._runtime.callers.join(transaction, ask_if_ours)
        return await self._runtime.publish.run(lambda connection: ask(CustomPlanSession(connection)))

    async def dead(
        self,
        which: DeadFilter,
        *,
        limit: int = 100,
        cursor: int | None = None,
        max_bytes: int = CLAIM_BYTES,
    ) -> list[DeadLetter]:
        """See `Inspection.dead`."""
        return await self._runtime.publish.run(
            lambda connection: self._inspecting.dead(
                CustomPlanSession(connection), which, limit=limit, cursor=cursor, max_bytes=max_bytes
            )
        )

    async def redrive(
        self, letters: Sequence[DeadLetter], *, to: str | None = None, keep_timer_ids: bool = True
    ) -> list[int]:
        """See `Inspection.redrive`."""
        if to is not None:
            check_queue(to)
        if not letters:
            return []
        return await self._runtime.publish.run_patiently(
            lambda connection: self._redriving.redrive(
                Direct(connection), letters, to=to, keep_timer_ids=keep_timer_ids
            )
        )

    async def purge(self, which: DeadFilter, *, limit: int) -> int:
        """See `Inspection.purge`."""
        return await self._sweeping.purge(self._runtime.publish, which, limit)

    async def sweep(self, *, older_than: timedelta, limit: int) -> Swept:
        """See `Inspection.sweep`."""
        return await self._sweeping.sweep(self._runtime.publish, older_than, limit)

    async def stats(self) -> dict[str, QueueStats]:
        """See `Inspection.stats`."""
        return await self._runtime.publish.run(
            lambda connection: self._inspecting.stats(CustomPlanSession(connection))
        )
