"""Messages that a caller's open transaction has locked are passed over, however many come first."""

from __future__ import annotations

import pytest

from nightmail.store import FullStore
from nightmail.testing.conformance.build import (
    QUEUE,
    claim_bodies,
    message,
    needs,
    promptly,
    stored,
    timer,
)
from nightmail.testing.conformance.fixtures import StoreFixtures
from nightmail.testing.conformance.harness import Harness, RolledBack


class LockedConformance(StoreFixtures):
    """Each test locks the front of a queue in a transaction that stays open while others claim."""

    @needs("transactions", "concurrent_writers")
    @pytest.mark.parametrize("limit", [1, 3, 10])
    async def test_a_claim_passes_over_a_locked_front_as_long_as_its_limit_or_longer(
        self, store: FullStore, harness: Harness, limit: int
    ) -> None:
        for n in range(3 * limit):
            await stored(store, timer(f"t{n}", b"locked"))
        for n in range(limit):
            await stored(store, message(b"free %d" % n))

        async with harness.transaction() as transaction:
            for n in range(3 * limit):
                assert await store.cancel(QUEUE, f"t{n}", transaction=transaction)
            async with promptly():
                taken = await claim_bodies(store, limit=limit)

        assert taken == [b"free %d" % n for n in range(limit)]

    @needs("transactions", "concurrent_writers")
    async def test_a_claim_passes_over_a_locked_front_at_each_priority(
        self, store: FullStore, harness: Harness
    ) -> None:
        for n in range(4):
            await stored(store, timer(f"t{n}", b"locked", priority=9))
        await stored(store, message(b"free 9", priority=9))
        await stored(store, message(b"free 1", priority=1))

        async with harness.transaction() as transaction:
            for n in range(4):
                assert await store.cancel(QUEUE, f"t{n}", transaction=transaction)
            async with promptly():
                first = await claim_bodies(store, limit=1)
                second = await claim_bodies(store, limit=4)

        assert first == [b"free 9"]
        assert second == [b"free 1"]

    @needs("transactions", "concurrent_writers")
    async def test_what_was_locked_is_claimed_after_a_rollback(
        self, store: FullStore, harness: Harness
    ) -> None:
        for n in range(4):
            await stored(store, timer(f"t{n}", b"timer %d" % n))
        await stored(store, message(b"free"))

        with pytest.raises(RolledBack):
            async with harness.transaction() as transaction:
                for n in range(4):
                    assert await store.cancel(QUEUE, f"t{n}", transaction=transaction)
                async with promptly():
                    assert await claim_bodies(store, limit=2) == [b"free"]
                raise RolledBack

        assert await claim_bodies(store) == [b"timer %d" % n for n in range(4)]
