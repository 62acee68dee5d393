"""What is counted: the verbs that each message goes through, at fixed sizes, on a clock that stands still."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, Protocol, TypeVar
from uuid import UUID

from nightmail import OutboxBroker
from nightmail.message import Delivery, Message
from nightmail.outcome import Done, Outcome, Release, Retry, WriteResult
from nightmail.store import FullStore, Settlement
from tests.counters.functions import Functions

T = TypeVar("T")

BATCH: Final = 100
BULK: Final = 1000
TOGETHER: Final = 20
"""How many publishes share a caller's transaction: what each of them repeats shows."""
BODY: Final = {"order": 7, "item": "kettle", "to": "Anna Karenina, 12 Station Road", "express": True}
LEASE: Final = timedelta(seconds=30)
HOUR: Final = timedelta(hours=1)
ROUNDS: Final = 4
"""The first warms up: connections, prepared statements, caches. Of the others the least counts: a server does
something of its own now and then."""
SINGLE, MANY, TIMERS = "single", "many", "timers"
WAKEUPS: Final = "wake-ups"


class Meter(Protocol):
    """What a server says it has done so far."""

    async def read(self) -> dict[str, float]:
        """All counters."""
        ...

    async def clean(self) -> None:
        """Before each round: leave nothing of the one before."""
        ...


@dataclass(slots=True)
class Counted:
    """The least that each thing cost in any round but the first, per message.

    Wake-ups are per call: a statement rings once for each queue, however many messages it has.
    """

    functions: Functions
    meter: Meter | None
    costs: dict[str, dict[str, float]] = field(default_factory=dict)

    async def count(
        self,
        done: str,
        verb: Callable[[], Awaitable[T]],
        *,
        messages: int = 1,
        server: bool = True,
        functions: bool = True,
    ) -> T:
        """Do this, and note what it cost: the server, and in functions."""
        meter = self.meter if server else None
        before = {} if meter is None else await meter.read()
        with self.functions.counting():
            result = await verb()
        after = {} if meter is None else await meter.read()
        found = {
            **(self.functions.found if functions else {}),
            **{name: value - before[name] for name, value in after.items()},
        }
        least = self.costs.setdefault(done, {})
        for name, value in found.items():
            # As many digits as the largest batch has zeros, so that one more of anything shows.
            each = value if name == WAKEUPS else round(value / messages, 3)
            least[name] = min(least.get(name, each), each)
        return result


@dataclass(frozen=True, slots=True)
class Place:
    """An open broker on an empty store, and what a caller passes as its transaction."""

    broker: OutboxBroker
    transaction: Callable[[], AbstractAsyncContextManager[Any]] | None = None
    meter: Meter | None = None

    @property
    def store(self) -> FullStore:
        return self.broker.store


async def costs(place: Place, functions: Functions) -> dict[str, dict[str, float]]:
    """What each verb costs, per message."""
    counted = Counted(functions, place.meter)
    for number in range(ROUNDS):
        if number == 1:
            counted.costs.clear()
        if place.meter is not None:
            await place.meter.clean()
        await _round(place, counted)
    return counted.costs


async def _round(place: Place, counted: Counted) -> None:
    broker, store = place.broker, place.store
    await counted.count("publish, by its own commit", lambda: broker.publish(BODY, SINGLE))
    if place.transaction is not None:
        async with place.transaction() as own:
            # The first in a transaction may be looked at more closely.
            await broker.publish(BODY, SINGLE, session=own)
            await counted.count(
                "publish, in a caller's transaction",
                lambda: broker.publish(BODY, SINGLE, session=own),
                server=False,
            )
        await counted.count(
            "publish, in a caller's transaction, with its commit", lambda: _committed(place), functions=False
        )
        await counted.count(
            f"publish, {TOGETHER} in a caller's transaction, with its commit",
            lambda: _committed(place, TOGETHER),
            messages=TOGETHER,
            functions=False,
        )
    await counted.count(
        "publish, with a timer id",
        lambda: broker.publish(BODY, TIMERS, timer_id="tea", activate_in=HOUR),
    )
    await counted.count(
        "publish, a batch of 1,000",
        lambda: broker.publish_batch(*[BODY] * BULK, queue=MANY),
        messages=BULK,
    )
    # Those of a batch that differ in nothing but their bodies may be sent in another way.
    mixed = [
        Message(queue=queue, body=b"tea", priority=n % 2)
        for n in range(BATCH // 2)
        for queue in (SINGLE, TIMERS)
    ]
    await counted.count(
        "publish, a batch of 100 for 2 queues", lambda: store.publish_batch(mixed), messages=BATCH
    )
    claimed = await counted.count("claim, 100 of 1,000", lambda: _claim(store), messages=BATCH)
    await counted.count("extend, 100", lambda: store.extend(claimed, LEASE * 2), messages=BATCH)
    await counted.count("settle, 100 done", lambda: _settle(store, claimed, Done()), messages=BATCH)
    claimed = await _claim(store)
    retry = Retry(HOUR)
    await counted.count("settle, 100 to be retried", lambda: _settle(store, claimed, retry), messages=BATCH)
    claimed = await _claim(store)
    await counted.count("settle, 100 released", lambda: _settle(store, claimed, Release()), messages=BATCH)
    await _drain(store)
    await counted.count("claim, nothing due", lambda: _claim(store, expected=0))


async def _committed(place: Place, messages: int = 1) -> None:
    """A whole transaction of a caller: only with its commit has a server done all that it does for a message."""
    assert place.transaction is not None
    async with place.transaction() as own:
        for _ in range(messages):
            await place.broker.publish(BODY, SINGLE, session=own)
        if hasattr(own, "commit"):
            await own.commit()


async def _claim(store: FullStore, *queues: str, expected: int = BATCH) -> list[Delivery]:
    claimed = await store.claim(list(queues) or [MANY], limit=BATCH, lease=LEASE, token=UUID(int=7))
    assert len(claimed.deliveries) == expected
    return list(claimed.deliveries)


async def _settle(store: FullStore, deliveries: Sequence[Delivery], outcome: Outcome) -> None:
    results = await store.settle([Settlement(delivery, outcome) for delivery in deliveries])
    assert set(results) == {WriteResult.WRITTEN}


async def _drain(store: FullStore) -> None:
    """Handle all that is due, and cancel the rest."""
    for queue in (SINGLE, MANY, TIMERS):
        while (claimed := await store.claim([queue], limit=BULK, lease=LEASE, token=UUID(int=8))).deliveries:
            await _settle(store, claimed.deliveries, Done())
        await store.cancel_all(queue)
