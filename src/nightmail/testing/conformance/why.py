"""`why`: for each thing that can hold a message back, one message that is held back by exactly that."""

from __future__ import annotations

from datetime import timedelta

import pytest_asyncio

from nightmail.operations.reasons import (
    Available,
    Delivered,
    Died,
    DueLater,
    Expired,
    KeyHeld,
    Leased,
    Locked,
    NoWorker,
    Paused,
    StopRequested,
    Superseded,
    Unknown,
    WorkerLost,
)
from nightmail.operations.why import why
from nightmail.outcome import Dead, Done, Retry
from nightmail.store import FullStore
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance.build import (
    DAY,
    HOUR,
    LEASE,
    MINUTE,
    QUEUE,
    SECOND,
    bury,
    claim_one,
    message,
    needs,
    settle_one,
    stored,
    timer,
)
from nightmail.testing.conformance.harness import Harness
from nightmail.testing.conformance.workers import FIRST, SECOND_ID, a_report, token_of


class WhyConformance:
    """What is said about one message, on the facts of a real store."""

    @pytest_asyncio.fixture
    async def attended(self, store: FullStore) -> FullStore:
        """The store, with a live worker that consumes the usual queue."""
        await store.report(a_report())
        return store

    async def test_why_a_message_that_is_due_later_does_not_run(
        self, attended: FullStore, clock: ManualClock
    ) -> None:
        fresh = await stored(attended, message(due=3 * HOUR))
        failed = await stored(attended, message())
        await settle_one(attended, await claim_one(attended), Retry(MINUTE, "TimeoutError('10 s')"))

        assert await why(attended, fresh) == [
            DueLater(due_at=clock.now() + 3 * HOUR, due_in=3 * HOUR, attempts=0)
        ]
        (again,) = await why(attended, failed)
        assert again == DueLater(
            due_at=clock.now() + MINUTE, due_in=MINUTE, attempts=1, last_error="TimeoutError('10 s')"
        )
        assert again.text.startswith("attempt 2 is due in 1 min (20")
        assert again.text.endswith("Z), last error TimeoutError('10 s')")
        await attended.report(a_report(state={"subscribers": [{"queues": [QUEUE], "max_attempts": 10}]}))
        (told,) = await why(attended, failed)
        assert told.text.startswith("attempt 2 of 10 is due in 1 min (20")

    async def test_why_a_message_of_a_paused_queue_does_not_run(
        self, attended: FullStore, clock: ManualClock
    ) -> None:
        await attended.publish(message())
        clock.advance(SECOND)
        id_ = await stored(attended, message())
        await attended.pause(QUEUE, by="ann", reason="provider down", until=HOUR)
        since = clock.now()
        clock.advance(SECOND)

        (reason,) = await why(attended, id_)

        assert reason == Paused(
            queue=QUEUE,
            ordering_key=None,
            by="ann",
            cause="provider down",
            since=since,
            paused_for=SECOND,
            until=since + HOUR,
            ends_in=HOUR - SECOND,
            automatic=False,
            behind=2,
            ahead=1,
        )
        assert "by ann for 1 s" in reason.text
        assert '("provider down"), 2 messages ready behind it, 1 message ahead of this one; ' in reason.text
        assert reason.text.endswith("; it ends by itself in 59 min 59 s")

    async def test_why_a_message_of_a_queue_that_a_breaker_paused_does_not_run(
        self, attended: FullStore, clock: ManualClock
    ) -> None:
        id_ = await stored(attended, message())
        await attended.pause(QUEUE, by="host-1/77", until=MINUTE, automatic=True)

        (closed,) = await why(attended, id_)
        clock.advance(MINUTE)
        await attended.report(a_report())
        (half_open,) = await why(attended, id_)

        assert isinstance(closed, Paused)
        assert closed.automatic
        assert closed.text.endswith("in 1 min it lets one message through to try")
        assert half_open.text.endswith("the next claim lets one message through to try")

    async def test_why_a_message_of_a_paused_key_does_not_run(self, attended: FullStore) -> None:
        held = await stored(attended, message(ordering_key="a"))
        free = await stored(attended, message(ordering_key="b"))
        await attended.pause(QUEUE, ordering_key="a", by="ann")

        (reason,) = await why(attended, held)

        assert isinstance(reason, Paused)
        assert (reason.ordering_key, reason.ends_in) == ("a", None)
        assert reason.text.endswith(f"it stays paused until `nightmail resume {QUEUE} --key a`")
        assert [type(each) for each in await why(attended, free)] == [Available]

    async def test_why_a_message_behind_another_of_its_key_does_not_run(self, attended: FullStore) -> None:
        first = await stored(attended, message(ordering_key="acct-7"))
        behind = await stored(attended, message(ordering_key="acct-7"))
        not_started = await why(attended, behind)
        delivery = (await attended.claim([QUEUE], limit=1, lease=LEASE, token=token_of(FIRST, 1))).deliveries[
            0
        ]
        running = await why(attended, behind)
        await settle_one(attended, delivery, Retry(MINUTE, "ConnectionError('refused')"))
        failed = await why(attended, behind)

        at_once = timedelta(0)
        assert not_started == [
            KeyHeld(ordering_key="acct-7", message_id=first, running=False, attempts=0, due_in=at_once)
        ]
        assert running == [
            KeyHeld(ordering_key="acct-7", message_id=first, running=True, attempts=0, due_in=at_once)
        ]
        assert failed == [
            KeyHeld(
                ordering_key="acct-7",
                message_id=first,
                running=False,
                attempts=1,
                due_in=MINUTE,
                last_error="ConnectionError('refused')",
            )
        ]
        told = "its attempt 2 is due in 1 min, last error ConnectionError('refused') (`nightmail why"
        assert f"message {first} goes first; {told}" in failed[0].text
        await attended.report(a_report(state={"subscribers": [{"queues": [QUEUE], "max_attempts": 10}]}))
        (counted,) = await why(attended, behind)
        assert f"message {first} goes first; its attempt 2 of 10 is due in 1 min, last error" in counted.text

    async def test_why_a_message_that_runs_does_not_run_again(
        self, attended: FullStore, clock: ManualClock
    ) -> None:
        id_ = await stored(attended, message())
        await claim_one(attended, lease=HOUR, token=token_of(FIRST, 1))
        clock.advance(10 * SECOND)

        (reason,) = await why(attended, id_)

        assert reason == Leased(
            worker_id=FIRST,
            worker="host-1/77",
            seen_ago=None,
            running_for=10 * SECOND,
            lease_until=clock.now() - 10 * SECOND + HOUR,
            attempts=0,
        )
        assert reason.text.startswith("attempt 1 is with host-1/77 for 10 s, leased until 20")
        clock.advance(MINUTE)
        (silent,) = await why(attended, id_)
        assert "last seen 1 min 10 s ago: if it is gone, another one takes over then" in silent.text

    async def test_why_a_message_held_by_an_unknown_worker_does_not_run(self, store: FullStore) -> None:
        id_ = await stored(store, message())
        await claim_one(store, token=token_of(FIRST, 1))

        (reason,) = await why(store, id_)

        assert isinstance(reason, Leased)
        assert (reason.worker_id, reason.worker) == (FIRST, None)

    async def test_why_a_message_whose_worker_was_lost_does_not_run_yet(
        self, attended: FullStore, clock: ManualClock
    ) -> None:
        id_ = await stored(attended, message())
        await claim_one(attended)
        clock.advance(LEASE + SECOND)
        await attended.report(a_report())

        lost, free = await why(attended, id_)

        assert lost == WorkerLost(lease_until=clock.now() - SECOND, expired_for=SECOND, deliveries=1)
        assert "ended 1 s ago without a result (1 delivery so far)" in lost.text
        assert isinstance(free, Available)

    async def test_why_a_message_without_a_consumer_does_not_run(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        id_ = await stored(store, message(queue="mail"))
        await store.report(a_report(queues=("refunds",)))

        assert await why(store, id_) == [NoWorker(queue="mail", worker=None, seen_ago=None)]
        await store.report(a_report(queues=("mail",)))
        assert [type(each) for each in await why(store, id_)] == [Available]
        clock.advance(30 * SECOND)
        assert [type(each) for each in await why(store, id_)] == [Available]
        clock.advance(SECOND)
        assert await why(store, id_) == [NoWorker(queue="mail", worker="host-1/77", seen_ago=31 * SECOND)]

    async def test_why_a_message_whose_consumers_have_stopped_does_not_run(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        id_ = await stored(store, message(queue="mail2"))
        (never,) = await why(store, id_)
        await store.report(a_report(FIRST, host="host-2", queues=("mail2",)))
        await store.sign_off(FIRST)
        (stopped,) = await why(store, id_)
        clock.advance(HOUR)
        await store.report(a_report(SECOND_ID, host="host-3", queues=("mail2",)))
        clock.advance(2 * DAY)
        (died,) = await why(store, id_)
        await store.report(a_report(FIRST))
        (forgotten,) = await why(store, id_)

        about = "no live worker consumes queue mail2: "
        assert never.text == f"{about}none has been seen within 90 days"
        assert stopped.text == f"{about}the last one was seen 0 s ago, host-2/77"
        assert died.text == forgotten.text == f"{about}the last one was seen 2 d ago, host-3/77"

    async def test_why_a_superseded_message_does_not_run_again(
        self, attended: FullStore, clock: ManualClock
    ) -> None:
        old = await stored(attended, timer("reminder", b"old"))
        delivery = await claim_one(attended, token=token_of(FIRST, 1))
        new = await stored(attended, timer("reminder", b"new", on_conflict="replace"))

        running, superseded = await why(attended, delivery.id)
        clock.advance(LEASE + SECOND)
        await attended.report(a_report())
        lost, waiting = await why(attended, delivery.id)

        assert old == delivery.id
        assert isinstance(running, Leased)
        assert superseded == waiting == Superseded(timer_id="reminder", message_id=new)
        assert isinstance(lost, WorkerLost)

    async def test_why_an_expired_message_will_not_run(self, attended: FullStore, clock: ManualClock) -> None:
        id_ = await stored(attended, message(expires_in=SECOND))
        clock.advance(3 * SECOND)

        expired, free = await why(attended, id_)

        assert expired == Expired(queue=QUEUE, expires_at=clock.now() - 2 * SECOND, expired_for=2 * SECOND)
        assert isinstance(free, Available)

    @needs("transactions", "concurrent_writers")
    async def test_why_a_locked_message_does_not_run(self, attended: FullStore, harness: Harness) -> None:
        id_ = await stored(attended, timer("reminder"))

        async with harness.transaction() as transaction:
            await attended.cancel(QUEUE, "reminder", transaction=transaction)
            reasons = await why(attended, id_)

        assert reasons == [Locked()]

    async def test_why_a_message_that_is_to_be_stopped_still_runs(self, attended: FullStore) -> None:
        id_ = await stored(attended, message())
        await claim_one(attended, token=token_of(FIRST, 1))
        await attended.request_stop(id_, by="ann@laptop")

        running, stopping = await why(attended, id_)

        assert isinstance(running, Leased)
        assert stopping == StopRequested(by="ann@laptop")

    async def test_why_a_dead_message_does_not_run(self, attended: FullStore, clock: ManualClock) -> None:
        letter = await bury(attended, message(b"secret"), Dead("rejected", "ValueError: no\n  more of it"))
        died_at = clock.now()
        clock.advance(MINUTE)

        (reason,) = await why(attended, letter.message_id)

        assert reason == Died(
            id=letter.id,
            queue=QUEUE,
            died_at=died_at,
            died_ago=MINUTE,
            cause="rejected",
            error="ValueError: no",
            attempts=1,
        )
        assert f"rejected after 1 attempt: ValueError: no (`nightmail dead show {letter.id}`)" in reason.text

    async def test_why_a_delivered_message_does_not_run_where_history_is_kept(
        self, attended: FullStore, harness: Harness, clock: ManualClock
    ) -> None:
        forgotten = await stored(attended, message())
        await settle_one(attended, await claim_one(attended), Done())
        keeper = await harness.open(keep_delivered=True)
        try:
            kept = await stored(keeper, message())
            await settle_one(keeper, await claim_one(keeper), Done())
            delivered_at = clock.now()
            clock.advance(MINUTE)

            assert await why(attended, forgotten) == [Unknown()]
            assert await why(attended, kept) == [Delivered(delivered_at=delivered_at, delivered_ago=MINUTE)]
        finally:
            await keeper.close()

    async def test_why_an_available_message_will_run_soon(
        self, attended: FullStore, clock: ManualClock
    ) -> None:
        await attended.publish_batch([message(), message()])
        clock.advance(SECOND)
        id_ = await stored(attended, message())

        (reason,) = await why(attended, id_)

        assert reason == Available(queue=QUEUE, workers=1, within=attended.look_interval, ahead=2)
        assert f"available: 1 live worker looks at queue {QUEUE} at least every " in reason.text
        assert reason.text.endswith("; 2 messages of its queue are ahead of it")

    async def test_an_id_that_never_was_is_not_explained_away(self, attended: FullStore) -> None:
        assert await why(attended, 4711) == [Unknown()]

    async def test_all_that_holds_a_message_back_is_said_in_order(self, store: FullStore) -> None:
        await store.publish(message(ordering_key="a"))
        id_ = await stored(store, message(ordering_key="a", due=HOUR))
        await store.pause(QUEUE, by="ann")
        await store.pause(QUEUE, ordering_key="a", by="bob")

        reasons = await why(store, id_)

        assert [type(each) for each in reasons] == [DueLater, Paused, Paused, KeyHeld, NoWorker]
