"""The registry of workers, and which of them holds what."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from uuid import UUID

from nightmail.controls import LastConsumer, WorkerReport
from nightmail.outcome import Done
from nightmail.store import FullStore
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance.build import (
    DAY,
    HOUR,
    LEASE,
    MINUTE,
    QUEUE,
    SECOND,
    claim_one,
    extend_one,
    message,
    settle_one,
    stored,
)

FIRST, SECOND_ID = "0123456789abcdef", "fedcba9876543210"


def a_report(id_: str = FIRST, **changes: object) -> WorkerReport:
    """What a worker says about itself."""
    said = {"host": "host-1", "pid": 77, "version": "1.2.3", "queues": (QUEUE, "żółć"), **changes}
    return WorkerReport(id=id_, **said)  # type: ignore[arg-type]


def token_of(worker_id: str, number: int) -> UUID:
    """A token as that worker makes them."""
    return UUID(bytes=bytes.fromhex(worker_id) + number.to_bytes(8, "big"))


class WorkersConformance:
    """`report`, `sign_off`, `workers`, `last_consumers` and `leases`."""

    async def test_a_worker_that_reported_is_listed_with_what_it_said(
        self, store: FullStore, other: FullStore, clock: ManualClock
    ) -> None:
        await store.report(a_report(state={"running": 3, "said": "zażółć"}))

        (worker,) = await other.workers()

        assert (worker.id, worker.host, worker.pid, worker.version) == (FIRST, "host-1", 77, "1.2.3")
        assert worker.queues == (QUEUE, "żółć")
        assert dict(worker.state) == {"running": 3, "said": "zażółć"}
        assert (worker.started_at, worker.seen_at) == (clock.now(), clock.now())

    async def test_a_later_report_takes_the_place_of_the_first(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        started = clock.now()
        await store.report(a_report(state={"running": 1}))
        clock.advance(10 * SECOND)

        await store.report(a_report(queues=("refunds",)))

        (worker,) = await store.workers()
        assert (worker.queues, dict(worker.state)) == (("refunds",), {})
        assert (worker.started_at, worker.seen_at) == (started, clock.now())

    async def test_workers_are_listed_by_host_and_pid(self, store: FullStore) -> None:
        await store.report(a_report("11" * 8, host="b", pid=1))
        await store.report(a_report("22" * 8, host="a", pid=12))
        await store.report(a_report("33" * 8, host="a", pid=7))

        assert [(each.host, each.pid) for each in await store.workers()] == [("a", 7), ("a", 12), ("b", 1)]

    async def test_a_worker_that_signs_off_is_forgotten(self, store: FullStore, other: FullStore) -> None:
        await store.report(a_report(FIRST))
        await store.report(a_report(SECOND_ID))

        await other.sign_off(FIRST)
        await other.sign_off(FIRST)

        assert [each.id for each in await store.workers()] == [SECOND_ID]

    async def test_a_worker_that_died_is_listed_for_a_day(self, store: FullStore, clock: ManualClock) -> None:
        await store.report(a_report(FIRST))
        clock.advance(timedelta(days=1))
        assert [each.id for each in await store.workers()] == [FIRST]
        clock.advance(SECOND)

        await store.report(a_report(SECOND_ID))

        assert [each.id for each in await store.workers()] == [SECOND_ID]

    async def test_the_last_consumer_of_each_queue_is_known_after_it_signed_off(
        self, store: FullStore, other: FullStore, clock: ManualClock
    ) -> None:
        seen = clock.now()
        await store.report(a_report(pid=78))
        clock.advance(10 * SECOND)

        await other.sign_off(FIRST)

        clock.advance(2 * DAY)
        last = LastConsumer(host="host-1", pid=78, seen_at=seen)
        assert await store.last_consumers() == {QUEUE: last, "żółć": last}

    async def test_the_last_consumer_of_a_queue_is_known_after_it_was_forgotten(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        seen = clock.now()
        await store.report(a_report(FIRST, queues=("mail",)))
        clock.advance(2 * DAY)
        not_yet_forgotten = await store.last_consumers()

        await store.report(a_report(SECOND_ID, host="host-2"))

        forgotten = LastConsumer(host="host-1", pid=77, seen_at=seen)
        live = LastConsumer(host="host-2", pid=77, seen_at=clock.now())
        assert not_yet_forgotten == {"mail": forgotten}
        assert await store.last_consumers() == {"mail": forgotten, QUEUE: live, "żółć": live}

    async def test_a_queue_that_a_worker_stops_consuming_while_it_goes_on_keeps_it_as_its_last_consumer(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        seen = clock.now()
        await store.report(a_report(queues=("mail", "refunds")))
        clock.advance(10 * SECOND)

        await store.report(a_report(queues=("refunds",)))
        clock.advance(10 * SECOND)
        await store.report(a_report(queues=("refunds", QUEUE)))

        assert {name: each.seen_at for name, each in (await store.last_consumers()).items()} == {
            "mail": seen,
            "refunds": clock.now(),
            QUEUE: clock.now(),
        }

    async def test_of_several_consumers_that_left_the_one_seen_last_is_known(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        third, fourth = "33" * 8, "44" * 8
        await store.report(a_report(FIRST, host="a"))
        clock.advance(SECOND)
        await store.report(a_report(SECOND_ID, host="b"))
        clock.advance(SECOND)
        await store.report(a_report(third, host="c"))
        seen = clock.now()

        await store.sign_off(third)
        await store.sign_off(FIRST)
        clock.advance(2 * DAY)
        await store.report(a_report(fourth, queues=()))

        last = LastConsumer(host="c", pid=77, seen_at=seen)
        assert await store.last_consumers() == {QUEUE: last, "żółć": last}

        await store.report(a_report(fourth, host="d", queues=(QUEUE,)))
        await store.sign_off(fourth)

        newer = LastConsumer(host="d", pid=77, seen_at=clock.now())
        assert await store.last_consumers() == {QUEUE: newer, "żółć": last}

    async def test_workers_of_the_same_queues_may_leave_at_once(
        self, store: FullStore, other: FullStore, clock: ManualClock
    ) -> None:
        ids = [f"{number:016x}" for number in range(6)]
        for number, id_ in enumerate(ids):
            names = [f"queue {(number + step) % 6}" for step in range(6)]
            await store.report(a_report(id_, pid=number, queues=tuple(names)))
            clock.advance(SECOND)

        await asyncio.gather(*(each.sign_off(id_) for id_, each in zip(ids, [store, other] * 3, strict=True)))

        assert await store.workers() == []
        last = await store.last_consumers()
        assert {name: each.pid for name, each in last.items()} == {f"queue {n}": 5 for n in range(6)}

    async def test_the_last_consumer_of_a_queue_is_forgotten_after_ninety_days(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await store.report(a_report(FIRST, queues=("left",)))
        await store.sign_off(FIRST)
        await store.report(a_report(SECOND_ID, queues=("died",)))
        clock.advance(90 * DAY)
        assert set(await store.last_consumers()) == {"left", "died"}
        clock.advance(SECOND)
        assert await store.last_consumers() == {}

        # Whatever is written then.
        await store.report(a_report(FIRST, queues=("mail",)))
        await store.sign_off(FIRST)

        clock.move_to(clock.now() - MINUTE)
        assert set(await store.last_consumers()) == {"mail"}

    async def test_leases_name_the_worker_by_the_token_the_longest_running_first(
        self, store: FullStore, other: FullStore, clock: ManualClock
    ) -> None:
        first_id = await stored(store, message(b"first"))
        begun = clock.now()
        first = await claim_one(store, token=token_of(FIRST, 1))
        await extend_one(store, first, HOUR)
        clock.advance(MINUTE)
        second_id = await stored(store, message(b"second", queue="refunds"))
        await claim_one(other, "refunds", token=token_of(SECOND_ID, 1))

        held = await store.leases()

        assert [(each.id, each.queue, each.worker_id) for each in held] == [
            (first_id, QUEUE, FIRST),
            (second_id, "refunds", SECOND_ID),
        ]
        assert [(each.claimed_at, each.lease_until) for each in held] == [
            (begun, begun + HOUR),
            (clock.now(), clock.now() + LEASE),
        ]
        assert [(each.attempts, each.deliveries) for each in held] == [(0, 1), (0, 1)]
        assert [each.id for each in await store.leases(limit=1)] == [first_id]

    async def test_what_waits_and_what_ended_holds_no_lease(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(message(b"done"))
        await settle_one(store, await claim_one(store), Done())
        await store.publish(message(b"expired"))
        await claim_one(store)
        clock.advance(LEASE)
        await store.publish(message(b"waiting"))

        assert await store.leases() == []
