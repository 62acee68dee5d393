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
    """A keeper of one-minute leases on a clock of its own: sleeping moves it, always a little too far."""

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
            failed=lambda error, retry_in: self.failures.append((round(self.now, 1), retry_in)),
            now=lambda: self.now,
            sleep=self._sleep,
        )

    async def pass_by(self) -> None:
        with pytest.raises(Enough):
            await self._keeper.keep(self._extend)

    async def _sleep(self, seconds: float) -> None:
        self.now += seconds + 0.001
        if self.now > self._until:
            raise Enough

    async def _extend(self, deliveries: Sequence[Delivery], lease: timedelta) -> Sequence[WriteResult]:
        self.asked.append((round(self.now, 1), ids(deliveries)))
        return self._answer(deliveries)


async def test_a_renewal_that_was_kept_out_is_tried_again_a_sixtieth_of_a_lease_later() -> None:
    day = Day(lambda deliveries: [WriteResult.BUSY] * len(deliveries), until=26.5)
    day.leases.add([delivery(id=1)], until=60.0)

    await day.pass_by()

    assert [at for at, _ in day.asked] == [20.0, 21.0, 22.0, 23.0, 24.0, 25.0, 26.0]


async def test_while_everything_is_kept_out_the_others_are_renewed_earlier() -> None:
    day = Day(lambda deliveries: [WriteResult.BUSY] * len(deliveries), until=21.5)
    day.leases.add([delivery(id=1)], until=60.0)
    day.leases.add([delivery(id=2)], until=70.0)

    await day.pass_by()

    # Three quarters of a lease from 21.0 is 66, five sixths is 71.
    assert day.asked == [(20.0, [1]), (21.0, [1, 2])]


async def test_for_a_lease_after_everything_was_kept_out_renewals_begin_earlier() -> None:
    answers = iter([WriteResult.BUSY])
    day = Day(lambda deliveries: [next(answers, WriteResult.WRITTEN)] * len(deliveries), until=120.0)
    day.leases.add([delivery(id=1)], until=60.0)

    await day.pass_by()

    # Every ten seconds, when a sixth is gone, until 80; and then every twenty, as ever.
    assert [at for at, _ in day.asked] == [20.0, 21.0, 31.0, 41.0, 51.0, 61.0, 71.0, 91.0, 111.0]


async def test_a_renewal_that_fails_is_tried_again_soon_and_told_of_once() -> None:
    def down(deliveries: Sequence[Delivery]) -> Sequence[WriteResult]:
        raise ConnectionError

    day = Day(down, until=23.5)
    day.leases.add([delivery(id=1)], until=60.0)

    await day.pass_by()

    assert [at for at, _ in day.asked] == [20.0, 21.0, 22.0, 23.0]
    assert day.failures == [(20.0, timedelta(seconds=1))]


@pytest.mark.parametrize("age", range(10))
async def test_whenever_it_was_claimed_a_lease_has_seven_twelfths_left_when_it_is_renewed(age: int) -> None:
    day = Day(lambda deliveries: [WriteResult.WRITTEN] * len(deliveries), until=45.0)
    day.leases.add([delivery(id=1)], until=60.0 - age)

    await day.pass_by()

    first = day.asked[0][0]
    assert 60.0 - age - first >= 60.0 * 7 / 12 - 0.1


class WithoutLocks(FaultyStore):
    """A store whose transactions lock no message, as on Redis."""

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
