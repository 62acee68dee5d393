"""Dead letters acknowledged in the caller's own transaction."""

from __future__ import annotations

import pytest

from nightmail.errors import LeaseLost
from nightmail.outcome import Done, Retry, WriteResult
from nightmail.store import FullStore, Settlement
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance.build import (
    EVERYTHING,
    HOUR,
    LEASE,
    bodies,
    bury,
    claim_letter,
    claim_letters,
    extend_one,
    message,
    needs,
    promptly,
    settle_one,
)
from nightmail.testing.conformance.build_letters import taken_over, three_letters
from nightmail.testing.conformance.harness import Harness, RolledBack


class DeadTransactionConformance:
    """Dead letters: held and acknowledged in a caller's transaction."""

    @needs("transactions")
    async def test_a_letter_acked_in_a_transaction_is_gone_when_that_commits(
        self, store: FullStore, harness: Harness, clock: ManualClock
    ) -> None:
        await three_letters(store, clock)
        first, second = await claim_letters(store, limit=2)

        async with harness.transaction() as transaction:
            await store.hold([first, second], transaction=transaction)
            await harness.write(transaction, "effect")
            await store.ack([first, second], transaction=transaction)

        assert await harness.written() == ["effect"]
        assert bodies(await store.dead(EVERYTHING)) == [b"third"]
        assert await settle_one(store, first, Retry()) is WriteResult.LOST

    @needs("transactions")
    async def test_after_a_rollback_the_letter_is_as_before(
        self, store: FullStore, harness: Harness, clock: ManualClock
    ) -> None:
        before = await bury(store, message())
        letter = await claim_letter(store)

        with pytest.raises(RolledBack):
            async with harness.transaction() as transaction:
                await harness.write(transaction, "effect")
                await store.ack([letter], transaction=transaction)
                raise RolledBack

        assert await harness.written() == []
        assert await store.dead(EVERYTHING) == [before]
        assert await claim_letters(store) == []
        assert await extend_one(store, letter) is WriteResult.WRITTEN
        clock.advance(LEASE)
        assert (await claim_letter(store)).deliveries == 2

    @needs("transactions")
    async def test_who_lost_a_letter_cannot_ack_it_and_their_writes_roll_back(
        self, store: FullStore, other: FullStore, harness: Harness, clock: ManualClock
    ) -> None:
        late, successor = await taken_over(store, other, clock)

        with pytest.raises(LeaseLost) as raised:
            async with harness.transaction() as transaction:
                await harness.write(transaction, "by the late one")
                await store.ack([late], transaction=transaction)

        assert raised.value.ids == (late.id,)
        assert await harness.written() == []
        assert await settle_one(other, successor, Done()) is WriteResult.WRITTEN

    @needs("transactions")
    async def test_who_lost_a_letter_learns_it_when_holding(
        self, store: FullStore, other: FullStore, harness: Harness, clock: ManualClock
    ) -> None:
        late, successor = await taken_over(store, other, clock)

        with pytest.raises(LeaseLost) as raised:
            async with harness.transaction() as transaction:
                await store.hold([late], transaction=transaction)

        assert raised.value.ids == (late.id,)
        assert await settle_one(other, successor, Done()) is WriteResult.WRITTEN

    @needs("transactions")
    async def test_an_ack_of_letters_is_all_or_nothing_and_names_the_lost_ones(
        self, store: FullStore, harness: Harness, clock: ManualClock
    ) -> None:
        await three_letters(store, clock)
        first, second, third = await claim_letters(store)
        await settle_one(store, second, Done())

        # The caller goes on and commits: even then no part of the ack may be written.
        async with harness.transaction() as transaction:
            with pytest.raises(LeaseLost) as raised:
                await store.ack([first, second, third], transaction=transaction)

        assert raised.value.ids == (second.id,)
        assert bodies(await store.dead(EVERYTHING)) == [b"third", b"first"]

    @needs("transactions")
    async def test_holding_a_letter_changes_nothing_by_itself(
        self, store: FullStore, harness: Harness, clock: ManualClock
    ) -> None:
        before = await bury(store, message())
        letter = await claim_letter(store)

        async with harness.transaction() as transaction:
            await store.hold([letter], transaction=transaction)

        assert await store.dead(EVERYTHING) == [before]
        assert await extend_one(store, letter) is WriteResult.WRITTEN
        clock.advance(LEASE)
        assert (await claim_letter(store)).deliveries == 2

    @needs("transactions", "concurrent_writers")
    async def test_a_letter_that_an_open_transaction_has_locked_is_busy_and_holds_up_no_other(
        self, store: FullStore, other: FullStore, harness: Harness, clock: ManualClock
    ) -> None:
        await three_letters(store, clock)
        locked, second, third = await claim_letters(store, lease=LEASE)

        async with harness.transaction() as transaction:
            await store.hold([locked], transaction=transaction)
            async with promptly():
                extended = await store.extend([locked, second, third], LEASE)
                settled = await store.settle([Settlement(locked, Retry()), Settlement(second, Retry())])
                clock.advance(LEASE)
                taken = bodies(await claim_letters(other))
            await store.ack([locked], transaction=transaction)

        assert list(extended) == [WriteResult.BUSY, WriteResult.WRITTEN, WriteResult.WRITTEN]
        assert list(settled) == [WriteResult.BUSY, WriteResult.WRITTEN]
        assert sorted(taken) == [b"second", b"third"]
        assert sorted(bodies(await store.dead(EVERYTHING))) == [b"second", b"third"]

    @needs("transactions", "repeatable_read")
    async def test_a_caller_at_repeatable_read_acks_a_letter_that_it_held_first(
        self, store: FullStore, harness: Harness
    ) -> None:
        await bury(store, message())
        letter = await claim_letter(store)

        async with harness.transaction(repeatable_read=True) as transaction:
            await store.hold([letter], transaction=transaction)
            await harness.write(transaction, "effect")
            async with promptly():
                assert await extend_one(store, letter, HOUR) is WriteResult.BUSY
            await store.ack([letter], transaction=transaction)

        assert await harness.written() == ["effect"]
        assert await store.stats() == {}
