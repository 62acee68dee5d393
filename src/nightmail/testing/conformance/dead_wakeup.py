"""When to look for dead letters again: `next_in`, and the bells."""

from __future__ import annotations

import pytest

from nightmail.outcome import Dead, Done, Outcome, Retry
from nightmail.store import FullStore
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance.build import (
    HOUR,
    LEASE,
    MINUTE,
    QUEUE,
    SECOND,
    bury,
    claim_letter,
    claim_letters,
    claim_one,
    fresh_token,
    message,
    settle_one,
)
from nightmail.testing.conformance.build_letters import look, whatever_brings_back
from nightmail.testing.conformance.wakeup import listening


class DeadWakeupConformance:
    """Dead letters: when the next look is worth it."""

    # ----------------------------------------------------------------------------------------- next_in

    async def test_where_there_are_no_letters_none_are_expected(self, store: FullStore) -> None:
        await store.publish(message(due=MINUTE))

        assert (await look(store)).next_in is None

    async def test_the_next_look_for_letters_is_worth_it_when_one_is_due(self, store: FullStore) -> None:
        await bury(store, message())
        await settle_one(store, await claim_letter(store), Retry(SECOND * 7))

        assert (await look(store)).next_in == SECOND * 7

    async def test_the_next_look_for_letters_is_worth_it_when_a_lease_expires(
        self, store: FullStore, other: FullStore, clock: ManualClock
    ) -> None:
        await bury(store, message())
        await claim_letter(store, lease=SECOND * 20)
        clock.advance(SECOND * 5)

        assert (await look(other)).next_in == SECOND * 15

    async def test_the_leases_on_letters_that_a_claim_took_are_among_what_comes_next(
        self, store: FullStore
    ) -> None:
        await bury(store, message())

        claimed = await look(store, limit=10, lease_seconds=20)

        assert len(claimed.deliveries) == 1
        assert claimed.next_in == SECOND * 20

    async def test_a_full_claim_of_letters_says_look_again_at_once(self, store: FullStore) -> None:
        await bury(store, message(b"a"))
        await bury(store, message(b"b"))

        assert (await look(store, limit=1)).next_in is None

    async def test_letters_of_another_queue_are_not_waited_for(self, store: FullStore) -> None:
        await bury(store, message(queue="refunds"))
        await claim_letter(store, "refunds")

        assert (await look(store)).next_in is None

    async def test_a_claim_of_messages_does_not_wait_for_letters(self, store: FullStore) -> None:
        await bury(store, message())
        await claim_letter(store)

        claimed = await store.claim([QUEUE], limit=10, lease=LEASE, token=fresh_token())

        assert claimed.next_in is None

    # ---------------------------------------------------------------------------------------- wake-ups

    async def test_a_death_rings_the_bell_of_its_queue(self, store: FullStore, sender: FullStore) -> None:
        await sender.publish(message())
        delivery = await claim_one(sender)
        async with listening(store, sender, QUEUE) as ear:
            await settle_one(sender, delivery, Dead("rejected"))

            assert await ear.rang()
            assert len(await claim_letters(store)) == 1

    @whatever_brings_back
    async def test_a_letter_that_may_soon_be_taken_again_rings(
        self, store: FullStore, sender: FullStore, outcome: Outcome
    ) -> None:
        await bury(sender, message())
        letter = await claim_letter(sender)
        async with listening(store, sender, QUEUE) as ear:
            await settle_one(sender, letter, outcome)

            assert await ear.rang()

    @pytest.mark.parametrize(
        "outcome",
        [
            pytest.param(Done(), id="done"),
            pytest.param(Dead("given up"), id="given up"),
            pytest.param(Retry(HOUR), id="retried much later"),
        ],
    )
    async def test_a_letter_that_cannot_be_taken_soon_does_not_ring(
        self, store: FullStore, sender: FullStore, outcome: Outcome
    ) -> None:
        await bury(sender, message())
        letter = await claim_letter(sender)
        async with listening(store, sender, QUEUE) as ear:
            await settle_one(sender, letter, outcome)

            assert await ear.stayed_silent()
