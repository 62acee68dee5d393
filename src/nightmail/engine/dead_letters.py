"""Dead letters as a source of deliveries: a worker takes them like messages of the queues in which they died."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from uuid import UUID

from nightmail.bell import Bell
from nightmail.limits import CLAIM_BYTES
from nightmail.outcome import WriteResult
from nightmail.store import Capabilities, Claimed, Extend, Lingers, Settlement, Store


class DeadLetters:
    """The dead letters of some queues. A handled one is deleted; one that is given up stays, never claimed again."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def store(self) -> Store:
        """The store that has them."""
        return self._store

    @property
    def capabilities(self) -> Capabilities:
        """See `Source.capabilities`."""
        return self._store.capabilities

    @property
    def look_interval(self) -> timedelta:
        """See `Source.look_interval`."""
        return self._store.look_interval

    async def claim(
        self,
        queues: Sequence[str],
        *,
        limit: int,
        lease: timedelta,
        token: UUID,
        max_bytes: int = CLAIM_BYTES,
    ) -> Claimed:
        """See `Source.claim`."""
        return await self._store.claim_dead(
            queues, limit=limit, lease=lease, token=token, max_bytes=max_bytes
        )

    async def recall(self, queues: Sequence[str], token: UUID) -> int:
        """See `Source.recall`."""
        return await self._store.recall_dead(queues, token)

    async def settle(self, batch: Sequence[Settlement]) -> list[WriteResult]:
        """See `Source.settle`."""
        return await self._store.settle(batch)

    def run_on_keeper_thread(
        self, work: Callable[[Extend], Awaitable[None]], *, lingers: Lingers | None = None
    ) -> AbstractAsyncContextManager[None]:
        """See `Source.run_on_keeper_thread`."""
        return self._store.run_on_keeper_thread(work, lingers=lingers)

    def listen(self, queues: Sequence[str]) -> Bell:
        """See `Source.listen`. A death rings for the queue it happened in."""
        return self._store.listen(queues)
