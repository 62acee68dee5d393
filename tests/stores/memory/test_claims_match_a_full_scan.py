"""The memory store keeps messages where a claim will find them; a plain look at every row comes to the same."""

from __future__ import annotations

import random
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime, timedelta
from uuid import uuid4

import pytest

from nightmail.errors import LeaseLost
from nightmail.message import Delivery, Message
from nightmail.outcome import Dead, Done, Outcome, Postpone, Release, Retry
from nightmail.store import Settlement
from nightmail.stores.memory import MemoryStore, MemoryTransaction
from nightmail.stores.memory.rows import Row
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance import RolledBack

pytestmark = pytest.mark.memory

QUEUE = "orders"
LEASE = timedelta(seconds=30)
SECOND = timedelta(seconds=1)
STEPS = [*["publish"] * 5, *["claim"] * 3, *["settle"] * 3, *["clock"] * 2, *["verb"] * 2, "rollback"]


@pytest.mark.parametrize("seed", range(20))
async def test_random_work_is_claimed_as_by_a_plain_look(seed: int) -> None:
    chance = random.Random(seed)
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    in_hand: list[Delivery] = []
    claimed_so_far = 0

    for _ in range(300):
        match chance.choice(STEPS):
            case "publish":
                await store.publish(any_message(chance))
            case "claim":
                limit = chance.randrange(1, 12)
                expected = plain_look(store, clock.now(), limit, claimed_so_far)
                claimed = await store.claim([QUEUE], limit=limit, lease=LEASE, token=uuid4())
                assert ([delivery.id for delivery in claimed.deliveries], claimed.next_in) == expected
                claimed_so_far += len(claimed.deliveries)
                in_hand += claimed.deliveries
            case "settle" if in_hand:
                delivery = in_hand.pop(chance.randrange(len(in_hand)))
                await store.settle([Settlement(delivery, any_outcome(chance))])
            case "clock":
                clock.advance(SECOND * chance.choice([-5, 1, 1, 5, 40]))
            case "verb":
                await any_verb(chance, store, in_hand)
            case "rollback":
                await nothing_changes_by_a_rollback(chance, store, in_hand)


def any_message(chance: random.Random) -> Message:
    timer_id = chance.choice([None, None, "a", "b", "c"])
    return Message(
        queue=QUEUE,
        body=b"hello",
        due=SECOND * chance.choice([-1, 0, 1, 3, 50]),
        priority=chance.choice([0, 0, 3, 9]),
        ordering_key=chance.choice([None, "k", "l"]),
        timer_id=timer_id,
        on_conflict=chance.choice(["skip", "replace", "earliest", "latest"]) if timer_id else "skip",
    )


def any_outcome(chance: random.Random) -> Outcome:
    after = SECOND * chance.choice([0, 2, 20])
    outcomes: list[Outcome] = [Done(), Dead("rejected"), Release(), Retry(after), Postpone(after)]
    return chance.choice(outcomes)


async def any_verb(
    chance: random.Random,
    store: MemoryStore,
    in_hand: list[Delivery],
    transaction: MemoryTransaction | None = None,
) -> None:
    timer_id = chance.choice("abc")
    match chance.choice(["publish", "cancel", "reschedule", "re-arm", "extend", "ack"]):
        case "publish":
            await store.publish(any_message(chance), transaction=transaction)
        case "cancel":
            await store.cancel(QUEUE, timer_id, transaction=transaction)
        case "reschedule":
            await store.reschedule(QUEUE, timer_id, SECOND * chance.choice([0, 10]), transaction=transaction)
        case "re-arm" if in_hand:
            own = chance.choice(in_hand)
            again = Message(queue=QUEUE, body=b"again", timer_id=own.timer_id)
            with suppress(LeaseLost):
                await store.publish(again, own=own, transaction=transaction)
        case "extend" if transaction is None:
            await store.extend(in_hand, LEASE)
        case "ack" if in_hand and transaction is not None:
            with suppress(LeaseLost):
                await store.ack([chance.choice(in_hand)], transaction=transaction)


async def nothing_changes_by_a_rollback(
    chance: random.Random, store: MemoryStore, in_hand: list[Delivery]
) -> None:
    rows = store.data.tables.queue(QUEUE).rows
    before = {id_: row.copy() for id_, row in rows.items()}
    with pytest.raises(RolledBack):
        async with store.data.transaction() as transaction:
            for _ in range(5):
                await any_verb(chance, store, in_hand, transaction)
            raise RolledBack
    assert rows == before


def plain_look(
    store: MemoryStore, now: datetime, limit: int, claimed_so_far: int
) -> tuple[list[int], timedelta | None]:
    """What a claim must answer, found by looking at every row for every message it takes."""
    rows = [row.copy() for row in store.data.tables.queue(QUEUE).rows.values()]
    oldest = (claimed_so_far + limit) // 8 - claimed_so_far // 8
    taken: list[Row] = []
    while len(taken) < limit:
        free = [row for row in rows if is_free(row, rows, now)]
        if not free:
            moments = [row.lease_until if row.running(now) else row.due_at for row in rows]
            ahead = [moment - now for moment in moments if moment is not None and moment > now]
            # All there was: the share is an eighth of that, not of what was asked for.
            oldest = (claimed_so_far + len(taken)) // 8 - claimed_so_far // 8
            by_age = sorted(taken, key=lambda row: (row.due_at, row.id))
            rest = sorted(by_age[oldest:], key=lambda row: (-row.priority, row.due_at, row.id))
            return [row.id for row in by_age[:oldest] + rest], min(ahead, default=None)
        if len(taken) < oldest:
            row = min(free, key=lambda row: (row.due_at, row.id))
        else:
            row = min(free, key=lambda row: (-row.priority, row.due_at, row.id))
        row.lease(uuid4(), now + LEASE, now)
        taken.append(row)
    return [row.id for row in taken], None


def is_free(row: Row, rows: Iterable[Row], now: datetime) -> bool:
    if row.running(now) or row.due_at > now:
        return False
    if row.ordering_key is None or row.head_key is not None:
        return True
    line = [other for other in rows if other.ordering_key == row.ordering_key]
    return not any(other.head_key or (other.due_at <= now and other.id < row.id) for other in line)
