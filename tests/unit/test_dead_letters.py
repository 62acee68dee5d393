"""A worker that looks after dead letters: each is handled, tried again, or given up, and none is lost."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from uuid import uuid4

import pytest

from nightmail.engine import current
from nightmail.engine.attempt import Batched, Handler
from nightmail.engine.dead_letters import DeadLetters
from nightmail.engine.settings import WorkerSettings
from nightmail.engine.worker import Worker
from nightmail.message import DeadDelivery, Delivery, Message
from nightmail.outcome import Dead, Done, Outcome, Postpone, Release, Retry
from nightmail.records import DeadFilter, DeadLetter
from nightmail.retry import ConstantRetry
from nightmail.store import Settlement
from nightmail.stores.memory import MemoryData, MemoryStore
from nightmail.testing.clock import ManualClock
from tests.unit.faulty import FaultyStore, Gate, lost_reply
from tests.unit.support import QUEUE, Seen, at_work, publish, publish_timer, soon, take
from tests.unit.support import Handler as HeldHandler

LATER = timedelta(minutes=10)
POLICY = ConstantRetry(delay=LATER, jitter=0.0, max_attempts=2)
SETTINGS = WorkerSettings(max_workers=1, retry=POLICY)


async def died(store: FaultyStore, count: int = 1, reason: str = "broken") -> None:
    """Publish so many messages, and let them die."""
    await publish(store, count)
    await bury(store, reason)


async def bury(store: FaultyStore, reason: str = "broken") -> None:
    """Let all that is due die."""
    await store.settle([Settlement(each, Dead(reason, "it hurts")) for each in await take(store, 100)])


async def listed(store: FaultyStore) -> list[DeadLetter]:
    """The dead letters, oldest first."""
    return (await store.dead(DeadFilter()))[::-1]


def worker(
    store: FaultyStore, handler: Handler | Batched, seen: Seen, settings: WorkerSettings = SETTINGS
) -> Worker:
    """One that looks after dead letters."""
    return Worker(DeadLetters(store), handler, queues=[QUEUE], settings=settings, observer=seen)


async def run_once(
    store: FaultyStore, seen: Seen, handler: Handler | Batched, settings: WorkerSettings = SETTINGS
) -> None:
    """Look after what there is until nothing is."""
    await soon(worker(store, handler, seen, settings).run_until_idle())


async def handled(delivery: Delivery) -> None:
    """All is well."""


async def failing(delivery: Delivery) -> None:
    """Nothing is."""
    raise ConnectionError(f"attempt {delivery.attempt}")


async def test_letters_too_large_for_the_worker_stop_neither_it_nor_those_behind_them(
    store: FaultyStore, data: MemoryData, clock: ManualClock, seen: Seen
) -> None:
    for body in (b"x" * 101, b"first", b"y" * 101, b"z" * 101, b"last"):
        await publish(store, 1, body=body)
        await bury(store)
    reader = FaultyStore(MemoryStore(data, clock=clock, max_body_bytes=100))
    bodies: list[bytes] = []

    async def handle(delivery: Delivery) -> None:
        bodies.append(delivery.body)

    await run_once(reader, seen, handle)

    assert bodies == [b"first", b"last"]
    assert [letter.body[:1] for letter in await listed(store)] == [b"x", b"y", b"z"]


async def test_a_letter_that_was_handled_is_gone(store: FaultyStore, clock: ManualClock, seen: Seen) -> None:
    async def handle(delivery: Delivery) -> None:
        assert isinstance(delivery, DeadDelivery)
        letters.append(delivery)

    letters: list[DeadDelivery] = []
    await publish(store, 1, body=b"unrelated", queue="another")
    died_at = clock.now()
    await died(store, 2)
    clock.advance(LATER)
    await run_once(store, seen, handle)

    assert [(each.id, each.message_id, each.queue, each.body) for each in letters] == [
        (1, 2, QUEUE, b"0"),
        (2, 3, QUEUE, b"1"),
    ]
    assert {(each.reason, each.error, each.died_at) for each in letters} == {("broken", "it hurts", died_at)}
    assert {(each.attempts, each.attempt, each.deliveries) for each in letters} == {(0, 1, 1)}
    assert await listed(store) == []
    assert seen.outcomes == [(1, Done()), (2, Done())]


async def test_a_death_wakes_its_dead_letter_handler(store: FaultyStore, seen: Seen) -> None:
    async with at_work(worker(store, handled, seen)):
        await store.until_called("claim_dead")
        await died(store)
        await seen.until_settled(1)

    assert seen.wakes >= 1
    assert await listed(store) == []


async def test_waiting_messages_are_left_alone(store: FaultyStore, seen: Seen) -> None:
    [waiting] = await publish(store)
    await run_once(store, seen, handled)

    assert seen.runs == []
    assert [each.id for each in await store.peek(QUEUE)] == [waiting]


async def test_a_letter_whose_handler_fails_is_tried_again_by_the_policy_and_then_given_up(
    store: FaultyStore, clock: ManualClock, seen: Seen
) -> None:
    await died(store)
    [before] = await listed(store)

    for _ in range(3):
        await run_once(store, seen, failing)
        clock.advance(LATER)

    assert seen.outcomes == [
        (1, Retry(LATER)),
        (1, Dead("retries_exhausted", "ConnectionError('attempt 2')")),
    ]
    # It stays as it was, its own reason and error included, and it is not offered again.
    assert await listed(store) == [before]
    assert (before.reason, before.error) == ("broken", "it hurts")


async def test_a_letter_that_waits_for_its_next_attempt_is_listed_all_the_time(
    store: FaultyStore, clock: ManualClock, seen: Seen
) -> None:
    await died(store)
    await run_once(store, seen, failing)

    assert [letter.id for letter in await listed(store)] == [1]
    clock.advance(LATER - timedelta(microseconds=1))
    await run_once(store, seen, handled)
    assert seen.runs == [1]
    clock.advance(timedelta(microseconds=1))
    await run_once(store, seen, handled)
    assert await listed(store) == []


@pytest.mark.parametrize("outcome", [Retry(LATER), Postpone(LATER)])
async def test_a_handler_may_say_itself_when_to_look_again(
    store: FaultyStore, clock: ManualClock, seen: Seen, outcome: Outcome
) -> None:
    async def handle(delivery: Delivery) -> Outcome | None:
        attempts.append(delivery.attempt)
        return outcome if len(attempts) == 1 else None

    attempts: list[int] = []
    await died(store)
    await run_once(store, seen, handle)
    clock.advance(LATER)
    await run_once(store, seen, handle)

    # Only a retry counts.
    assert attempts == ([1, 2] if outcome == Retry(LATER) else [1, 1])
    assert await listed(store) == []


async def test_a_letter_that_a_handler_gives_up_stays_and_is_not_offered_again(
    store: FaultyStore, clock: ManualClock, seen: Seen
) -> None:
    async def hopeless(delivery: Delivery) -> Outcome:
        return Dead("hopeless")

    await died(store, 2)
    await run_once(store, seen, hopeless)
    clock.advance(timedelta(days=365))
    await run_once(store, seen, handled)

    assert seen.runs == [1, 2]
    assert [letter.reason for letter in await listed(store)] == ["broken", "broken"]


async def test_a_letter_may_be_tried_from_its_death_on_however_old_the_message_was(
    store: FaultyStore, clock: ManualClock, seen: Seen
) -> None:
    settings = WorkerSettings(max_workers=1, retry=POLICY, give_up_after=2 * LATER)
    await publish(store)
    clock.advance(timedelta(days=30))
    await bury(store)

    clock.advance(2 * LATER - timedelta(microseconds=1))
    await run_once(store, seen, failing, settings)
    assert seen.outcomes == [(1, Retry(LATER))]
    clock.advance(LATER)
    await run_once(store, seen, failing, settings)

    assert seen.runs == [1]
    assert seen.of(1)[1:] == [Dead("expired", ran=False)]
    assert [letter.reason for letter in await listed(store)] == ["broken"]


async def test_a_letter_of_a_message_that_expired_is_handled_like_any_other(
    store: FaultyStore, clock: ManualClock, seen: Seen
) -> None:
    await publish(store, expires_in=timedelta(seconds=1))
    clock.advance(LATER)
    await soon(Worker(store, handled, queues=[QUEUE], observer=seen).run_until_idle())
    assert [letter.reason for letter in await listed(store)] == ["expired"]
    assert seen.runs == []

    await run_once(store, seen, handled)

    assert seen.runs == [1]
    assert await listed(store) == []


async def test_a_letter_that_kills_its_worker_too_often_is_given_up_unrun(
    store: FaultyStore, clock: ManualClock, seen: Seen
) -> None:
    settings = WorkerSettings(max_workers=1, max_deliveries=2)
    await died(store)
    for _ in range(2):
        await store.claim_dead([QUEUE], limit=1, lease=timedelta(seconds=1), token=uuid4())
        clock.advance(timedelta(seconds=2))

    await run_once(store, seen, handled, settings)

    assert seen.runs == []
    assert seen.outcomes == [(1, Dead("max_deliveries", ran=False))]
    assert len(await listed(store)) == 1


async def test_letters_come_in_batches_too(store: FaultyStore, seen: Seen) -> None:
    async def handle(batch: Sequence[Delivery]) -> Sequence[Outcome | Exception | None]:
        batches.append([each.id for each in batch])
        return [ConnectionError() if each.id == 2 else None for each in batch]

    batches: list[list[int]] = []
    await died(store, 3)
    await run_once(store, seen, Batched(handle))

    assert batches == [[1, 2, 3]]
    assert [letter.id for letter in await listed(store)] == [2]


async def test_what_runs_when_the_worker_stops_is_handed_back_uncounted(
    store: FaultyStore, seen: Seen
) -> None:
    handler = HeldHandler(held=True)
    stopped = worker(store, handler, seen, WorkerSettings(max_workers=1, graceful_timeout=timedelta(0)))
    await died(store)
    async with at_work(stopped):
        await handler.until_running(1)
        await soon(stopped.stop())

    assert seen.outcomes == [(1, Release())]
    handler.let_go()
    await run_once(store, seen, handler)
    assert [(each.attempts, each.deliveries) for each in handler.deliveries] == [(0, 1), (0, 1)]


async def test_what_a_claim_took_before_its_reply_was_lost_is_recalled(
    store: FaultyStore, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nightmail.engine.next_look.FIRST_BACKOFF", 0.001)
    await died(store, 2)
    store.upset("claim_dead", lost_reply)
    await run_once(store, seen, handled)

    assert store.calls["recall_dead"] == 1
    assert (store.calls["claim"], store.calls["recall"]) == (1, 0)
    assert seen.outcomes == [(1, Done()), (2, Done())]


async def test_two_workers_never_handle_one_letter_at_the_same_time(
    store: FaultyStore, data: MemoryData, seen: Seen
) -> None:
    handler = HeldHandler(held=True)
    await died(store)
    async with at_work(worker(store, handler, seen), worker(store, handler, seen)):
        await handler.until_running(1)
        await store.until_called("claim_dead", 2)
        assert handler.running == 1
        handler.let_go()
        await seen.until_settled(1)

    assert len(handler.deliveries) == 1


async def test_a_letter_under_a_timer_id_is_no_handlers_own_delivery(
    store: FaultyStore, clock: ManualClock, seen: Seen
) -> None:
    async def handle(delivery: Delivery) -> None:
        # Publishing under the same timer id again is a plain publish: the letter has no timer id.
        owns.extend(current.own_delivery(source, QUEUE, "daily") for source in (store, letters))
        published.append(await store.publish(Message(queue=QUEUE, body=b"again", timer_id="daily")))

    owns: list[Delivery | None] = []
    published: list[int | None] = []
    await publish_timer(store, "daily")
    await bury(store)
    letters = DeadLetters(store)
    await soon(Worker(letters, handle, queues=[QUEUE], settings=SETTINGS, observer=seen).run_until_idle())

    assert owns == [None, None]
    assert published == [2]
    assert await listed(store) == []


async def test_a_letter_may_be_acknowledged_in_the_handlers_own_transaction(
    store: FaultyStore, data: MemoryData, clock: ManualClock, seen: Seen
) -> None:
    async def handle(delivery: Delivery) -> None:
        async with data.transaction() as transaction:
            await store.ack([delivery], transaction=transaction)
            current.acked_in_transaction([delivery])
            if delivery.attempt == 1:
                raise ConnectionError

    await died(store)
    await run_once(store, seen, handle)
    assert [letter.id for letter in await listed(store)] == [1]
    clock.advance(LATER)
    await run_once(store, seen, handle)

    # The rollback was a failed attempt, and after the commit there was nothing to write.
    assert seen.outcomes == [(1, Retry(LATER))]
    assert (seen.lost, seen.uncertainties) == ([], [])
    assert await listed(store) == []


async def test_what_is_finished_but_not_yet_written_is_held(store: FaultyStore, seen: Seen) -> None:
    await died(store)
    gate = store.upset("settle", Gate())
    async with at_work(worker(store, handled, seen)):
        await soon(gate.reached.wait())
        # Neither a redrive nor a purge takes it away.
        assert await store.redrive(await listed(store)) == []
        assert await store.purge(DeadFilter(), limit=10) == 0
        gate.open()
        await seen.until_settled(1)

    assert await listed(store) == []
