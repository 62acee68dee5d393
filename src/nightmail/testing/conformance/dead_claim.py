"""Claiming dead letters: which are taken, in which order, and what a letter says."""

from __future__ import annotations

from nightmail.outcome import Dead, Done, Retry, WriteResult
from nightmail.store import FullStore, Settlement
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance.build import (
    DAY,
    EVERYTHING,
    HOUR,
    LEASE,
    MINUTE,
    QUEUE,
    SECOND,
    bodies,
    bury,
    claim_all,
    claim_letter,
    claim_letters,
    claim_one,
    fresh_token,
    message,
    settle_one,
    stored,
    timer,
)
from nightmail.testing.conformance.build_letters import three_letters


class DeadClaimConformance:
    """Dead letters: claimed like messages, each with its reason."""

    # ----------------------------------------------------------------------------------- what is taken

    async def test_a_letter_can_be_taken_at_once_whatever_delay_its_message_had(
        self, store: FullStore, other: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(message(b"delayed", due=DAY))
        clock.advance(DAY)
        await settle_one(store, await claim_one(store), Retry(HOUR))
        clock.advance(HOUR)

        await settle_one(store, await claim_one(store), Dead("rejected"))

        assert bodies(await claim_letters(other)) == [b"delayed"]

    async def test_a_letter_tells_everything_about_its_message_and_its_death(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        start = clock.now()
        id_ = await stored(
            store,
            timer(
                "reminder",
                b"\x00hello",
                headers={"trace": "żółć"},
                ordering_key="customer-7",
                priority=4,
                expires_in=HOUR,
            ),
        )
        clock.advance(SECOND)
        await settle_one(store, await claim_one(store), Retry())
        clock.advance(SECOND)
        given_up = await claim_one(store)
        clock.advance(SECOND)
        await settle_one(store, given_up, Dead("rejected", "ValueError: żółć"))
        (listed,) = await store.dead(EVERYTHING)
        clock.advance(MINUTE)

        token = fresh_token()
        letter = await claim_letter(store, token=token)

        assert (letter.id, letter.message_id, letter.token) == (listed.id, id_, token)
        assert (letter.queue, letter.timer_id) == (QUEUE, "reminder")
        assert (letter.body, letter.headers) == (b"\x00hello", {"trace": "żółć"})
        assert (letter.ordering_key, letter.priority) == ("customer-7", 4)
        assert (letter.reason, letter.error) == ("rejected", "ValueError: żółć")
        assert (letter.attempts, letter.deliveries) == (0, 1)
        assert (letter.published_at, letter.died_at) == (start, start + SECOND * 3)
        assert (letter.due_at, letter.claimed_at) == (start + SECOND * 3, start + SECOND * 3 + MINUTE)
        assert (letter.first_attempt_at, letter.last_attempt_at) == (start + SECOND, start + SECOND * 2)
        assert (letter.expires_at, letter.superseded) == (None, False)

    async def test_a_letter_shows_what_its_message_did_not_have_as_absent(self, store: FullStore) -> None:
        await bury(store, message(), Dead("expired", ran=False))

        letter = await claim_letter(store)

        assert (letter.error, letter.timer_id, letter.ordering_key) == (None, None, None)
        assert (letter.first_attempt_at, letter.last_attempt_at) == (None, None)
        assert (letter.headers, letter.priority, letter.reason) == ({}, 0, "expired")

    async def test_a_letter_of_a_superseded_message_is_a_letter_like_any_other(
        self, store: FullStore
    ) -> None:
        await store.publish(timer("reminder", b"old"))
        old = await claim_one(store)
        await store.publish(timer("reminder", b"new", on_conflict="replace"))

        await settle_one(store, old, Dead("rejected"))

        letter = await claim_letter(store)
        assert (letter.body, letter.timer_id, letter.superseded) == (b"old", "reminder", False)

    async def test_where_nothing_died_there_is_nothing_to_take(self, store: FullStore) -> None:
        await store.publish(message())

        assert await claim_letters(store) == []

    # ------------------------------------------------------------------------- order, limit and queues

    async def test_the_letter_longest_due_comes_first_whatever_its_priority(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await three_letters(store, clock)

        assert bodies(await claim_letters(store)) == [b"first", b"second", b"third"]

    async def test_a_letter_brought_back_goes_by_its_new_due_time(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await three_letters(store, clock)
        (first,) = await claim_letters(store, limit=1)
        await settle_one(store, first, Retry(HOUR))
        clock.advance(HOUR)

        assert bodies(await claim_letters(store)) == [b"second", b"third", b"first"]

    async def test_no_more_letters_are_taken_than_asked_for(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await three_letters(store, clock)

        assert bodies(await claim_letters(store, limit=2)) == [b"first", b"second"]
        assert bodies(await claim_letters(store, limit=2)) == [b"third"]
        assert await claim_letters(store, limit=2) == []

    async def test_a_limit_of_nothing_takes_no_letter(self, store: FullStore) -> None:
        await bury(store, message())

        assert await claim_letters(store, limit=0) == []

        assert (await claim_letter(store)).deliveries == 1

    async def test_letters_come_from_the_queues_that_are_named_and_from_no_other(
        self, store: FullStore
    ) -> None:
        for queue in ("orders", "refunds", "mail"):
            await bury(store, message(queue.encode(), queue=queue))

        assert sorted(bodies(await claim_letters(store, "orders", "mail"))) == [b"mail", b"orders"]
        assert bodies(await claim_letters(store, "refunds", "refunds")) == [b"refunds"]

    async def test_letters_of_no_queue_are_none(self, store: FullStore) -> None:
        await bury(store, message())

        claimed = await store.claim_dead([], limit=10, lease=LEASE, token=fresh_token())

        assert (list(claimed.deliveries), claimed.next_in) == ([], None)

    async def test_letters_of_one_ordering_key_may_be_held_together(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await bury(store, message(b"a", ordering_key="k"))
        clock.advance(SECOND)
        await bury(store, message(b"b", ordering_key="k"))

        assert bodies(await claim_letters(store)) == [b"a", b"b"]

    async def test_a_letter_does_not_keep_the_next_message_of_its_key_from_being_delivered(
        self, store: FullStore
    ) -> None:
        await bury(store, message(b"dead", ordering_key="k"))
        await claim_letter(store)

        await store.publish(message(b"next", ordering_key="k"))

        assert (await claim_one(store)).body == b"next"

    async def test_a_timer_that_dies_again_and_again_gives_a_letter_each_time(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        for body in (b"first", b"second", b"third"):
            await bury(store, timer("reminder", body))
            clock.advance(SECOND)

        letters = await claim_letters(store)

        assert bodies(letters) == [b"first", b"second", b"third"]
        assert [letter.timer_id for letter in letters] == ["reminder"] * 3
        assert len({letter.id for letter in letters}) == 3
        assert (
            await store.settle([Settlement(letter, Done()) for letter in letters])
            == [WriteResult.WRITTEN] * 3
        )
        assert await store.dead(EVERYTHING) == []

    async def test_large_letters_are_taken_whole(self, store: FullStore) -> None:
        for body in (b"x" * 4_000_000, b"", b"y" * 900_000):
            await bury(store, message(body))

        assert [len(letter.body) for letter in await claim_letters(store)] == [4_000_000, 0, 900_000]

    async def test_a_large_backlog_of_letters_is_taken_at_once(self, store: FullStore) -> None:
        await store.publish_batch([message(b"%d" % number) for number in range(300)])
        deliveries = await claim_all(store, limit=300)
        await store.settle([Settlement(delivery, Dead("rejected")) for delivery in deliveries])

        letters = await claim_letters(store, limit=500)

        assert sorted(letter.message_id for letter in letters) == sorted(each.id for each in deliveries)
