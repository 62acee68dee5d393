"""Whatever is done in whatever order, the Redis store answers as the memory store does."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import fields
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from nightmail.errors import LeaseLost, TimerExists
from nightmail.message import Delivery, Message
from nightmail.outcome import Dead, Done, Outcome, Postpone, Release, Retry
from nightmail.records import DeadFilter
from nightmail.store import FullStore, Settlement
from nightmail.stores.memory import MemoryStore
from nightmail.stores.redis import RedisStore
from nightmail.testing.clock import ManualClock

pytestmark = pytest.mark.redis

SECOND = timedelta(seconds=1)
STEPS = 250
QUEUES = ("orders", "refunds")


class Twin:
    """One store of the two, and the ids by which its messages are known in both: the order of publishing."""

    def __init__(self, store: FullStore) -> None:
        self.store = store
        self.names: dict[int, int] = {}
        self.held: list[Delivery] = []

    def name(self, id_: int | None) -> int | None:
        return None if id_ is None else self.names.setdefault(id_, len(self.names))

    async def publish(self, message: Message, own: int | None) -> Any:
        try:
            return self.name(await self.store.publish(message, own=None if own is None else self.held[own]))
        except (LeaseLost, TimerExists) as error:
            return type(error)

    async def claim(self, queues: Sequence[str], limit: int, lease: timedelta, token: UUID) -> Any:
        claimed = await self.store.claim(queues, limit=limit, lease=lease, token=token)
        # In which order queues are served is each store's own affair; within a queue it is not.
        by_queue = [each for queue in queues for each in claimed.deliveries if each.queue == queue]
        self.held += by_queue
        return [self.shown(delivery) for delivery in by_queue], claimed.next_in

    async def settle(self, chosen: list[tuple[int, Outcome]]) -> Any:
        return await self.store.settle([Settlement(self.held[at], outcome) for at, outcome in chosen])

    async def extend(self, chosen: list[int], lease: timedelta) -> Any:
        return await self.store.extend([self.held[at] for at in chosen], lease)

    async def seen(self) -> Any:
        waiting = sorted(
            (pending.queue, self.name(pending.id), pending.due_at, pending.attempts, pending.body)
            for pending in await self.store.peek(limit=1000)
        )
        letters = sorted(
            (letter.queue, self.name(letter.message_id), letter.reason, letter.attempts, letter.deliveries)
            for letter in await self.store.dead(DeadFilter(), limit=1000)
        )
        return await self.store.stats(), waiting, letters

    def shown(self, delivery: Delivery) -> dict[str, Any]:
        shown = {field.name: getattr(delivery, field.name) for field in fields(delivery)}
        return shown | {"id": self.name(delivery.id)}


def any_message(dice: random.Random) -> Message:
    timer = dice.choice([None, None, "a", "b", "c"])
    policy = "skip" if timer is None else dice.choice(["skip", "raise", "replace", "earliest", "latest"])
    return Message(
        queue=dice.choice(QUEUES),
        body=b"%d" % dice.randrange(1000),
        timer_id=timer,
        on_conflict=policy,  # type: ignore[arg-type]
        dedup_for=SECOND * 3 if timer and policy in ("skip", "raise") and dice.random() < 0.3 else None,
        ordering_key=dice.choice([None, None, "k", "l"]),
        priority=dice.choice([0, 0, 0, 5, 9]),
        due=dice.choice([None, None, SECOND, SECOND * 2, SECOND * 5]),
    )


def any_outcome(dice: random.Random) -> Outcome:
    outcomes: list[Outcome] = [Done(), Done(), Retry(SECOND), Retry(), Postpone(SECOND * 2), Release()]
    return dice.choice([*outcomes, Dead("rejected"), Dead("expired", ran=False)])


@pytest.mark.parametrize("seed", range(12))
async def test_the_two_stores_agree_about_everything(redis_url: str, seed: int) -> None:
    dice = random.Random(seed)
    clock = ManualClock()
    redis = RedisStore(redis_url, clock=clock)
    await redis.open()
    try:
        await redis.migrate()
        twins = [Twin(redis), Twin(MemoryStore(clock=clock))]
        for step in range(STEPS):
            deed = dice.choices(
                ["publish", "claim", "settle", "extend", "advance", "cancel", "reschedule", "cancel_all"],
                [30, 20, 20, 5, 15, 4, 4, 1],
            )[0]
            held = len(twins[0].held)
            answers: list[Any] = []
            match deed:
                case "publish":
                    new = any_message(dice)
                    own = dice.randrange(held) if held and dice.random() < 0.2 else None
                    answers = [await twin.publish(new, own) for twin in twins]
                case "claim":
                    # Of several queues all there is, of one a few: whose turn it is differs between the two.
                    queues, limit = dice.choice(
                        [(QUEUES, 1000), *[([queue], n) for queue in QUEUES for n in (1, 4)]]
                    )
                    lease, token = SECOND * dice.choice([1, 3]), UUID(int=dice.getrandbits(128))
                    answers = [await twin.claim(queues, limit, lease, token) for twin in twins]
                case "settle" if held:
                    chosen = [(dice.randrange(held), any_outcome(dice)) for _ in range(dice.choice([1, 3]))]
                    chosen = list(dict(chosen).items())
                    answers = [await twin.settle(chosen) for twin in twins]
                case "extend" if held:
                    some = [dice.randrange(held) for _ in range(2)]
                    answers = [await twin.extend(some, SECOND * 2) for twin in twins]
                case "advance":
                    clock.advance(SECOND * dice.choice([0.3, 1, 2]))
                case "cancel":
                    name = dice.choice("abc")
                    answers = [await twin.store.cancel("orders", name) for twin in twins]
                case "reschedule":
                    name, due = dice.choice("abc"), SECOND * dice.choice([-1, 0, 1, 4])
                    answers = [await twin.store.reschedule("orders", name, due) for twin in twins]
                case "cancel_all":
                    answers = [await twin.store.cancel_all("refunds") for twin in twins]
            assert not answers or answers[0] == answers[1], f"step {step}: {deed}"
            seen = [await twin.seen() for twin in twins]
            assert seen[0] == seen[1], f"after step {step}: {deed}"
    finally:
        await redis.close()
