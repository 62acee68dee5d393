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
from nightmail.message import DeadDelivery, Delivery, Message
from nightmail.outcome import Dead, Done, Outcome, Postpone, Release, Retry
from nightmail.records import DeadFilter
from nightmail.store import FullStore, Settlement
from nightmail.stores._provenance import LETTER, MESSAGE
from nightmail.stores.memory import MemoryStore
from nightmail.stores.redis import RedisStore
from nightmail.testing.clock import ManualClock

pytestmark = pytest.mark.redis

SECOND = timedelta(seconds=1)
STEPS = 250
QUEUES = ("orders", "refunds")
DEEDS = {
    "publish": 30,
    "claim": 20,
    "settle": 20,
    "extend": 5,
    "advance": 15,
    "cancel": 4,
    "reschedule": 4,
    "cancel_all": 1,
    "claim_dead": 8,
    "settle_dead": 8,
    "extend_dead": 3,
    "redrive": 4,
    "purge": 1,
    "sweep": 1,
}


class Twin:
    """One store of the two, and the ids by which its messages are known in both: the order of publishing."""

    def __init__(self, store: FullStore) -> None:
        self.store = store
        self.names: dict[int, int] = {}
        self.held: list[Delivery] = []
        self.letters: list[DeadDelivery] = []

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

    async def claim_dead(self, queues: Sequence[str], limit: int, lease: timedelta, token: UUID) -> Any:
        claimed = await self.store.claim_dead(queues, limit=limit, lease=lease, token=token)
        recalled = await self.store.recall_dead(queues, token)
        assert sorted(each.id for each in recalled) == sorted(each.id for each in claimed.deliveries)
        for each in claimed.deliveries:
            assert isinstance(each, DeadDelivery)
            self.letters.append(each)
        return [self.shown(each) for each in claimed.deliveries], claimed.next_in

    async def settle_dead(self, chosen: list[tuple[int, Outcome]]) -> Any:
        return await self.store.settle([Settlement(self.letters[at], outcome) for at, outcome in chosen])

    async def extend_dead(self, chosen: list[int], lease: timedelta) -> Any:
        return await self.store.extend([self.letters[at] for at in chosen], lease)

    async def redrive(self, places: list[int], to: str | None, keep_names: bool) -> Any:
        letters = await self.store.dead(DeadFilter(), limit=1000)
        by_name = {self.name(letter.message_id): letter for letter in letters}
        chosen = [by_name[name] for name in sorted(by_name, key=lambda name: name or 0)]
        moved = await self.store.redrive(
            [chosen[place % len(chosen)] for place in places if chosen], to=to, keep_names=keep_names
        )
        return [self.name(id_) for id_ in moved]

    async def sweep(self, older_than: timedelta) -> Any:
        swept = await self.store.sweep(older_than=older_than, limit=1000)
        # Ended windows are also dropped by publishes, when it suits them.
        return swept.delivered, swept.dead

    async def seen(self) -> Any:
        waiting = sorted(
            (pending.queue, self.name(pending.id), pending.due_at, pending.attempts, pending.body)
            for pending in await self.store.peek(limit=1000)
        )
        letters = sorted(
            (
                letter.queue,
                self.name(letter.message_id),
                letter.reason,
                letter.attempts,
                letter.deliveries,
                letter.died_at,
            )
            for letter in await self.store.dead(DeadFilter(), limit=1000)
        )
        return await self.store.stats(), waiting, letters

    def shown(self, delivery: Delivery) -> dict[str, Any]:
        shown = {field.name: getattr(delivery, field.name) for field in fields(delivery)}
        # The ids of messages and letters that it was before are each store's own.
        headers = {name: text for name, text in delivery.headers.items() if name not in (LETTER, MESSAGE)}
        shown["encoded_headers"] = headers
        if isinstance(delivery, DeadDelivery):
            return shown | {"id": None, "message_id": self.name(delivery.message_id)}
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
    redis = RedisStore(redis_url, clock=clock, keep_delivered=True)
    await redis.open()
    try:
        await redis.migrate()
        twins = [Twin(redis), Twin(MemoryStore(clock=clock, keep_delivered=True))]
        for step in range(STEPS):
            deed = dice.choices(list(DEEDS), DEEDS.values())[0]  # type: ignore[arg-type]
            held, letters = len(twins[0].held), len(twins[0].letters)
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
                case "claim_dead":
                    chosen_queues = dice.choice([QUEUES, QUEUES[:1], QUEUES[1:]])
                    limit, lease = dice.choice([1, 3, 1000]), SECOND * dice.choice([1, 3])
                    token = UUID(int=dice.getrandbits(128))
                    answers = [await twin.claim_dead(chosen_queues, limit, lease, token) for twin in twins]
                case "settle_dead" if letters:
                    chosen = [(dice.randrange(letters), any_outcome(dice)) for _ in range(2)]
                    chosen = list(dict(chosen).items())
                    answers = [await twin.settle_dead(chosen) for twin in twins]
                case "extend_dead" if letters:
                    some = [dice.randrange(letters) for _ in range(2)]
                    answers = [await twin.extend_dead(some, SECOND * 2) for twin in twins]
                case "redrive":
                    places = [dice.randrange(20) for _ in range(dice.choice([1, 4]))]
                    to, keep = dice.choice([None, None, "orders", "refunds"]), dice.random() < 0.7
                    answers = [await twin.redrive(places, to, keep) for twin in twins]
                case "purge":
                    which = DeadFilter(
                        queue=dice.choice([None, "orders"]),
                        reason=dice.choice([None, "expired"]),
                        older_than=dice.choice([None, SECOND * 3]),
                    )
                    limit = dice.choice([1, 2])
                    answers = [await twin.store.purge(which, limit=limit) for twin in twins]
                case "sweep":
                    age = SECOND * dice.choice([2, 8])
                    answers = [await twin.sweep(age) for twin in twins]
            assert not answers or answers[0] == answers[1], f"step {step}: {deed}"
            seen = [await twin.seen() for twin in twins]
            assert seen[0] == seen[1], f"after step {step}: {deed}"
    finally:
        await redis.close()
