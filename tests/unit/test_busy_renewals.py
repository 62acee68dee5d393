"""Renewals that are kept out, and acknowledgements that nothing but the lease protects."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from nightmail.engine import current
from nightmail.engine.leases import Keeper, Leases
from nightmail.engine.settings import WorkerSettings
from nightmail.engine.worker import Worker
from nightmail.message import Delivery
from nightmail.outcome import WriteResult
from nightmail.store import Capabilities
from nightmail.stores.memory import MemoryData, MemoryStore
from tests.unit.faulty import FaultyStore
from tests.unit.support import QUEUE, Seen, at_work, delivery, ids, publish, soon, take

LEASE = timedelta(seconds=60)
Answer = Callable[[Sequence[Delivery]], Sequence[WriteResult]]


class Enough(Exception):
    """Ends a keeper that would go on for ever."""


class Day:
    """A keeper of one-minute leases on a clock of its own: sleeping moves it, and nothing else does."""

    def __init__(self, answer: Answer, *, until: float) -> None:
        self.now = 0.0
        self.asked: list[tuple[float, list[int]]] = []
        self.failures: list[tuple[float, timedelta]] = []
        self.leases = Leases()
        self._answer = answer
        self._until = until
        self._keeper = Keeper(
            self.leases,
            LEASE,
            lost=lambda delivery: None,
            failed=lambda error, retry_in: self.failures.append((self.now, retry_in)),
            now=lambda: self.now,
            sleep=self._sleep,
        )

    async def pass_by(self) -> None:
        with pytest.raises(Enough):
            await self._keeper.keep(self._extend)

    async def _sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.now > self._until:
            raise Enough

    async def _extend(self, deliveries: Sequence[Delivery], lease: timedelta) -> Sequence[WriteResult]:
        self.asked.append((round(self.now, 3), ids(deliveries)))
        return self._answer(deliveries)


async def test_a_renewal_that_was_kept_out_is_tried_again_a_sixtieth_of_a_lease_later() -> None:
    day = Day(lambda deliveries: [WriteResult.BUSY] * len(deliveries), until=36.0)
    day.leases.add([delivery(id=1)], until=60.0)

    await day.pass_by()

    assert [at for at, _ in day.asked] == [30.0, 31.0, 32.0, 33.0, 34.0, 35.0, 36.0]


async def test_while_everything_is_kept_out_the_others_are_renewed_earlier() -> None:
    day = Day(lambda deliveries: [WriteResult.BUSY] * len(deliveries), until=31.0)
    day.leases.add([delivery(id=1)], until=60.0)
    day.leases.add([delivery(id=2)], until=75.0)

    await day.pass_by()

    # Two thirds of a lease from 31.0 is 71, five sixths is 81.
    assert day.asked == [(30.0, [1]), (31.0, [1, 2])]


async def test_for_a_lease_after_everything_was_kept_out_renewals_begin_earlier() -> None:
    answers = iter([WriteResult.BUSY])
    day = Day(lambda deliveries: [next(answers, WriteResult.WRITTEN)] * len(deliveries), until=142.0)
    day.leases.add([delivery(id=1)], until=60.0)

    await day.pass_by()

    # Every twenty seconds, when a sixth is gone, until 90: and then every thirty, as ever.
    assert [at for at, _ in day.asked] == [30.0, 31.0, 51.0, 71.0, 101.0, 131.0]


async def test_a_renewal_that_fails_is_tried_again_soon_and_told_of_once() -> None:
    def down(deliveries: Sequence[Delivery]) -> Sequence[WriteResult]:
        raise ConnectionError

    day = Day(down, until=33.0)
    day.leases.add([delivery(id=1)], until=60.0)

    await day.pass_by()

    assert [at for at, _ in day.asked] == [30.0, 31.0, 32.0, 33.0]
    assert day.failures == [(30.0, timedelta(seconds=1))]


class WithoutLocks(FaultyStore):
    """A store whose transactions keep nobody away from a message, as Redis's do."""

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, locks_rows=False)


async def test_what_was_acked_keeps_its_lease_where_no_lock_stands_in_for_it(
    data: MemoryData, seen: Seen
) -> None:
    store, other = WithoutLocks(MemoryStore(data)), MemoryStore(data)
    acked, go_on = asyncio.Event(), asyncio.Event()

    async def handle(delivery: Delivery) -> None:
        current.acked_in_transaction([delivery])
        acked.set()
        await go_on.wait()

    [published] = await publish(store)
    settings = WorkerSettings(lease=timedelta(milliseconds=450))
    worker = Worker(store, handle, queues=[QUEUE], settings=settings, observer=seen)
    async with at_work(worker):
        await soon(acked.wait())
        renewals = store.calls["extend"]
        await store.until_called("extend", renewals + 3)
        assert store.renewing[0].id == published
        assert await take(other) == []
        go_on.set()
        await seen.until(lambda: worker.is_at_rest)
