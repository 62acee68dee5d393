"""`pause`, `resume` and `pauses`, and what a claim makes of them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from nightmail.message import Delivery
from nightmail.outcome import Dead, Done, Reason, Release, Retry, WriteResult
from nightmail.store import Claimed, FullStore, Settlement
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance.build import (
    AT_ONCE,
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
    claim_one,
    extend_one,
    fresh_token,
    message,
    settle_one,
    stored,
    timer,
)
from nightmail.testing.conformance.wakeup import listening

REFUNDS = "refunds"


async def look(store: FullStore, *queues: str, limit: int = 100) -> Claimed:
    """Claim, with all that it answers."""
    return await store.claim(queues or (QUEUE,), limit=limit, lease=LEASE, token=fresh_token())


class PausesConformance:
    """Queues and ordering keys from which nothing is claimed for a while."""

    # ----------------------------------------------------------------------------------------- a queue

    async def test_nothing_is_claimed_of_a_paused_queue_by_any_process(
        self, store: FullStore, other: FullStore
    ) -> None:
        await store.publish(message())

        await store.pause(QUEUE, by="ann")

        assert await claim_all(store) == []
        assert await claim_all(other) == []

    async def test_a_pause_of_one_queue_leaves_the_others_alone(self, store: FullStore) -> None:
        await store.publish(message(b"order"))
        await store.publish(message(b"refund", queue=REFUNDS))

        await store.pause(QUEUE, by="ann")

        assert await claim_bodies(store, QUEUE, REFUNDS) == [b"refund"]

    async def test_a_resumed_queue_is_claimed_from_in_order(self, store: FullStore, other: FullStore) -> None:
        await store.publish_batch([message(b"a"), message(b"b")])
        await store.pause(QUEUE, by="ann")
        await store.publish(message(b"c"))

        assert await other.resume(QUEUE) is True

        assert await claim_bodies(store) == [b"a", b"b", b"c"]

    async def test_resuming_what_is_not_paused_is_false(self, store: FullStore, clock: ManualClock) -> None:
        assert await store.resume(QUEUE) is False
        await store.pause(QUEUE, by="ann", until=MINUTE)
        assert await store.resume(QUEUE, automatic=True) is False
        assert await store.resume(QUEUE, ordering_key="a") is False
        clock.advance(MINUTE)
        assert await store.resume(QUEUE) is False

    async def test_a_pause_ends_by_itself(self, store: FullStore, clock: ManualClock) -> None:
        await store.publish(message())
        await store.pause(QUEUE, by="ann", until=MINUTE)

        clock.advance(MINUTE - MICROSECOND)
        assert await claim_all(store) == []
        clock.advance(MICROSECOND)

        await claim_one(store)
        assert await store.pauses() == []

    async def test_a_pause_until_a_moment_ends_then(self, store: FullStore, clock: ManualClock) -> None:
        await store.publish(message())
        await store.pause(QUEUE, by="ann", until=clock.now() + MINUTE)

        clock.advance(MINUTE)

        await claim_one(store)

    async def test_a_pause_that_ends_in_the_past_is_none(self, store: FullStore, clock: ManualClock) -> None:
        await store.publish(message())
        await store.pause(QUEUE, by="ann")

        await store.pause(QUEUE, by="ann", until=clock.now() - SECOND)

        assert await store.pauses() == []
        await claim_one(store)

    async def test_what_is_due_in_a_paused_queue_does_not_count_but_the_end_of_the_pause_does(
        self, store: FullStore
    ) -> None:
        await store.publish(message())
        await store.publish(message(due=SECOND))
        await store.pause(QUEUE, by="ann")

        forever = await look(store)
        await store.pause(QUEUE, by="ann", until=MINUTE)
        for_a_while = await look(store)

        assert (list(forever.deliveries), forever.next_in, forever.full) == ([], None, False)
        assert (list(for_a_while.deliveries), for_a_while.full) == ([], False)
        assert for_a_while.next_in == MINUTE

    async def test_the_end_of_a_pause_counts_beside_a_queue_with_nothing_due(self, store: FullStore) -> None:
        await store.publish(message())
        await store.publish(message(queue=REFUNDS, due=HOUR))
        await store.pause(QUEUE, by="ann", until=MINUTE)

        claimed = await look(store, QUEUE, REFUNDS)

        assert claimed.next_in is not None
        assert SECOND <= claimed.next_in <= MINUTE

    async def test_pausing_a_queue_that_does_not_exist_yet_holds_what_is_published_later(
        self, store: FullStore
    ) -> None:
        await store.pause("tomorrow", by="ann")

        await store.publish(message(queue="tomorrow"))

        assert await claim_all(store, "tomorrow") == []

    async def test_a_pause_touches_nothing_but_claims(self, store: FullStore, clock: ManualClock) -> None:
        await store.publish(message(b"runs"))
        running = await claim_one(store)
        await store.pause(QUEUE, by="ann")

        await stored(store, timer("reminder", b"first", due=HOUR))
        assert await store.publish(timer("reminder", b"second", due=HOUR)) is None
        assert await store.reschedule(QUEUE, "reminder", MINUTE) is True
        assert await store.cancel(QUEUE, "reminder") is True
        assert await extend_one(store, running) is WriteResult.WRITTEN
        assert await settle_one(store, running, Retry(AT_ONCE)) is WriteResult.WRITTEN

        assert bodies(await store.peek(QUEUE)) == [b"runs"]
        assert (await store.stats())[QUEUE].ready == 1

    async def test_what_was_claimed_before_the_pause_is_handed_back_at_no_cost(
        self, store: FullStore
    ) -> None:
        await store.publish(message())
        delivery = await claim_one(store)
        await store.pause(QUEUE, by="ann")

        assert await settle_one(store, delivery, Release()) is WriteResult.WRITTEN
        assert await claim_all(store) == []
        await store.resume(QUEUE)

        assert (await claim_one(store)).deliveries == 1

    async def test_a_lease_that_ends_during_a_pause_is_not_taken_over_before_its_end(
        self, store: FullStore, other: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(message())
        await claim_one(store)
        await store.pause(QUEUE, by="ann")
        clock.advance(LEASE)

        assert await claim_all(other) == []
        await store.resume(QUEUE)

        assert (await claim_one(other)).deliveries == 2

    async def test_dead_letters_of_a_paused_queue_are_claimed_as_ever(self, store: FullStore) -> None:
        await bury(store, message(b"dead"))

        await store.pause(QUEUE, by="ann")

        assert (await claim_letter(store)).body == b"dead"

    async def test_a_pause_does_not_hide_a_backlog_from_the_other_queues_of_a_claim(
        self, store: FullStore
    ) -> None:
        await store.publish_batch([message() for _ in range(30)])
        await store.publish_batch([message(b"refund", queue=REFUNDS) for _ in range(3)])
        await store.pause(QUEUE, by="ann")

        claimed = await look(store, QUEUE, REFUNDS, limit=10)

        assert bodies(claimed.deliveries) == [b"refund"] * 3
        assert not claimed.full

    # --------------------------------------------------------------------------------- an ordering key

    async def test_nothing_is_claimed_of_a_paused_key_and_everything_else_is(
        self, store: FullStore, other: FullStore
    ) -> None:
        await store.publish(message(b"held back", ordering_key="a"))
        await store.publish(message(b"behind it", ordering_key="a"))
        await store.publish(message(b"another key", ordering_key="b"))
        await store.publish(message(b"no key"))
        await store.publish(message(b"another queue", queue=REFUNDS, ordering_key="a"))

        await store.pause(QUEUE, ordering_key="a", by="ann")

        assert sorted(await claim_bodies(store, QUEUE, REFUNDS)) == [
            b"another key",
            b"another queue",
            b"no key",
        ]
        assert await claim_all(other) == []

    async def test_a_paused_key_with_a_long_backlog_holds_up_nothing_else(self, store: FullStore) -> None:
        await store.publish_batch([message(b"held back", ordering_key="a") for _ in range(300)])
        await store.publish(message(b"free", ordering_key="b"))
        await store.publish(message(b"free"))
        await store.pause(QUEUE, ordering_key="a", by="ann")

        taken: list[Delivery] = []
        for _ in range(5):
            taken += await claim_all(store, limit=10)

        assert bodies(taken) == [b"free", b"free"]

    async def test_what_is_due_in_a_paused_key_does_not_count_but_the_end_of_the_pause_does(
        self, store: FullStore
    ) -> None:
        await store.publish(message(ordering_key="a"))
        await store.pause(QUEUE, ordering_key="a", by="ann")
        forever = await look(store)
        await store.pause(QUEUE, ordering_key="a", by="ann", until=MINUTE)
        for_a_while = await look(store)

        assert (forever.next_in, forever.full) == (None, False)
        assert (for_a_while.next_in, for_a_while.full) == (MINUTE, False)

    async def test_a_resumed_key_goes_on_in_order(self, store: FullStore) -> None:
        for body in (b"first", b"second"):
            await store.publish(message(body, ordering_key="a"))
        await store.pause(QUEUE, ordering_key="a", by="ann")
        assert await claim_all(store) == []

        assert await store.resume(QUEUE, ordering_key="a") is True

        first = await claim_one(store)
        assert first.body == b"first"
        await settle_one(store, first, Done())
        assert await claim_bodies(store) == [b"second"]

    async def test_a_key_paused_while_its_first_runs_lets_that_one_end_and_no_other_begin(
        self, store: FullStore
    ) -> None:
        for body in (b"first", b"second"):
            await store.publish(message(body, ordering_key="a"))
        first = await claim_one(store)
        await store.pause(QUEUE, ordering_key="a", by="ann")

        assert await settle_one(store, first, Done()) is WriteResult.WRITTEN
        assert await claim_all(store) == []
        await store.resume(QUEUE, ordering_key="a")

        assert await claim_bodies(store) == [b"second"]

    async def test_a_paused_key_keeps_a_retry_waiting(self, store: FullStore) -> None:
        await store.publish(message(b"first", ordering_key="a"))
        await store.publish(message(b"second", ordering_key="a"))
        first = await claim_one(store)
        await store.pause(QUEUE, ordering_key="a", by="ann")
        await settle_one(store, first, Retry(AT_ONCE))

        assert await claim_all(store) == []
        await store.resume(QUEUE, ordering_key="a")

        assert await claim_bodies(store) == [b"first"]

    async def test_a_pause_of_a_key_ends_by_itself(self, store: FullStore, clock: ManualClock) -> None:
        await store.publish(message(ordering_key="a"))
        await store.pause(QUEUE, ordering_key="a", by="ann", until=MINUTE)

        clock.advance(MINUTE)

        await claim_one(store)

    # ----------------------------------------------------------------------------------- automatic ones

    async def test_an_automatic_pause_lets_one_message_through_at_a_time(
        self, store: FullStore, other: FullStore, clock: ManualClock
    ) -> None:
        await store.publish_batch([message(b"a"), message(b"b"), message(b"c")])
        await store.pause(QUEUE, by="worker", until=MINUTE, automatic=True)

        clock.advance(MINUTE - MICROSECOND)
        early = await look(store)
        clock.advance(MICROSECOND)
        first = await look(store)
        await store.extend(first.deliveries, HOUR)
        at_once = await look(other)
        clock.advance(MINUTE)
        second = await look(other)

        assert (list(early.deliveries), early.probe, early.next_in) == ([], False, MICROSECOND)
        assert (bodies(first.deliveries), first.probe, first.full) == ([b"a"], True, True)
        assert (list(at_once.deliveries), at_once.probe) == ([], False)
        assert (bodies(second.deliveries), second.probe) == ([b"b"], True)

    async def test_a_probe_is_taken_alone(self, store: FullStore, clock: ManualClock) -> None:
        await store.publish_batch([message(b"order"), message(b"order")])
        await store.publish(message(b"refund", queue=REFUNDS))
        await store.pause(QUEUE, by="worker", until=MINUTE, automatic=True)
        clock.advance(MINUTE)

        probe = await look(store, REFUNDS, QUEUE)
        rest = await look(store, REFUNDS, QUEUE)

        assert (bodies(probe.deliveries), probe.probe) == ([b"order"], True)
        assert (bodies(rest.deliveries), rest.probe) == ([b"refund"], False)

    async def test_an_automatic_pause_is_over_when_it_is_resumed(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await store.publish_batch([message(b"a"), message(b"b"), message(b"c")])
        await store.pause(QUEUE, by="worker", until=MINUTE, automatic=True)
        clock.advance(MINUTE)
        await claim_one(store)

        assert await store.resume(QUEUE, automatic=True) is True

        after = await look(store)
        assert (bodies(after.deliveries), after.probe) == ([b"b", b"c"], False)

    async def test_a_probe_with_nothing_to_take_leaves_the_pause_as_it_is(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(message(due=HOUR))
        await store.pause(QUEUE, by="worker", until=MINUTE, automatic=True)
        clock.advance(MINUTE)

        nothing = await look(store)
        await store.publish(message(b"now"))
        probe = await look(store)

        assert (list(nothing.deliveries), nothing.probe) == ([], False)
        assert nothing.next_in == HOUR - MINUTE
        assert (bodies(probe.deliveries), probe.probe) == ([b"now"], True)

    async def test_a_person_and_a_breaker_pause_and_resume_apart(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(message())
        await store.pause(QUEUE, by="worker", until=MINUTE, automatic=True)
        await store.pause(QUEUE, by="ann")

        assert await store.resume(QUEUE, automatic=True) is True
        assert await claim_all(store) == []
        await store.pause(QUEUE, by="worker", until=MINUTE, automatic=True)
        assert await store.resume(QUEUE) is True
        assert await claim_all(store) == []
        clock.advance(MINUTE)

        assert (await look(store)).probe

    async def test_a_queue_that_a_person_paused_is_not_probed(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(message())
        await store.pause(QUEUE, by="worker", until=MINUTE, automatic=True)
        await store.pause(QUEUE, by="ann")
        clock.advance(HOUR)

        claimed = await look(store)

        assert (list(claimed.deliveries), claimed.probe, claimed.next_in) == ([], False, None)

    async def test_a_longer_automatic_pause_is_renewed_for_as_long(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await store.publish_batch([message(b"a"), message(b"b")])
        await store.pause(QUEUE, by="worker", until=MINUTE, automatic=True)
        await store.pause(QUEUE, by="worker", until=2 * MINUTE, automatic=True)
        clock.advance(2 * MINUTE)
        await claim_one(store)

        (pause,) = await store.pauses(QUEUE)

        assert pause.until == clock.now() + 2 * MINUTE

    async def test_after_a_probe_that_did_not_run_the_next_one_comes_at_once(
        self, store: FullStore, other: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(message(b"stale", expires_in=SECOND))
        await store.publish_batch([message(b"a"), message(b"b")])
        await store.pause(QUEUE, by="worker", until=MINUTE, automatic=True)
        clock.advance(MINUTE)
        stale = await look(store)
        await store.settle([Settlement(stale.deliveries[0], Dead(Reason.EXPIRED, ran=False))])

        await store.probe_again(stale.deliveries[0])

        (pause,) = await store.pauses()
        again = await look(other)
        await other.extend(again.deliveries, HOUR)
        at_once = await look(store)
        clock.advance(MINUTE - MICROSECOND)
        early = await look(store)
        clock.advance(MICROSECOND)
        later = await look(store)
        assert (bodies(stale.deliveries), stale.probe) == ([b"stale"], True)
        assert (pause.automatic, pause.until) == (True, clock.now() - MINUTE)
        assert (bodies(again.deliveries), again.probe) == ([b"a"], True)
        assert [list(at_once.deliveries), list(early.deliveries)] == [[], []]
        assert (bodies(later.deliveries), later.probe) == ([b"b"], True)

    async def test_a_probe_that_did_not_run_is_forgotten_once_there_was_another(
        self, store: FullStore, other: FullStore, clock: ManualClock
    ) -> None:
        await store.publish_batch([message(b"a"), message(b"b"), message(b"c")])
        await store.pause(QUEUE, by="worker", until=MINUTE, automatic=True)
        clock.advance(MINUTE)
        first = await look(store)
        clock.advance(MINUTE)
        second = await look(other)

        await store.probe_again(first.deliveries[0])

        at_once = await look(store)
        assert second.probe
        assert list(at_once.deliveries) == []

    async def test_a_pause_that_was_set_since_a_probe_is_not_cut_short_by_it(
        self, store: FullStore, other: FullStore, clock: ManualClock
    ) -> None:
        await store.publish_batch([message(b"a"), message(b"b")])
        await store.pause(QUEUE, by="worker", until=MINUTE, automatic=True)
        clock.advance(MINUTE)
        probe = await look(store)
        clock.advance(SECOND)
        await other.pause(QUEUE, by="worker", until=HOUR, automatic=True)

        await store.probe_again(probe.deliveries[0])

        (pause,) = await store.pauses()
        assert pause.until == clock.now() + HOUR
        assert list((await look(store)).deliveries) == []

    async def test_a_probe_that_did_not_run_changes_nothing_else(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await store.publish_batch([message(b"a"), message(b"b")])
        await store.pause(QUEUE, by="worker", until=MINUTE, automatic=True)
        clock.advance(MINUTE)
        probe = await look(store)
        await store.resume(QUEUE, automatic=True)
        await store.pause(QUEUE, by="ann", until=HOUR)
        await store.pause(QUEUE, ordering_key="key", by="ann")
        await store.pause(REFUNDS, by="worker", until=HOUR, automatic=True)
        before = await store.pauses()

        await store.probe_again(probe.deliveries[0])

        assert await store.pauses() == before

    # ---------------------------------------------------------------------------------- what is listed

    async def test_pauses_are_listed_with_who_why_and_how_long(
        self, store: FullStore, other: FullStore, clock: ManualClock
    ) -> None:
        now = clock.now()
        await store.pause(REFUNDS, by="ann", reason="provider down", until=HOUR)
        await store.pause(QUEUE, ordering_key="żółć", by="bob")
        await store.pause(QUEUE, by="host-2/77", reason="breaker", until=MINUTE, automatic=True)
        await store.pause(QUEUE, by="bob", reason="release")

        listed = await other.pauses()

        assert [(each.queue, each.ordering_key, each.by, each.reason, each.automatic) for each in listed] == [
            (QUEUE, None, "bob", "release", False),
            (QUEUE, None, "host-2/77", "breaker", True),
            (QUEUE, "żółć", "bob", None, False),
            (REFUNDS, None, "ann", "provider down", False),
        ]
        assert [(each.since, each.until) for each in listed] == [
            (now, None),
            (now, now + MINUTE),
            (now, None),
            (now, now + HOUR),
        ]
        assert [each.queue for each in await other.pauses(REFUNDS)] == [REFUNDS]

    async def test_pausing_again_changes_everything_but_since_when(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        since = clock.now()
        await store.pause(QUEUE, by="ann", reason="one", until=MINUTE)
        clock.advance(SECOND)

        await store.pause(QUEUE, by="bob", reason="two")

        (pause,) = await store.pauses()
        assert (pause.by, pause.reason, pause.since, pause.until) == ("bob", "two", since, None)

    async def test_a_pause_after_one_that_ended_begins_then(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await store.pause(QUEUE, by="ann", until=MINUTE)
        clock.advance(HOUR)

        await store.pause(QUEUE, by="ann")

        (pause,) = await store.pauses()
        assert pause.since == clock.now()

    async def test_an_automatic_pause_past_its_end_is_still_listed(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await store.pause(QUEUE, by="worker", until=MINUTE, automatic=True)
        clock.advance(HOUR)

        assert len(await store.pauses()) == 1

    async def test_a_long_reason_is_cut_and_an_empty_one_is_none(self, store: FullStore) -> None:
        await store.pause(QUEUE, by="ann", reason="x" * 1000)
        await store.pause(REFUNDS, by="ann", reason="")

        long, empty = await store.pauses()

        assert long.reason is not None
        assert len(long.reason) <= 255
        assert empty.reason is None

    # -------------------------------------------------------------------------------------- bad input

    @pytest.mark.parametrize(
        ("queue", "options"),
        [
            ("", {"by": "ann"}),
            ("x" * 256, {"by": "ann"}),
            (QUEUE, {"by": ""}),
            (QUEUE, {"by": "ann", "ordering_key": ""}),
            (QUEUE, {"by": "ann", "automatic": True}),
            (QUEUE, {"by": "ann", "automatic": True, "until": timedelta(0)}),
            (QUEUE, {"by": "ann", "automatic": True, "until": MINUTE, "ordering_key": "a"}),
        ],
    )
    async def test_a_pause_that_makes_no_sense_is_refused_and_nothing_is_paused(
        self, store: FullStore, queue: str, options: dict[str, object]
    ) -> None:
        with pytest.raises(ValueError):
            await store.pause(queue, **options)  # type: ignore[arg-type]

        assert await store.pauses() == []

    @pytest.mark.parametrize(("queue", "ordering_key"), [("", None), (QUEUE, ""), (QUEUE, "x" * 256)])
    async def test_resuming_what_cannot_be_paused_is_refused_and_ends_no_pause(
        self, store: FullStore, queue: str, ordering_key: str | None
    ) -> None:
        await store.pause(QUEUE, by="ann")

        with pytest.raises(ValueError):
            await store.resume(queue, ordering_key=ordering_key)

        assert len(await store.pauses(QUEUE)) == 1

    # ---------------------------------------------------------------------------------------- wake-ups

    async def test_pausing_and_resuming_ring(self, store: FullStore, sender: FullStore) -> None:
        async with listening(store, sender, QUEUE) as ear:
            await sender.pause(QUEUE, by="ann")
            assert await ear.rang()
            ear.forget()
            await sender.resume(QUEUE)
            assert await ear.rang()

    async def test_a_probe_that_did_not_run_rings(
        self, store: FullStore, sender: FullStore, clock: ManualClock
    ) -> None:
        await sender.publish(message())
        await sender.pause(QUEUE, by="worker", until=MINUTE, automatic=True)
        clock.advance(MINUTE)
        probe = await look(sender)
        async with listening(store, sender, QUEUE) as ear:
            await sender.probe_again(probe.deliveries[0])
            assert await ear.rang()
