"""A store whose verbs are written to the journal: before they are sent, and when they are answered."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from typing import Any, Final, Protocol
from uuid import UUID

from sqlalchemy import event

from faults.journal import Journal
from nightmail.errors import LeaseLost
from nightmail.message import Delivery
from nightmail.outcome import Dead, Release, WriteResult
from nightmail.store import Claimed, Extend, FullStore, LooksAhead, Settlement

SLOW_SECONDS: Final = 0.5
"""A renewal that takes longer is a fault of the machine's, or of the server's: leases may end because of it."""
SLOW: Final = "slow renewal"


class Stored(Protocol):
    """Whatever has a message's body."""

    @property
    def body(self) -> bytes: ...


def key_of(message: Stored) -> str:
    """What its publisher calls this message."""
    return str(json.loads(message.body)["key"])


def lease_of(delivery: Delivery) -> dict[str, Any]:
    """The fields of a line about this delivery."""
    return {"key": key_of(delivery), "id": delivery.id, "token": delivery.token.hex}


def record(store: FullStore, journal: Journal, *, lease: float) -> None:
    """Let this store write its calls to the journal."""
    recorder = _Recorder(store, journal, lease)
    # On the object, and not in a class around it: the store is used as the product uses it.
    for verb in ("claim", "recall", "settle", "ack", "run_on_keeper_thread"):
        setattr(store, verb, getattr(recorder, verb))
    if isinstance(store, LooksAhead):
        setattr(store, "look_ahead", recorder.look_ahead)  # noqa: B010 - mypy refuses the assignment
    if hasattr(store, "transaction"):
        store.transaction = recorder.transaction


class _Recorder:
    """The verbs."""

    def __init__(self, store: Any, journal: Journal, lease: float) -> None:
        self._write = journal.write
        self._write_all = journal.write_all
        self._process = journal.process
        self._lease = lease
        self._claim = store.claim
        self._look_ahead = getattr(store, "look_ahead", None)
        self._recall = store.recall
        self._settle = store.settle
        self._ack = store.ack
        self._run_on_keeper_thread = store.run_on_keeper_thread
        self._transaction = getattr(store, "transaction", None)

    async def claim(self, queues: Sequence[str], *, token: UUID, **options: Any) -> Claimed:
        sent = time.monotonic()
        self._write("claiming", token=token.hex, queue=",".join(queues))
        claimed: Claimed = await self._claim(queues, token=token, **options)
        self._write_all(
            "claimed",
            (
                {
                    **lease_of(delivery),
                    "queue": delivery.queue,
                    "sent": sent,
                    "store_at": delivery.claimed_at.timestamp(),
                    "due_at": delivery.due_at.timestamp(),
                    "attempts": delivery.attempts,
                    "deliveries": delivery.deliveries,
                    "lease": self._lease,
                }
                for delivery in claimed.deliveries
            ),
        )
        self._write("claim_ended", token=token.hex)
        return claimed

    async def look_ahead(self, queues: Sequence[str]) -> dict[str, timedelta]:
        """Written only when it is answered: an idle process claims nothing, and uses the store nevertheless."""
        assert self._look_ahead is not None
        expected: dict[str, timedelta] = await self._look_ahead(queues)
        self._write("looked", queue=",".join(queues))
        return expected

    async def recall(self, queues: Sequence[str], token: UUID) -> int:
        count: int = await self._recall(queues, token)
        self._write("recalled", token=token.hex, result=str(count))
        return count

    async def settle(self, batch: Sequence[Settlement]) -> list[WriteResult]:
        lines = [lease_of(each.delivery) | _outcome(each) for each in batch]
        self._write_all("settling", lines)
        sent = time.monotonic()
        results: list[WriteResult] = await self._settle(batch)
        self._write_all(
            "settled",
            (
                line | {"sent": sent, "result": result.value}
                for line, result in zip(lines, results, strict=True)
            ),
        )
        return results

    async def ack(self, deliveries: Sequence[Delivery], *, transaction: object) -> None:
        for delivery in deliveries:
            self._write("acking", **lease_of(delivery))
        try:
            await self._ack(deliveries, transaction=transaction)
        except LeaseLost:
            self._acked(deliveries, "lost")
            raise
        session = getattr(transaction, "sync_session", None)
        if session is not None:
            event.listen(session, "after_commit", lambda _: self._acked(deliveries, "written"), once=True)

    def _acked(self, deliveries: Sequence[Delivery], result: str) -> None:
        self._write_all("acked", (lease_of(delivery) | {"result": result} for delivery in deliveries))

    @asynccontextmanager
    async def transaction(self, deliveries: Sequence[Delivery], client: object) -> Any:
        """On Redis an ack is the end of this block."""
        assert self._transaction is not None
        begun = False
        try:
            async with self._transaction(deliveries, client) as pipeline:
                yield pipeline
                begun = True
                for delivery in deliveries:
                    self._write("acking", **lease_of(delivery))
        except LeaseLost:
            if begun:
                self._acked(deliveries, "lost")
            raise
        self._acked(deliveries, "written")

    def run_on_keeper_thread(
        self, work: Callable[[Extend], Awaitable[None]], **options: Any
    ) -> AbstractAsyncContextManager[None]:
        return self._run_on_keeper_thread(  # type: ignore[no-any-return]  # It is a store's.
            lambda extend: work(self._recorded(extend)), **options
        )

    def _recorded(self, extend: Extend) -> Extend:
        async def recorded(deliveries: Sequence[Delivery], lease: timedelta) -> Sequence[WriteResult]:
            sent = time.monotonic()
            try:
                results = await extend(deliveries, lease)
            finally:
                now = time.monotonic()
                if now - sent > SLOW_SECONDS:
                    self._write("fault", kind=SLOW, target=self._process, sent=sent, until=now)
            self._write_all(
                "extended",
                (
                    lease_of(delivery) | {"sent": sent, "result": result.value}
                    for delivery, result in zip(deliveries, results, strict=True)
                ),
            )
            return results

        return recorded


def _outcome(settlement: Settlement) -> dict[str, Any]:
    outcome = settlement.outcome
    name = "release" if isinstance(outcome, Release) else type(outcome).__name__.lower()
    return {"outcome": name, "reason": outcome.reason if isinstance(outcome, Dead) else None}
