"""An operator moves dead letters back to their queues, or deletes them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from nightmail.message import Message
from nightmail.outcome import Dead, Done, Retry, WriteResult
from nightmail.records import DeadFilter, DeadLetter, QueueStats
from nightmail.store import FullStore, Settlement
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance.build import (
    EVERYTHING,
    HOUR,
    LEASE,
    MICROSECOND,
    MINUTE,
    QUEUE,
    SECOND,
    bodies,
    bury,
    claim_all,
    claim_bodies,
    claim_letter,
    claim_letters,
    claim_one,
    fresh_token,
    message,
    promptly,
    settle_one,
    timer,
)
from nightmail.testing.conformance.wakeup import listening


class RedriveConformance:
    """Redriving and purging: a letter moves whole or stays whole, and a held one is left alone."""

    # ------------------------------------------------------------------------------------- what moves

    async def test_a_redriven_letter_is_a_message_of_the_queue_it_died_in(self, store: FullStore) -> None:
        letter = await bury(store, message(b"again"))

        (id_,) = await store.redrive([letter])

        delivery = await claim_one(store)
        assert (delivery.id, delivery.queue, delivery.body) == (id_, QUEUE, b"again")
        assert await store.dead(EVERYTHING) == []

    async def test_a_letter_can_be_redriven_into_another_queue(self, store: FullStore) -> None:
        letter = await bury(store, message(b"again"))

        (id_,) = await store.redrive([letter], to="repairs")

        assert await claim_all(store, QUEUE) == []
        delivery = await claim_one(store, "repairs")
        assert (delivery.id, delivery.queue, delivery.body) == (id_, "repairs", b"again")

    async def test_a_redriven_letter_is_a_new_message_and_due_now(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(timer("reminder", b"\x00again", priority=4, ordering_key="k", expires_in=HOUR))
        for outcome in (Retry(), Retry(error="TimeoutError()"), Dead("rejected")):
            clock.advance(SECOND)
            await settle_one(store, await claim_one(store), outcome)
        (letter,) = await store.dead(EVERYTHING)
        clock.advance(MINUTE)
        now = clock.now()

        (id_,) = await store.redrive([letter])

        assert letter.error is None
        assert id_ is not None
        (fresh,) = await store.find([id_])
        assert fresh.last_error is None
        clock.advance(SECOND)
        delivery = await claim_one(store)
        assert delivery.id == id_ != letter.message_id
        assert (delivery.due_at, delivery.published_at, delivery.expires_at) == (now, now, None)
        assert (delivery.attempts, delivery.deliveries) == (0, 1)
        assert (delivery.first_attempt_at, delivery.last_attempt_at) == (None, None)
        assert (delivery.body, delivery.priority) == (b"\x00again", 4)
        assert (delivery.timer_id, delivery.ordering_key) == ("reminder", "k")
        assert delivery.superseded is False

    async def test_the_headers_tell_where_a_redriven_message_comes_from(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(message(headers={"trace": "żółć", "tries": 3}))
        clock.advance(SECOND)
        await settle_one(store, await claim_one(store), Dead("rejected"))
        (letter,) = await store.dead(EVERYTHING)

        await store.redrive([letter], to="repairs")

        assert (await claim_one(store, "repairs")).headers == {
            "trace": "żółć",
            "tries": 3,
            "nightmail-dead-letter": str(letter.id),
            "nightmail-died-as": str(letter.message_id),
            "nightmail-died-in": "orders",
            "nightmail-dead-reason": "rejected",
            "nightmail-died-at": "2030-01-01T12:00:01+00:00",
            "nightmail-redriven": "1",
        }

    async def test_a_redriven_message_that_dies_again_gives_a_new_letter_and_is_counted(
        self, store: FullStore
    ) -> None:
        first = await bury(store, message(b"stubborn"))
        await store.redrive([first])
        await settle_one(store, await claim_one(store), Dead("rejected again"))

        (second,) = await store.dead(EVERYTHING)
        await store.redrive([second])

        assert second.id != first.id
        headers = (await claim_one(store)).headers
        assert headers["nightmail-redriven"] == "2"
        assert headers["nightmail-dead-letter"] == str(second.id)
        assert headers["nightmail-dead-reason"] == "rejected again"

    async def test_headers_that_cannot_be_decoded_stay_as_they_are(self, store: FullStore) -> None:
        letter = await bury(store, with_broken_headers())

        assert len(await store.redrive([letter])) == 1

        assert (await claim_one(store)).encoded_headers == "{broken"

    async def test_a_redriven_message_can_be_done_like_any_other(self, store: FullStore) -> None:
        await store.redrive([await bury(store, message())])

        assert await settle_one(store, await claim_one(store), Done()) is WriteResult.WRITTEN

        assert await store.stats() == {}

    async def test_redriving_nothing_does_nothing(self, store: FullStore) -> None:
        await bury(store, message())

        assert await store.redrive([]) == []

        assert len(await store.dead(EVERYTHING)) == 1

    async def test_letters_that_were_not_asked_for_stay(self, store: FullStore) -> None:
        await bury(store, message(b"a"))
        b = await bury(store, message(b"b"))
        await bury(store, message(b"c"))

        await store.redrive([b])

        assert bodies(await store.dead(EVERYTHING)) == [b"c", b"a"]

    # ------------------------------------------------------------------------------------------- order

    async def test_new_ids_are_in_the_order_of_the_letters(self, store: FullStore) -> None:
        a, b, c = [await bury(store, message(body)) for body in (b"a", b"b", b"c")]

        ids = await store.redrive([c, a, b])

        assert ids == sorted(ids)
        assert [(each.id, each.body) for each in await claim_all(store)] == list(
            zip(ids, (b"c", b"a", b"b"), strict=True)
        )

    async def test_letters_of_several_queues_go_each_to_its_own(self, store: FullStore) -> None:
        letters = [await bury(store, message(queue=queue)) for queue in ("orders", "refunds", "mail")]

        ids = await store.redrive(letters)

        moved = {each.id: each.queue for each in await store.peek()}
        assert [moved[id_] for id_ in ids] == ["orders", "refunds", "mail"]

    async def test_letters_of_several_queues_go_together_into_one(self, store: FullStore) -> None:
        letters = [await bury(store, message(queue.encode(), queue=queue)) for queue in ("orders", "refunds")]

        await store.redrive(letters, to="repairs")

        assert await claim_bodies(store, "repairs") == [b"orders", b"refunds"]

    async def test_many_letters_are_redriven_in_one_call(self, store: FullStore) -> None:
        await store.publish_batch([message(b"%d" % number) for number in range(300)])
        deliveries = await claim_all(store, limit=300)
        await store.settle([Settlement(delivery, Dead("rejected")) for delivery in deliveries])
        letters = await store.dead(EVERYTHING, limit=500)

        ids = await store.redrive(letters)

        assert len(set(ids)) == 300
        assert await store.stats() == {
            QUEUE: QueueStats(ready=300, oldest_due_age=SECOND * 0),
        }
        assert await claim_bodies(store, limit=300) == bodies(letters)

    async def test_a_redriven_message_goes_to_the_end_of_its_keys_line(self, store: FullStore) -> None:
        letter = await bury(store, message(b"redriven", ordering_key="k"))
        await store.publish(message(b"has waited", ordering_key="k"))

        await store.redrive([letter])

        first = await claim_one(store)
        await settle_one(store, first, Done())
        assert (first.body, await claim_bodies(store)) == (b"has waited", [b"redriven"])

    async def test_redriven_messages_of_one_key_come_one_after_another(self, store: FullStore) -> None:
        letters = [await bury(store, message(body, ordering_key="k")) for body in (b"a", b"b")]

        await store.redrive(letters)

        first = await claim_one(store)
        await settle_one(store, first, Done())
        assert (first.body, await claim_bodies(store)) == (b"a", [b"b"])

    # --------------------------------------------------------------------------------------- timer ids

    async def test_a_redriven_timer_owns_its_timer_id_again(self, store: FullStore) -> None:
        letter = await bury(store, timer("reminder", b"again"))

        (id_,) = await store.redrive([letter])

        assert await store.publish(timer("reminder", b"too late")) is None
        assert [each.id for each in await store.peek(QUEUE, timer_id="reminder")] == [id_]
        assert await store.cancel(QUEUE, "reminder") is True

    async def test_a_letter_whose_name_is_taken_stays_dead_and_is_not_counted(self, store: FullStore) -> None:
        letter = await bury(store, timer("reminder", b"dead"))
        await store.publish(timer("reminder", b"alive", due=HOUR))

        assert await store.redrive([letter]) == []

        assert await store.dead(EVERYTHING) == [letter]
        assert bodies(await store.peek()) == [b"alive"]

    async def test_a_letter_whose_timer_id_a_running_message_owns_stays_dead(self, store: FullStore) -> None:
        letter = await bury(store, timer("reminder", b"dead"))
        await store.publish(timer("reminder", b"alive"))
        running = await claim_one(store)

        assert await store.redrive([letter]) == []

        assert await store.dead(EVERYTHING) == [letter]
        assert await settle_one(store, running, Done()) is WriteResult.WRITTEN

    async def test_a_name_counts_as_taken_in_the_queue_that_the_letter_would_go_to(
        self, store: FullStore
    ) -> None:
        letter = await bury(store, timer("reminder", b"dead"))
        await store.publish(timer("reminder", b"alive", queue="repairs"))

        assert await store.redrive([letter], to="repairs") == []
        assert await store.dead(EVERYTHING) == [letter]

        assert len(await store.redrive([letter])) == 1

    async def test_a_name_that_is_taken_only_where_the_letter_died_is_free_elsewhere(
        self, store: FullStore
    ) -> None:
        letter = await bury(store, timer("reminder", b"dead"))
        await store.publish(timer("reminder", b"alive"))

        assert len(await store.redrive([letter], to="repairs")) == 1

        assert await claim_bodies(store, "repairs") == [b"dead"]
        assert await claim_bodies(store, QUEUE) == [b"alive"]

    async def test_a_superseded_message_does_not_keep_a_name_from_a_letter(self, store: FullStore) -> None:
        await store.publish(timer("reminder", b"superseded"))
        running = await claim_one(store)
        await store.publish(timer("reminder", b"newer", on_conflict="replace"))
        await settle_one(store, await claim_one(store), Dead("rejected"))

        assert len(await store.redrive(await store.dead(EVERYTHING))) == 1

        assert await settle_one(store, running, Done()) is WriteResult.WRITTEN
        assert await claim_bodies(store) == [b"newer"]

    async def test_without_its_name_a_letter_goes_though_that_is_taken(self, store: FullStore) -> None:
        letter = await bury(store, timer("reminder", b"nameless"))
        await store.publish(timer("reminder", b"timer_owner"))

        (id_,) = await store.redrive([letter], keep_timer_ids=False)

        found = {each.body: (each.id, each.timer_id) for each in await claim_all(store)}
        assert found[b"nameless"] == (id_, None)
        assert found[b"timer_owner"][1] == "reminder"

    async def test_of_several_letters_that_would_bear_one_name_the_last_goes(self, store: FullStore) -> None:
        oldest, middle, newest = [
            await bury(store, timer("reminder", body)) for body in (b"oldest", b"middle", b"newest")
        ]

        ids = await store.redrive([oldest, newest, middle])

        assert len(ids) == 1
        assert [(each.id, each.body) for each in await store.peek()] == [(ids[0], b"middle")]
        assert await store.dead(EVERYTHING) == [newest, oldest]

    async def test_of_several_letters_of_one_timer_id_the_last_that_can_move_goes(
        self, store: FullStore
    ) -> None:
        first, second, third = [
            await bury(store, timer("reminder", body)) for body in (b"first", b"second", b"third")
        ]
        held = await claim_letters(store, limit=1)
        assert bodies(held) == [b"first"]

        assert len(await store.redrive([third, second, first])) == 1

        assert bodies(await store.peek()) == [b"second"]
        assert bodies(await store.dead(EVERYTHING)) == [b"third", b"first"]

    async def test_letters_of_one_name_that_go_to_their_own_queues_all_go(self, store: FullStore) -> None:
        letters = [await bury(store, timer("reminder", queue=queue)) for queue in ("orders", "refunds")]

        assert len(await store.redrive(letters)) == 2

    async def test_of_letters_of_one_name_from_several_queues_one_goes_into_one_queue(
        self, store: FullStore
    ) -> None:
        first, last = [
            await bury(store, timer("reminder", queue.encode(), queue=queue))
            for queue in ("orders", "refunds")
        ]

        assert len(await store.redrive([first, last], to="repairs")) == 1

        assert await claim_bodies(store, "repairs") == [b"refunds"]
        assert await store.dead(EVERYTHING) == [first]

    async def test_without_their_names_several_letters_of_one_name_all_go(self, store: FullStore) -> None:
        letters = [await bury(store, timer("reminder", body)) for body in (b"a", b"b", b"c")]

        ids = await store.redrive(letters, keep_timer_ids=False)

        assert len(ids) == 3
        assert [(each.body, each.timer_id) for each in await claim_all(store)] == [
            (b"a", None),
            (b"b", None),
            (b"c", None),
        ]

    async def test_a_letter_that_stays_keeps_none_of_its_neighbours(self, store: FullStore) -> None:
        a = await bury(store, message(b"a"))
        taken = await bury(store, timer("reminder", b"taken"))
        b = await bury(store, timer("other", b"b"))
        await store.publish(timer("reminder", b"alive", due=HOUR))

        ids = await store.redrive([a, taken, b])

        assert len(ids) == 2
        assert await claim_bodies(store) == [b"a", b"b"]
        assert await store.dead(EVERYTHING) == [taken]

    async def test_a_dedup_window_does_not_keep_a_letter_from_going(self, store: FullStore) -> None:
        letter = await bury(store, timer("reminder", b"again", dedup_for=HOUR))

        assert len(await store.redrive([letter])) == 1

        assert await claim_bodies(store) == [b"again"]

    async def test_redriving_neither_ends_nor_opens_a_dedup_window(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        letter = await bury(store, timer("reminder", dedup_for=HOUR))
        clock.advance(MINUTE)
        await store.redrive([letter])
        await settle_one(store, await claim_one(store), Done())

        clock.advance(HOUR - MINUTE - MICROSECOND)
        assert await store.publish(timer("reminder")) is None
        clock.advance(MICROSECOND)
        assert await store.publish(timer("reminder")) is not None

    # ------------------------------------------------------------------------------- held, gone, raced

    async def test_a_held_letter_stays_with_its_holder(self, store: FullStore, other: FullStore) -> None:
        listed = await bury(store, message(b"held"))
        held = await claim_letter(other)
        free = await bury(store, message(b"free"))

        ids = await store.redrive([listed, free])

        assert [(each.id, each.body) for each in await store.peek()] == [(ids[0], b"free")]
        assert len(ids) == 1
        assert await store.dead(EVERYTHING) == [listed]
        assert await settle_one(other, held, Done()) is WriteResult.WRITTEN

    async def test_a_letter_whose_lease_has_expired_goes_and_its_holder_has_lost_it(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        listed = await bury(store, message(b"again"))
        late = await claim_letter(store, lease=LEASE)
        clock.advance(LEASE)

        assert len(await store.redrive([listed])) == 1

        assert await settle_one(store, late, Done()) is WriteResult.LOST
        assert await claim_bodies(store) == [b"again"]

    async def test_a_letter_that_is_gone_is_not_counted(self, store: FullStore) -> None:
        gone = await bury(store, message(b"gone"))
        await settle_one(store, await claim_letter(store), Done())
        here = await bury(store, message(b"here"))

        assert len(await store.redrive([gone, here])) == 1
        assert await store.redrive([gone, here]) == []

        assert await claim_bodies(store) == [b"here"]

    async def test_a_letter_that_is_asked_for_twice_moves_once(self, store: FullStore) -> None:
        letter = await bury(store, message(b"once"))

        assert len(await store.redrive([letter, letter])) == 1

        assert await claim_bodies(store) == [b"once"]

    async def test_a_queue_that_cannot_be_one_is_refused_and_nothing_moves(self, store: FullStore) -> None:
        letter = await bury(store, message())

        with pytest.raises(ValueError, match="queue"):
            await store.redrive([letter], to="")

        assert await store.dead(EVERYTHING) == [letter]

    async def test_letters_redriven_twice_at_once_move_each_once(
        self, store: FullStore, other: FullStore
    ) -> None:
        letters = [await bury(store, message(b"%02d" % number)) for number in range(20)]

        async with promptly():
            ours, theirs = await asyncio.gather(store.redrive(letters), other.redrive(letters[::-1]))

        assert len({*ours, *theirs}) == len(ours) + len(theirs) == 20
        assert sorted(await claim_bodies(store)) == [b"%02d" % number for number in range(20)]
        assert await store.dead(EVERYTHING) == []

    async def test_a_publish_that_races_with_a_redrive_for_a_name_ends_with_one_owner_and_no_loss(
        self, store: FullStore, other: FullStore
    ) -> None:
        for number in range(10):
            name = f"reminder-{number}"
            letter = await bury(store, timer(name, b"redriven"))

            async with promptly():
                moved, published = await asyncio.gather(
                    store.redrive([letter]), other.publish(timer(name, b"published"))
                )

            found = [(each.id, each.body) for each in await store.peek(QUEUE, timer_id=name)]
            if published is None:
                assert found == [(moved[0], b"redriven")]
                assert await store.dead(EVERYTHING) == []
            else:
                assert found == [(published, b"published")]
                assert (moved, await store.dead(EVERYTHING)) == ([], [letter])
            assert await store.cancel(QUEUE, name)
            await store.purge(EVERYTHING, limit=10)

    async def test_a_redrive_that_races_with_a_claim_gives_each_letter_to_one_of_them(
        self, store: FullStore, other: FullStore
    ) -> None:
        letters = [await bury(store, message(b"%02d" % number)) for number in range(20)]

        async with promptly():
            moved, claimed = await asyncio.gather(
                store.redrive(letters),
                other.claim_dead([QUEUE], limit=10, lease=LEASE, token=fresh_token()),
            )

        alive, dead = bodies(await store.peek()), bodies(await store.dead(EVERYTHING))
        assert len(moved) == len(alive)
        assert sorted([*alive, *dead]) == [b"%02d" % number for number in range(20)]
        assert set(bodies(claimed.deliveries)) <= set(dead)
        results = await other.settle([Settlement(held, Done()) for held in claimed.deliveries])
        assert list(results) == [WriteResult.WRITTEN] * len(claimed.deliveries)

    # --------------------------------------------------------------------------------------- wake-ups

    async def test_a_redriven_letter_rings(self, store: FullStore, sender: FullStore) -> None:
        letter = await bury(sender, message(b"again"))
        async with listening(store, sender, QUEUE) as ear:
            await sender.redrive([letter])

            assert await ear.rang()
            assert await claim_bodies(store) == [b"again"]

    async def test_a_letter_rings_for_the_queue_it_goes_to_and_not_for_the_one_it_died_in(
        self, store: FullStore, sender: FullStore
    ) -> None:
        letter = await bury(sender, message())
        async with (
            listening(store, sender, QUEUE) as where_it_died,
            listening(store, sender, "repairs") as where_it_goes,
        ):
            where_it_died.forget()
            await sender.redrive([letter], to="repairs")

            assert await where_it_goes.rang()
            assert await where_it_died.stayed_silent()

    async def test_a_letter_that_stays_does_not_ring(self, store: FullStore, sender: FullStore) -> None:
        letter = await bury(sender, timer("reminder"))
        await sender.publish(timer("reminder", due=HOUR))
        async with listening(store, sender, QUEUE) as ear:
            assert await sender.redrive([letter]) == []

            assert await ear.stayed_silent()

    # ------------------------------------------------------------------------------------------- purge

    async def test_purging_deletes_letters_and_tells_how_many(self, store: FullStore) -> None:
        await four_letters(store)

        assert await store.purge(EVERYTHING, limit=100) == 4

        assert await store.dead(EVERYTHING) == []
        assert await claim_letters(store, "orders", "refunds") == []
        assert await store.stats() == {}

    async def test_purging_an_empty_store_deletes_nothing(self, store: FullStore) -> None:
        assert await store.purge(EVERYTHING, limit=100) == 0

    @pytest.mark.parametrize(
        ("which", "left"),
        [
            pytest.param(DeadFilter(queue="refunds"), [b"c", b"b", b"a"], id="queue"),
            pytest.param(DeadFilter(reason="expired"), [b"d", b"c", b"a"], id="reason"),
            pytest.param(DeadFilter(error="50% off"), [b"d", b"c", b"b"], id="error"),
            pytest.param(DeadFilter(queue="orders", reason="rejected"), [b"d", b"b"], id="several"),
            pytest.param(DeadFilter(queue="nowhere"), [b"d", b"c", b"b", b"a"], id="nothing"),
        ],
    )
    async def test_purging_deletes_what_the_filter_means(
        self, store: FullStore, which: DeadFilter, left: list[bytes]
    ) -> None:
        await four_letters(store)

        assert await store.purge(which, limit=100) == 4 - len(left)

        assert bodies(await store.dead(EVERYTHING)) == left

    @pytest.mark.parametrize(
        ("conditions", "expected"),
        [
            ({"queue": "a", "ids": (0, 1, 2)}, [b"3", b"1"]),
            ({"queue": "a", "reason": "rejected", "error": "no", "older_than": MINUTE}, [b"3", b"1"]),
            ({"queue": "b"}, [b"4", b"2"]),
            ({"ids": (3, 0)}, [b"4", b"1"]),
            ({"queue": "b", "ids": (0,)}, []),
            ({"queue": "a", "older_than": HOUR * 2}, []),
        ],
    )
    async def test_what_is_listed_is_what_is_purged(
        self, store: FullStore, clock: ManualClock, conditions: dict[str, Any], expected: list[bytes]
    ) -> None:
        letters = [
            await bury(store, message(body, queue=queue))
            for body, queue in ((b"1", "a"), (b"2", "b"), (b"3", "a"), (b"4", "b"))
        ]
        clock.advance(HOUR)
        if places := conditions.get("ids"):
            conditions = {**conditions, "ids": tuple(letters[place].id for place in places)}
        which = DeadFilter(**conditions)

        assert bodies(await store.dead(which)) == expected
        assert await store.purge(which, limit=10) == len(expected)
        assert await store.dead(which) == []
        assert len(await store.dead(EVERYTHING)) == 4 - len(expected)

    async def test_purging_no_more_than_nothing_deletes_nothing(self, store: FullStore) -> None:
        letter = await bury(store, message())

        assert await store.purge(EVERYTHING, limit=0) == 0
        assert await store.purge(EVERYTHING, limit=-1) == 0
        assert await store.dead(EVERYTHING) == [letter]

    async def test_purging_by_age_is_exact_to_the_clock(self, store: FullStore, clock: ManualClock) -> None:
        await bury(store, message(b"old"))
        clock.advance(MICROSECOND)
        await bury(store, message(b"young"))
        clock.advance(HOUR)

        assert await store.purge(DeadFilter(older_than=HOUR), limit=100) == 1

        assert bodies(await store.dead(EVERYTHING)) == [b"young"]

    async def test_purging_by_ids_deletes_these_letters_alone(self, store: FullStore) -> None:
        a, b, c, _ = await four_letters(store)

        assert await store.purge(DeadFilter(ids=(a.id, c.id, c.id + 1000)), limit=100) == 2
        assert await store.purge(DeadFilter(ids=()), limit=100) == 0

        assert bodies(await store.dead(EVERYTHING)) == [b"d", b.body]

    async def test_purging_stops_at_the_limit_and_takes_the_oldest_first(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        for body in (b"a", b"b", b"c"):
            await bury(store, message(body))
            clock.advance(SECOND)

        assert await store.purge(EVERYTHING, limit=2) == 2
        assert bodies(await store.dead(EVERYTHING)) == [b"c"]
        assert await store.purge(EVERYTHING, limit=2) == 1

    async def test_purging_leaves_a_held_letter_with_its_holder(
        self, store: FullStore, other: FullStore
    ) -> None:
        await bury(store, message(b"held"))
        held = await claim_letter(other)
        await bury(store, message(b"free"))

        assert await store.purge(EVERYTHING, limit=1) == 1
        assert await store.purge(EVERYTHING, limit=1) == 0

        assert bodies(await store.dead(EVERYTHING)) == [b"held"]
        assert await settle_one(other, held, Done()) is WriteResult.WRITTEN

    async def test_purging_deletes_what_was_given_up_and_what_is_not_held_any_more(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await bury(store, message(b"given up"))
        await settle_one(store, await claim_letter(store), Dead("given up"))
        await bury(store, message(b"expired"))
        late = await claim_letter(store, lease=LEASE)
        clock.advance(LEASE)

        assert await store.purge(EVERYTHING, limit=100) == 2

        assert await settle_one(store, late, Done()) is WriteResult.LOST

    async def test_purging_touches_no_message(self, store: FullStore) -> None:
        await bury(store, message(b"dead"))
        await store.publish_batch([message(b"ready"), message(b"scheduled", due=HOUR)])

        assert await store.purge(DeadFilter(queue=QUEUE), limit=100) == 1

        assert bodies(await store.peek()) == [b"ready", b"scheduled"]


async def four_letters(store: FullStore) -> list[DeadLetter]:
    """Four dead letters that differ in everything a filter can ask for, in the order in which they died."""
    return [
        await bury(store, message(b"a"), Dead("rejected", "ValueError: 50% off")),
        await bury(store, message(b"b"), Dead("expired")),
        await bury(store, message(b"c"), Dead("rejected", "KeyError: 500 off")),
        await bury(store, message(b"d", queue="refunds"), Dead("rejected", "ValueError: no")),
    ]


def with_broken_headers() -> Message:
    """A message as a writer that does not use this library may have stored it."""
    broken = message(b"whose headers are no JSON")
    object.__setattr__(broken, "encoded_headers", "{broken")
    return broken
