"""What a broker lets its users do with timers and waiting messages."""

from __future__ import annotations

from abc import abstractmethod
from datetime import datetime

from nightmail.broker.commands import due_from
from nightmail.broker.counted import must_be_awaited
from nightmail.broker.joining import check_session
from nightmail.durations import Duration
from nightmail.message import check_name, check_queue
from nightmail.records import PendingMessage
from nightmail.store import FullStore


class Timers:
    """Cancelling, moving and listing what waits."""

    @property
    @abstractmethod
    def store(self) -> FullStore:
        """Where messages wait."""

    @must_be_awaited
    async def cancel_timer(self, queue: str, timer_id: str, *, session: object | None = None) -> bool:
        """Remove a waiting timer; `True` only if this call removed it. A running one is never clobbered."""
        _check_timer(queue, timer_id)
        check_session(session)
        return await self.store.cancel(queue, timer_id, transaction=session)

    @must_be_awaited
    async def reschedule_timer(
        self,
        queue: str,
        timer_id: str,
        *,
        activate_in: Duration | None = None,
        activate_at: datetime | None = None,
        session: object | None = None,
    ) -> bool:
        """Move a waiting timer to another time; `True` if one moved. From its own handler, use `postpone`."""
        _check_timer(queue, timer_id)
        due = due_from(activate_in, activate_at)
        if due is None:
            raise ValueError("say when: give activate_in or activate_at")
        check_session(session)
        return await self.store.reschedule(queue, timer_id, due, transaction=session)

    @must_be_awaited
    async def has_pending(self, queue: str, timer_id: str) -> bool:
        """Whether a message with this timer id waits."""
        _check_timer(queue, timer_id)
        return bool(await self.store.peek(queue, timer_id=timer_id, limit=1))

    @must_be_awaited
    async def pending(
        self,
        queue: str | None = None,
        *,
        due_before: datetime | None = None,
        limit: int = 100,
        cursor: tuple[datetime, int] | None = None,
        session: object | None = None,
    ) -> list[PendingMessage]:
        """Waiting messages by due time, without taking them; with `session`, what it has not committed too.

        `cursor` is the due time and the id of the last one seen: those after it.
        """
        if queue is not None:
            check_queue(queue)
        check_limit(limit)
        if due_before is not None:
            due_from(None, due_before)
        if cursor is not None:
            due_from(None, cursor[0])
        check_session(session)
        return await self.store.peek(
            queue, due_before=due_before, limit=limit, cursor=cursor, transaction=session
        )

    @must_be_awaited
    async def cancel_all(self, queue: str, *, session: object | None = None) -> int:
        """Remove every waiting message of a queue; how many. Running ones stay."""
        check_queue(queue)
        check_session(session)
        return await self.store.cancel_all(queue, transaction=session)


def check_limit(limit: int) -> None:
    """Refuse to list nothing."""
    if limit < 1:
        raise ValueError(f"limit must be at least 1, not {limit}")


def _check_timer(queue: str, timer_id: str) -> None:
    check_queue(queue)
    check_name("timer_id", timer_id)
