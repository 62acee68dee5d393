"""What an operator asks for by id, page by page, and by cause of death."""

from __future__ import annotations

from datetime import datetime, timedelta

from nightmail.outcome import Dead, Done, Retry, WriteResult
from nightmail.records import DeadFilter, DeadGroup, DeadSummary
from nightmail.store import FullStore
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance.build import (
    HOUR,
    LEASE,
    MINUTE,
    QUEUE,
    SECOND,
    bodies,
    claim_all,
    claim_one,
    message,
    running_timer,
    settle_one,
    stored,
    timer,
)

EVERYTHING = DeadFilter()


async def died(
    store: FullStore, *, queue: str = QUEUE, reason: str = "rejected", error: str | None = None
) -> None:
    """A message that was given up at once."""
    await store.publish(message(queue=queue))
    ended = await settle_one(store, await claim_one(store, queue), Dead(reason, error))
    assert ended is WriteResult.WRITTEN


class FindConformance:
    """`find`, `peek` page by page, and `summarize_dead`."""

    # ------------------------------------------------------------------------------------------ find

    async def test_finding_shows_everything_about_a_waiting_message(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        now = clock.now()
        id_ = await stored(
            store,
            timer(
                "reminder",
                b"\x00hello",
                headers={"trace": "żółć"},
                due=MINUTE,
                expires_in=HOUR,
                ordering_key="customer-7",
                priority=4,
            ),
        )

        (found,) = await store.find([id_])

        assert (found.id, found.queue, found.timer_id) == (id_, QUEUE, "reminder")
        assert (found.body, found.headers) == (b"\x00hello", {"trace": "żółć"})
        assert (found.ordering_key, found.priority) == ("customer-7", 4)
        assert (found.published_at, found.due_at, found.expires_at) == (now, now + MINUTE, now + HOUR)
        assert (found.attempts, found.deliveries, found.superseded, found.running) == (0, 0, False, False)
        assert (found.claimed_at, found.lease_until) == (None, None)
        assert (found.first_attempt_at, found.last_attempt_at, found.last_error) == (None, None, None)

    async def test_finding_shows_the_lease_of_a_running_message_and_whether_it_holds(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        id_ = await stored(store, message())
        claimed_at = clock.now()
        await claim_one(store)
        clock.advance(LEASE - SECOND)

        (running,) = await store.find([id_])
        clock.advance(SECOND)
        (expired,) = await store.find([id_])

        assert (running.running, expired.running) == (True, False)
        for found in (running, expired):
            assert (found.claimed_at, found.lease_until) == (claimed_at, claimed_at + LEASE)
            assert (found.attempts, found.deliveries) == (0, 1)

    async def test_finding_a_message_that_failed_shows_its_attempts(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        id_ = await stored(store, message())
        claimed_at = clock.now()
        await settle_one(store, await claim_one(store), Retry(MINUTE, "TimeoutError()"))

        (found,) = await store.find([id_])

        assert (found.attempts, found.deliveries, found.running) == (1, 0, False)
        assert (found.claimed_at, found.lease_until) == (None, None)
        assert (found.first_attempt_at, found.last_attempt_at) == (claimed_at, claimed_at)
        assert found.last_error == "TimeoutError()"
        assert found.due_at == claimed_at + MINUTE

    async def test_finding_shows_a_superseded_message_and_the_one_that_replaced_it(
        self, store: FullStore
    ) -> None:
        old = await running_timer(store)
        new = await stored(store, timer("reminder", b"new", on_conflict="replace"))

        found = await store.find([new, old.id])

        assert [(each.id, each.superseded, each.running) for each in found] == [
            (old.id, True, True),
            (new, False, False),
        ]

    async def test_finding_goes_by_id_through_all_queues_and_leaves_out_what_is_gone(
        self, store: FullStore
    ) -> None:
        gone = await stored(store, message())
        await settle_one(store, await claim_one(store), Done())
        order = await stored(store, message(b"order"))
        refund = await stored(store, message(b"refund", queue="refunds"))

        found = await store.find([refund, gone, order, order, 2**62, -1, 0])

        assert sorted(bodies(found)) == [b"order", b"refund"]
        assert [each.id for each in found] == sorted([order, refund])
        assert await store.find([gone]) == []
        assert await store.find([]) == []

    async def test_finding_takes_nothing(self, store: FullStore) -> None:
        id_ = await stored(store, message())

        await store.find([id_])

        assert (await claim_one(store)).deliveries == 1

    async def test_a_dead_letter_is_no_message(self, store: FullStore) -> None:
        id_ = await stored(store, message())
        await settle_one(store, await claim_one(store), Dead("rejected"))
        (letter,) = await store.dead(EVERYTHING)

        assert await store.find([id_, letter.id]) == []

    # ---------------------------------------------------------------------------- peek, page by page

    async def test_pages_of_waiting_messages_follow_one_another(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        # Many are due at the same time, as after a batch; some in other queues, with a key, with another priority.
        await store.publish_batch([message(b"%02d" % number) for number in range(5)])
        await store.publish(message(b"05", queue="refunds"))
        await store.publish(message(b"06", priority=9))
        for number in (7, 8):
            await store.publish(message(b"%02d" % number, ordering_key="customer-7"))
        clock.advance(SECOND)
        await store.publish(message(b"09", due=timedelta(0)))
        await store.publish(message(b"10", due=HOUR, ordering_key="customer-8"))
        everything = [(each.due_at, each.id) for each in await store.peek()]
        assert len(everything) == 11

        for size in (1, 2, 3, 11):
            seen: list[tuple[datetime, int]] = []
            while page := await store.peek(limit=size, cursor=seen[-1] if seen else None):
                assert len(page) <= size
                seen += [(each.due_at, each.id) for each in page]
            assert seen == everything

    async def test_a_page_begins_after_the_last_one_seen_even_if_that_is_gone(self, store: FullStore) -> None:
        first, second, third = await store.publish_batch([message(b"%d" % number) for number in range(3)])
        (seen,) = await store.peek(QUEUE, limit=1)
        assert seen.id == first
        await settle_one(store, (await claim_all(store, limit=1))[0], Done())

        page = await store.peek(QUEUE, cursor=(seen.due_at, first))

        assert [each.id for each in page] == [second, third]
        assert await store.peek(QUEUE, cursor=(seen.due_at, third)) == []

    async def test_a_page_keeps_to_its_conditions(self, store: FullStore, clock: ManualClock) -> None:
        await store.publish(timer("a", b"a", due=MINUTE))
        await store.publish(timer("b", b"b", due=2 * MINUTE))
        await store.publish(timer("c", b"c", due=3 * MINUTE))
        last = 2**62
        soon = clock.now() + MINUTE

        assert bodies(await store.peek(cursor=(soon, last))) == [b"b", b"c"]
        assert bodies(await store.peek(cursor=(soon, 0))) == [b"a", b"b", b"c"]
        assert bodies(await store.peek(QUEUE, due_before=soon + 2 * MINUTE, cursor=(soon, last))) == [b"b"]
        assert bodies(await store.peek(QUEUE, timer_id="a", cursor=(soon, last))) == []
        assert bodies(await store.peek(QUEUE, timer_id="b", cursor=(soon, last))) == [b"b"]
        assert bodies(await store.peek(timer_id="c", cursor=(soon, last))) == [b"c"]

    async def test_a_message_whose_worker_was_lost_has_its_place_on_the_pages(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        ids = await store.publish_batch([message(b"%d" % number) for number in range(3)])
        due = (await store.peek(limit=1))[0].due_at
        await claim_all(store, limit=1)
        assert [each.id for each in await store.peek(cursor=(due, 0))] == ids[1:]
        clock.advance(LEASE)

        assert [each.id for each in await store.peek(cursor=(due, 0))] == ids
        assert [each.id for each in await store.peek(cursor=(due, ids[0]))] == ids[1:]

    # ---------------------------------------------------------------------------------- summarize_dead

    async def test_dead_letters_are_counted_by_queue_reason_and_fingerprint(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        began = clock.now()
        await died(store, error="TimeoutError('10.0.0.1:5432')")
        clock.advance(MINUTE)
        await died(store, error="TimeoutError('10.0.0.77:5432')")
        await died(store, error="KeyError('order-7')", reason="retries_exhausted")
        await died(store, queue="refunds", error="TimeoutError('10.0.0.1:5432')")
        clock.advance(MINUTE)
        await died(store, error="TimeoutError('10.0.0.1:9999')")
        newest = (await store.dead(DeadFilter(error="9999")))[0].id
        (refund,) = [letter.id for letter in await store.dead(DeadFilter(queue="refunds"))]
        (key,) = [letter.id for letter in await store.dead(DeadFilter(error="KeyError"))]

        summary = await store.summarize_dead(EVERYTHING)

        assert summary.count == 5
        assert summary.groups[0] == DeadGroup(
            queue=QUEUE,
            reason="rejected",
            fingerprint="TimeoutError('#.#.#.#:#')",
            count=3,
            first_died_at=began,
            last_died_at=began + 2 * MINUTE,
            newest=newest,
        )
        assert {
            (each.queue, each.reason, each.fingerprint, each.count, each.newest)
            for each in summary.groups[1:]
        } == {
            (QUEUE, "retries_exhausted", "KeyError('#')", 1, key),
            ("refunds", "rejected", "TimeoutError('#.#.#.#:#')", 1, refund),
        }

    async def test_a_fingerprint_is_the_first_line_without_what_has_digits_in_it(
        self, store: FullStore
    ) -> None:
        errors = {
            "plain words, kept": "plain words, kept",
            "first line 1\nsecond line": "first line #",
            "a1b2c3d4-0000-4000-8000-00000000000f at 0x7ffe, user_17 (err-5)": "# at #, # (#)",
            "żółć 7 ½ ٣ ünd9": "żółć # ½ ٣ ü#",
            "--flag x-y _z": "--flag x-y _z",
            "x" * 199 + "123": "#",
            "ż" * 200 + "77": "ż" * 200,
            "": "",
        }
        for error in errors:
            await died(store, error=error)

        summary = await store.summarize_dead(EVERYTHING)

        assert sorted(str(each.fingerprint) for each in summary.groups) == sorted(errors.values())
        assert summary.count == len(errors)

    async def test_dead_letters_without_an_error_are_a_group_too(self, store: FullStore) -> None:
        await died(store, reason="expired")
        await died(store, reason="expired")

        (group,) = (await store.summarize_dead(EVERYTHING)).groups

        assert (group.reason, group.fingerprint, group.count) == ("expired", None, 2)

    async def test_all_are_counted_but_only_the_largest_groups_are_listed(self, store: FullStore) -> None:
        for error, times in (("one", 1), ("two", 2), ("three", 3), ("another one", 1)):
            for _ in range(times):
                await died(store, error=error)

        summary = await store.summarize_dead(EVERYTHING, limit=3)

        assert summary.count == 7
        assert [(each.fingerprint, each.count) for each in summary.groups] == [
            ("three", 3),
            ("two", 2),
            ("another one", 1),
        ]

    async def test_only_those_that_match_every_condition_are_counted(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await died(store, error="ValueError: 50% off")
        await died(store, reason="expired")
        clock.advance(HOUR)
        await died(store, queue="refunds", error="KeyError: 50% off")
        newest = max(letter.id for letter in await store.dead(DeadFilter(queue="refunds")))

        async def count(
            queue: str | None = None,
            reason: str | None = None,
            error: str | None = None,
            older_than: timedelta | None = None,
            ids: tuple[int, ...] | None = None,
        ) -> int:
            which = DeadFilter(queue=queue, reason=reason, error=error, older_than=older_than, ids=ids)
            summary = await store.summarize_dead(which)
            assert sum(group.count for group in summary.groups) == summary.count
            return summary.count

        assert await count() == 3
        assert await count(queue=QUEUE) == 2
        assert await count(reason="expired") == 1
        assert await count(error="50% off") == 2
        assert await count(older_than=MINUTE) == 2
        assert await count(ids=(newest,)) == 1
        assert await count(queue=QUEUE, ids=(newest,)) == 0
        assert await count(queue=QUEUE, error="50% off", reason="rejected", older_than=MINUTE) == 1
        assert await count(ids=()) == 0
        assert await store.summarize_dead(DeadFilter(queue="unused")) == DeadSummary(0, ())
