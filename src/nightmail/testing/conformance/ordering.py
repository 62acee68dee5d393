"""Messages with one ordering key go one at a time, in order; a started one holds its key until it has finished."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Unpack

import pytest

from nightmail.message import Delivery, Message
from nightmail.outcome import Dead, Done, Outcome, Postpone, Release, Retry, WriteResult
from nightmail.store import FullStore, Settlement
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance.build import (
    HOUR,
    LEASE,
    MINUTE,
    QUEUE,
    SECOND,
    MessageOptions,
    bodies,
    claim_all,
    claim_bodies,
    claim_one,
    fresh_token,
    message,
    needs,
    promptly,
    settle_one,
)
from nightmail.testing.conformance.harness import Harness


def keyed(body: bytes, key: str = "customer-7", /, **options: Unpack[MessageOptions]) -> Message:
    """A message with an ordering key."""
    options["ordering_key"] = key
    return message(body, **options)


class OrderingConformance:
    """Ordering keys."""

    # ------------------------------------------------------------------------------- one at a time

    async def test_messages_of_one_key_go_one_at_a_time_in_the_order_of_publishing(
        self, store: FullStore
    ) -> None:
        for body in (b"a", b"b", b"c"):
            await store.publish(keyed(body))

        seen = []
        for _ in range(3):
            delivery = await claim_one(store)
            seen.append(delivery.body)
            assert await claim_all(store) == []
            await settle_one(store, delivery, Done())

        assert seen == [b"a", b"b", b"c"]
        assert await claim_all(store) == []

    async def test_a_claim_takes_one_message_of_each_key_and_all_without_a_key(
        self, store: FullStore
    ) -> None:
        await store.publish_batch(
            [
                keyed(b"x1", "x"),
                keyed(b"x2", "x"),
                message(b"free 1"),
                keyed(b"y1", "y"),
                keyed(b"x3", "x"),
                message(b"free 2"),
                keyed(b"y2", "y"),
                keyed(b"z1", "z"),
            ]
        )

        assert await claim_bodies(store) == [b"x1", b"free 1", b"y1", b"free 2", b"z1"]

    async def test_the_next_message_of_a_key_is_there_as_soon_as_the_one_before_has_ended(
        self, store: FullStore, other: FullStore
    ) -> None:
        await store.publish_batch([keyed(b"a"), keyed(b"b"), keyed(b"c")])

        await settle_one(store, await claim_one(store), Done())
        await settle_one(other, await claim_one(other), Dead("rejected"))

        assert await claim_bodies(store) == [b"c"]

    async def test_a_stuck_key_holds_up_no_other(self, store: FullStore) -> None:
        await store.publish_batch([keyed(b"stuck %d" % number, "stuck") for number in range(3)])
        assert await claim_bodies(store) == [b"stuck 0"]
        await store.publish_batch([keyed(b"flows %d" % number, "flows") for number in range(3)])
        await store.publish(message(b"free"))

        assert await claim_bodies(store) == [b"flows 0", b"free"]

    async def test_messages_waiting_behind_their_head_do_not_use_up_the_limit(self, store: FullStore) -> None:
        await store.publish_batch([keyed(b"stuck %d" % number, "stuck", priority=9) for number in range(60)])
        await store.publish_batch([message(b"free 1"), message(b"free 2"), keyed(b"other key", "flows")])
        assert await claim_bodies(store, limit=1) == [b"stuck 0"]

        assert await claim_bodies(store, limit=3) == [b"free 1", b"free 2", b"other key"]

    async def test_the_same_key_in_another_queue_is_another_key(self, store: FullStore) -> None:
        for queue in ("orders", "refunds"):
            await store.publish_batch([keyed(b"1", queue=queue), keyed(b"2", queue=queue)])

        deliveries = await claim_all(store, "orders", "refunds")

        assert sorted((delivery.queue, delivery.body) for delivery in deliveries) == [
            ("orders", b"1"),
            ("refunds", b"1"),
        ]

    async def test_concurrent_workers_never_run_two_messages_of_one_key_and_keep_their_order(
        self, store: FullStore, other: FullStore
    ) -> None:
        keys = ("a", "b", "c", "d")
        await store.publish_batch([keyed(b"%d" % place, key) for place in range(8) for key in keys])
        running: set[str] = set()
        finished: dict[str, list[int]] = {key: [] for key in keys}

        async def work(worker: FullStore) -> None:
            while any(len(done) < 8 for done in finished.values()):
                deliveries = await claim_all(worker, limit=3)
                for delivery in deliveries:
                    assert delivery.ordering_key is not None
                    assert delivery.ordering_key not in running
                    running.add(delivery.ordering_key)
                    finished[delivery.ordering_key].append(int(delivery.body))
                await asyncio.sleep(0)
                # Before settling: once that is written another worker may take the next one.
                running.difference_update(key for delivery in deliveries if (key := delivery.ordering_key))
                await worker.settle([Settlement(delivery, Done()) for delivery in deliveries])

        async with asyncio.timeout(30):
            await asyncio.gather(work(store), work(other))

        assert finished == {key: [0, 1, 2, 3, 4, 5, 6, 7] for key in keys}

    # ---------------------------------------------------------------------------------------- delay

    async def test_a_delayed_message_does_not_hold_up_its_key_before_it_is_due(
        self, store: FullStore
    ) -> None:
        await store.publish(keyed(b"in a month", due=HOUR * 720))
        await store.publish(keyed(b"now 1"))
        await store.publish(keyed(b"now 2"))

        first = await claim_one(store)
        assert first.body == b"now 1"
        await settle_one(store, first, Done())
        assert await claim_bodies(store) == [b"now 2"]

    async def test_among_what_is_due_the_lower_id_goes_first_whatever_the_due_times(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(keyed(b"published first, due last", due=SECOND * 10))
        await store.publish(keyed(b"published second, due first"))
        await store.publish(keyed(b"published third, due second", due=SECOND * 5))
        clock.advance(SECOND * 10)

        assert await one_after_another(store, 3) == [
            b"published first, due last",
            b"published second, due first",
            b"published third, due second",
        ]

    async def test_a_message_that_becomes_due_while_its_key_is_busy_goes_next_and_never_beside(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(keyed(b"delayed", due=SECOND * 10))
        await store.publish(keyed(b"running"))
        await store.publish(keyed(b"waiting"))
        running = await claim_one(store)
        assert running.body == b"running"

        clock.advance(SECOND * 10)
        assert await claim_all(store) == []

        await settle_one(store, running, Done())
        assert await one_after_another(store, 2) == [b"delayed", b"waiting"]

    async def test_a_started_message_goes_before_one_with_a_lower_id_that_became_due_meanwhile(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(keyed(b"delayed", due=SECOND * 10))
        await store.publish(keyed(b"started"))
        await settle_one(store, await claim_one(store), Retry(SECOND * 20))

        clock.advance(SECOND * 10)
        assert await claim_all(store) == []

        clock.advance(SECOND * 10)
        assert await one_after_another(store, 2) == [b"started", b"delayed"]

    # -------------------------------------------------------------------- what does not release a key

    @pytest.mark.parametrize(
        "outcome", [pytest.param(Retry(MINUTE), id="retry"), pytest.param(Postpone(MINUTE), id="postpone")]
    )
    async def test_a_started_message_that_comes_back_later_holds_its_key_until_then(
        self, store: FullStore, clock: ManualClock, outcome: Outcome
    ) -> None:
        await store.publish_batch([keyed(b"head"), keyed(b"next")])

        await settle_one(store, await claim_one(store), outcome)

        assert await claim_all(store) == []
        clock.advance(MINUTE - SECOND)
        assert await claim_all(store) == []
        clock.advance(SECOND)
        assert await one_after_another(store, 2) == [b"head", b"next"]

    async def test_a_started_message_that_was_released_holds_its_key(
        self, store: FullStore, other: FullStore
    ) -> None:
        await store.publish_batch([keyed(b"head"), keyed(b"next")])

        await settle_one(store, await claim_one(store), Release())

        assert await one_after_another(other, 2) == [b"head", b"next"]

    async def test_a_started_message_whose_lease_expired_holds_its_key(
        self, store: FullStore, other: FullStore, clock: ManualClock
    ) -> None:
        await store.publish_batch([keyed(b"head"), keyed(b"next")])
        await claim_one(store, lease=LEASE)

        clock.advance(LEASE + HOUR)

        assert await one_after_another(other, 2) == [b"head", b"next"]

    async def test_a_late_settlement_of_a_message_that_was_taken_over_releases_nothing(
        self, store: FullStore, other: FullStore, clock: ManualClock
    ) -> None:
        await store.publish_batch([keyed(b"head"), keyed(b"next")])
        late = await claim_one(store, lease=LEASE)
        clock.advance(LEASE)
        successor = await claim_one(other, lease=LEASE)

        assert await settle_one(store, late, Done()) is WriteResult.LOST

        assert await claim_all(store) == []
        await settle_one(other, successor, Done())
        assert await claim_bodies(store) == [b"next"]

    async def test_a_started_message_holds_its_key_and_only_its_key(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await store.publish_batch(
            [keyed(b"x1", "x"), keyed(b"y1", "y"), keyed(b"x2", "x"), keyed(b"y2", "y")]
        )
        x1, y1 = await claim_all(store)

        await store.settle([Settlement(x1, Retry(HOUR)), Settlement(y1, Done())])

        assert await claim_bodies(store) == [b"y2"]

    # --------------------------------------------------------------------------- what releases a key

    @pytest.mark.parametrize(
        "outcome", [pytest.param(Done(), id="done"), pytest.param(Dead("rejected"), id="dead")]
    )
    async def test_the_end_of_a_message_that_had_been_retried_releases_its_key(
        self, store: FullStore, outcome: Outcome
    ) -> None:
        await store.publish_batch([keyed(b"head"), keyed(b"next")])
        await settle_one(store, await claim_one(store), Retry())

        await settle_one(store, await claim_one(store), outcome)

        assert await claim_bodies(store) == [b"next"]

    async def test_cancelling_a_started_message_that_waits_releases_its_key(self, store: FullStore) -> None:
        await store.publish(keyed(b"head", timer_id="head"))
        await store.publish(keyed(b"next"))
        await settle_one(store, await claim_one(store), Retry(HOUR))
        assert await claim_all(store) == []

        assert await store.cancel(QUEUE, "head")

        assert await claim_bodies(store) == [b"next"]

    async def test_cancelling_a_started_message_whose_lease_expired_releases_its_key(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(keyed(b"head", timer_id="head"))
        await store.publish(keyed(b"next"))
        await claim_one(store, lease=LEASE)
        clock.advance(LEASE)

        assert await store.cancel(QUEUE, "head")

        assert await claim_bodies(store) == [b"next"]

    async def test_cancelling_a_message_in_the_middle_leaves_the_rest_in_order(
        self, store: FullStore
    ) -> None:
        await store.publish(keyed(b"a"))
        await store.publish(keyed(b"b", timer_id="b"))
        await store.publish(keyed(b"c"))

        assert await store.cancel(QUEUE, "b")

        assert await one_after_another(store, 2) == [b"a", b"c"]

    async def test_a_key_is_free_after_everything_waiting_was_cancelled(self, store: FullStore) -> None:
        await store.publish_batch([keyed(b"head"), keyed(b"next")])
        await settle_one(store, await claim_one(store), Retry(HOUR))

        assert await store.cancel_all(QUEUE) == 2

        await store.publish(keyed(b"fresh"))
        assert await claim_bodies(store) == [b"fresh"]

    # ------------------------------------------------------------------------------ a place in the line

    async def test_a_message_replaced_while_it_waits_keeps_its_place(self, store: FullStore) -> None:
        await store.publish(keyed(b"a"))
        await store.publish(keyed(b"b", timer_id="b"))
        await store.publish(keyed(b"c"))

        await store.publish(keyed(b"b, replaced", timer_id="b", on_conflict="replace"))

        assert await one_after_another(store, 3) == [b"a", b"b, replaced", b"c"]

    async def test_a_started_message_replaced_while_it_waits_keeps_its_place(self, store: FullStore) -> None:
        await store.publish(keyed(b"head", timer_id="head"))
        await store.publish(keyed(b"next"))
        await settle_one(store, await claim_one(store), Retry(HOUR))

        await store.publish(keyed(b"head, replaced", timer_id="head", on_conflict="replace"))

        assert await one_after_another(store, 2) == [b"head, replaced", b"next"]

    async def test_a_started_message_replaced_onto_another_key_leaves_its_old_key_free(
        self, store: FullStore
    ) -> None:
        await store.publish(keyed(b"moves", "old", timer_id="moves"))
        await store.publish(keyed(b"stays", "old"))
        await settle_one(store, await claim_one(store), Retry(HOUR))

        await store.publish(keyed(b"moved", "new", timer_id="moves", on_conflict="replace"))

        assert sorted(await claim_bodies(store)) == [b"moved", b"stays"]

    async def test_a_started_message_replaced_by_one_without_a_key_leaves_its_line(
        self, store: FullStore
    ) -> None:
        await store.publish(keyed(b"leaves", timer_id="leaves"))
        await store.publish(keyed(b"next"))
        await settle_one(store, await claim_one(store), Retry(HOUR))

        await store.publish(message(b"left", timer_id="leaves", on_conflict="replace"))

        assert sorted(await claim_bodies(store)) == [b"left", b"next"]

    async def test_a_message_replaced_by_one_with_a_key_joins_that_line(self, store: FullStore) -> None:
        await store.publish(message(b"joins", timer_id="joins", due=HOUR))
        await store.publish_batch([keyed(b"busy"), keyed(b"next")])
        busy = await claim_one(store)

        await store.publish(keyed(b"joined", timer_id="joins", on_conflict="replace"))

        assert await claim_all(store) == []
        await settle_one(store, busy, Done())
        assert await one_after_another(store, 2) == [b"joined", b"next"]

    async def test_a_started_message_replaced_onto_a_busy_key_waits_there(self, store: FullStore) -> None:
        await store.publish(keyed(b"moves", "old", timer_id="moves"))
        await settle_one(store, await claim_one(store), Retry(HOUR))
        await store.publish_batch([keyed(b"busy", "new"), keyed(b"next", "new")])
        busy = await claim_one(store)

        await store.publish(keyed(b"moved", "new", timer_id="moves", on_conflict="replace"))

        assert await claim_all(store) == []
        await settle_one(store, busy, Done())
        assert await one_after_another(store, 2) == [b"moved", b"next"]

    async def test_a_timer_armed_again_by_its_own_handler_goes_to_the_end_of_its_line(
        self, store: FullStore
    ) -> None:
        await store.publish(keyed(b"tick", timer_id="tick"))
        await store.publish(keyed(b"next"))
        running = await claim_one(store)

        await store.publish(keyed(b"tick again", timer_id="tick"), own=running)

        assert await claim_all(store) == []
        await settle_one(store, running, Done())
        assert await one_after_another(store, 2) == [b"next", b"tick again"]

    async def test_a_message_replaced_while_it_runs_holds_its_key_until_it_is_dropped(
        self, store: FullStore
    ) -> None:
        await store.publish(keyed(b"running", timer_id="head"))
        await store.publish(keyed(b"next"))
        running = await claim_one(store)
        await store.publish(keyed(b"newer", timer_id="head", on_conflict="replace"))
        assert await claim_all(store) == []

        await settle_one(store, running, Retry(HOUR))

        dropped = await claim_one(store)
        assert (dropped.id, dropped.superseded) == (running.id, True)
        await settle_one(store, dropped, Done())
        assert await one_after_another(store, 2) == [b"next", b"newer"]

    # ------------------------------------------------------------------------------------- priority

    async def test_priority_does_not_overtake_a_key(self, store: FullStore) -> None:
        await store.publish(keyed(b"first, low", priority=0))
        await store.publish(keyed(b"second, high", priority=9))
        await store.publish(keyed(b"third, middle", priority=5))

        assert await one_after_another(store, 3) == [b"first, low", b"second, high", b"third, middle"]

    async def test_priority_does_not_run_a_message_beside_the_head_of_its_key(self, store: FullStore) -> None:
        await store.publish(keyed(b"head, low", priority=0))
        head = await claim_one(store)
        await store.publish(keyed(b"next, high", priority=9))

        assert await claim_all(store) == []
        await settle_one(store, head, Retry(HOUR))
        assert await claim_all(store) == []

    async def test_a_message_of_high_priority_behind_its_head_does_not_hide_what_is_below(
        self, store: FullStore
    ) -> None:
        await store.publish(keyed(b"head, low", priority=0))
        await store.publish(keyed(b"next, high", priority=9))
        await store.publish(message(b"free, middle", priority=5))

        assert await claim_bodies(store, limit=2) == [b"free, middle", b"head, low"]

    # ----------------------------------------------------------------------------- when to look again

    async def test_a_message_behind_a_running_head_is_not_worth_looking_for_before_its_head_ends(
        self, store: FullStore, other: FullStore
    ) -> None:
        await store.publish_batch([keyed(b"head"), keyed(b"next")])
        await claim_one(store, lease=LEASE)

        claimed = await other.claim([QUEUE], limit=10, lease=LEASE, token=fresh_token())

        # Due, but not available: answering "now" would make an idle worker spin.
        assert list(claimed.deliveries) == []
        assert claimed.next_in == LEASE

    async def test_a_message_behind_a_postponed_head_is_not_worth_looking_for_before_its_head_is_due(
        self, store: FullStore
    ) -> None:
        await store.publish_batch([keyed(b"head"), keyed(b"next")])
        await settle_one(store, await claim_one(store), Postpone(MINUTE))

        claimed = await store.claim([QUEUE], limit=10, lease=LEASE, token=fresh_token())

        assert list(claimed.deliveries) == []
        assert claimed.next_in == MINUTE

    # ----------------------------------------------------------------------------------- late commits

    @needs("transactions", "concurrent_writers")
    async def test_a_message_that_commits_late_on_a_busy_key_goes_next_and_never_beside(
        self, store: FullStore, other: FullStore, harness: Harness
    ) -> None:
        async with harness.transaction() as transaction:
            await store.publish(keyed(b"published first, committed last"), transaction=transaction)
            await store.publish_batch([keyed(b"overtook it"), keyed(b"waits")])
            async with promptly():
                running = await claim_one(store)
            assert running.body == b"overtook it"

        assert await claim_all(store) == []
        assert await claim_all(other) == []
        await settle_one(store, running, Done())
        assert sorted(await one_after_another(other, 2)) == [b"published first, committed last", b"waits"]

    @needs("transactions", "concurrent_writers")
    async def test_claims_racing_with_a_late_commit_never_start_two_messages_of_one_key(
        self, store: FullStore, other: FullStore, harness: Harness, clock: ManualClock
    ) -> None:
        keys = [f"key-{number}" for number in range(100)]

        for head_start in range(6):
            opened, commit = asyncio.Event(), asyncio.Event()
            committing = asyncio.create_task(publish_late(store, harness, keys, opened, commit))
            await opened.wait()
            await store.publish_batch([keyed(b"early", key) for key in keys])

            # One claim large enough to be still running when the other message of each key commits, and small ones
            # that begin before and after. In any interleaving, the result is the same.
            async with promptly():
                large = asyncio.create_task(claim_all(store, limit=len(keys)))
                small = asyncio.create_task(claim_one_by_one(other, until=large))
                for _ in range(head_start):
                    await asyncio.sleep(0)
                commit.set()
                deliveries = [*await large, *await small]
                await committing

            started = [delivery.ordering_key for delivery in deliveries]
            assert len(started) == len(set(started))
            assert await store.settle([Settlement(delivery, Done()) for delivery in deliveries]) == [
                WriteResult.WRITTEN
            ] * len(deliveries)
            clock.advance(SECOND)
            assert await finish_all(store) == 2 * len(keys) - len(deliveries)


async def publish_late(
    store: FullStore, harness: Harness, keys: Sequence[str], opened: asyncio.Event, commit: asyncio.Event
) -> None:
    """Publish a message for each of these keys in a transaction that stays open until told to commit."""
    async with harness.transaction() as transaction:
        await store.publish_batch([keyed(b"late", key) for key in keys], transaction=transaction)
        opened.set()
        await commit.wait()


async def claim_one_by_one(store: FullStore, *, until: asyncio.Task[Any]) -> list[Delivery]:
    """Claim single messages until this is done."""
    taken: list[Delivery] = []
    while not until.done():
        taken += await claim_all(store, limit=1)
    return taken


async def finish_all(store: FullStore) -> int:
    """Claim and finish until nothing is left; how many messages."""
    finished = 0
    while batch := await claim_all(store):
        await store.settle([Settlement(delivery, Done()) for delivery in batch])
        finished += len(batch)
    return finished


async def one_after_another(store: FullStore, count: int) -> list[bytes]:
    """Claim and finish this many messages, each when it is the only one available."""
    seen = []
    for _ in range(count):
        delivery = await claim_one(store)
        seen.append(delivery)
        await settle_one(store, delivery, Done())
    return bodies(seen)
