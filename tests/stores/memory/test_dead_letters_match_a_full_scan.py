"""The memory store keeps dead letters where a claim will find them; a plain look at every letter comes to the same."""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from uuid import uuid4

import pytest

from nightmail.message import Delivery, Message
from nightmail.outcome import Dead, Done, Outcome, Postpone, Release, Retry
from nightmail.store import Settlement
from nightmail.stores.memory import MemoryStore
from nightmail.testing.clock import ManualClock

pytestmark = pytest.mark.memory

QUEUES = ("orders", "refunds")
LEASE = timedelta(seconds=30)
SECOND = timedelta(seconds=1)
STEPS = [*["die"] * 4, *["take"] * 3, *["settle"] * 3, *["clock"] * 2, "extend", "redrive"]


@pytest.mark.parametrize("seed", range(10))
async def test_random_letters_are_taken_as_by_a_plain_look(seed: int) -> None:
    chance = random.Random(seed)
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    in_hand: list[Delivery] = []

    for _ in range(300):
        match chance.choice(STEPS):
            case "die":
                await die(store, chance.choice(QUEUES))
            case "take":
                limit = chance.randrange(1, 5)
                expected = plain_look(store, clock.now(), limit)
                claimed = await store.claim_dead(QUEUES, limit=limit, lease=LEASE, token=uuid4())
                assert ([letter.id for letter in claimed.deliveries], claimed.next_in) == expected
                in_hand += claimed.deliveries
            case "settle" if in_hand:
                letter = in_hand.pop(chance.randrange(len(in_hand)))
                await store.settle([Settlement(letter, any_outcome(chance))])
            case "extend":
                await store.extend(in_hand, LEASE)
            case "clock":
                clock.advance(SECOND * chance.choice([-5, 1, 1, 5, 40]))
            case "redrive":
                letters = [each.record for each in store.data.tables.letters()]
                await store.redrive(chance.sample(letters, min(2, len(letters))), to="elsewhere")


def any_outcome(chance: random.Random) -> Outcome:
    after = SECOND * chance.choice([0, 2, 20])
    outcomes: list[Outcome] = [Done(), Dead("given up"), Release(), Retry(after), Postpone(after)]
    return chance.choice(outcomes)


async def die(store: MemoryStore, queue: str) -> None:
    """A message that is published, claimed and given up."""
    await store.publish(Message(queue=queue, body=b"hello"))
    (delivery,) = (await store.claim([queue], limit=10, lease=LEASE, token=uuid4())).deliveries
    await store.settle([Settlement(delivery, Dead("rejected"))])


def plain_look(store: MemoryStore, now: datetime, limit: int) -> tuple[list[int], timedelta | None]:
    """What a claim must answer, found by looking at every letter."""
    due = {letter.id: letter.due_at for letter in store.data.tables.letters() if letter.due_at is not None}
    held = {
        letter.id: letter.lease_until
        for letter in store.data.tables.letters()
        if letter.lease_until is not None and letter.lease_until > now
    }
    free = sorted((moment, id_) for id_, moment in due.items() if moment <= now and id_ not in held)
    taken = [id_ for _, id_ in free[:limit]]
    if len(taken) == limit:
        return taken, None
    waiting = [moment for id_, moment in due.items() if moment > now and id_ not in held]
    own = [now + LEASE] if taken else []
    return taken, min((moment - now for moment in [*waiting, *held.values(), *own]), default=None)
