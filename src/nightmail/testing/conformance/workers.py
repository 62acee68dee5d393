"""The registry of workers, and which of them holds what."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from nightmail.controls import WorkerReport
from nightmail.outcome import Done
from nightmail.store import FullStore
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance.build import (
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
    """`report`, `sign_off`, `workers` and `leases`."""

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
