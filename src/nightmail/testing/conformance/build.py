"""Helpers for the tests, so that a test shows only what it is about."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from inspect import signature
from typing import Any, Final, Literal, Protocol, TypeAlias, TypedDict, TypeVar, Unpack
from uuid import UUID, uuid4

from nightmail.message import DeadDelivery, Delivery, Due, Message, OnConflict
from nightmail.outcome import Dead, Outcome, WriteResult
from nightmail.records import DeadFilter, DeadLetter
from nightmail.store import FullStore, Inspection, Settlement, Store
from nightmail.testing.clock import ManualClock

QUEUE: Final = "orders"
LEASE: Final = timedelta(seconds=30)
AT_ONCE: Final = timedelta(0)
SECOND: Final = timedelta(seconds=1)
MINUTE: Final = timedelta(minutes=1)
HOUR: Final = timedelta(hours=1)
DAY: Final = timedelta(days=1)
MICROSECOND: Final = timedelta(microseconds=1)
REJECTED: Final = Dead("rejected", "ValueError: no")
EVERYTHING: Final = DeadFilter()

Capability: TypeAlias = Literal[
    "transactions", "concurrent_writers", "repeatable_read", "blocking", "pushes_wakeups"
]
"""A boolean field of `Capabilities`."""

_Test = TypeVar("_Test", bound=Callable[..., Any])


class MessageOptions(TypedDict, total=False):
    """The options of a message, apart from its body."""

    queue: str
    headers: Mapping[str, Any]
    due: Due
    timer_id: str | None
    on_conflict: OnConflict
    dedup_for: timedelta | None
    expires_in: timedelta | None
    ordering_key: str | None
    priority: int


class WithBody(Protocol):
    """A delivery, a pending message or a dead letter."""

    @property
    def body(self) -> bytes:
        """The published body."""
        ...


def needs(*capabilities: Capability) -> Callable[[_Test], _Test]:
    """Skip this test for a store that lacks one of these capabilities."""

    def mark(test: _Test) -> _Test:
        test.needs = capabilities  # type: ignore[attr-defined]
        return test

    return mark


def listens(test: Callable[..., Any]) -> bool:
    """Whether this test is about wake-ups: it uses `sender`, or needs another process to ring."""
    return "sender" in signature(test).parameters or "pushes_wakeups" in getattr(test, "needs", ())


def message(body: bytes = b"hello", /, **options: Unpack[MessageOptions]) -> Message:
    """A message for the usual queue, due now."""
    options.setdefault("queue", QUEUE)
    return Message(body=body, **options)


def timer(
    timer_id: str = "reminder", body: bytes = b"hello", /, **options: Unpack[MessageOptions]
) -> Message:
    """A message with a timer id."""
    options["timer_id"] = timer_id
    return message(body, **options)


def fresh_token() -> UUID:
    """A token no claim has used."""
    return uuid4()


async def stored(store: Store, message: Message, **how: Any) -> int:
    """Publish a message that must be stored; its id."""
    id_ = await store.publish(message, **how)
    assert id_ is not None, "nothing was stored"
    return id_


async def claim_all(
    store: Store, *queues: str, limit: int = 100, lease: timedelta = LEASE, token: UUID | None = None
) -> list[Delivery]:
    """Claim what is available in these queues (by default the usual one), up to `limit`."""
    claimed = await store.claim(queues or (QUEUE,), limit=limit, lease=lease, token=token or fresh_token())
    return list(claimed.deliveries)


async def claim_one(
    store: Store, *queues: str, lease: timedelta = LEASE, token: UUID | None = None
) -> Delivery:
    """Claim the one available message, and check that it is the only one."""
    deliveries = await claim_all(store, *queues, lease=lease, token=token)
    assert len(deliveries) == 1, f"expected one available message, not {len(deliveries)}"
    return deliveries[0]


async def claim_bodies(store: Store, *queues: str, limit: int = 100, lease: timedelta = LEASE) -> list[bytes]:
    """Claim what is available; the bodies only."""
    return bodies(await claim_all(store, *queues, limit=limit, lease=lease))


async def settle_one(
    store: Store, delivery: Delivery, outcome: Outcome, *, repeated: bool = False
) -> WriteResult:
    """Settle one delivery; the write result."""
    results = await store.settle([Settlement(delivery, outcome, repeated)])
    assert len(results) == 1, f"one settlement, but {len(results)} answers"
    return results[0]


async def extend_one(store: Store, delivery: Delivery, lease: timedelta = LEASE) -> WriteResult:
    """Extend one lease; the write result."""
    results = await store.extend([delivery], lease)
    assert len(results) == 1, f"one lease, but {len(results)} answers"
    return results[0]


async def running_timer(store: Store, timer_id: str = "reminder", body: bytes = b"old") -> Delivery:
    """A timer, published and claimed by a worker."""
    await stored(store, timer(timer_id, body))
    return await claim_one(store)


async def expired_timer(
    store: Store, clock: ManualClock, timer_id: str = "reminder", body: bytes = b"old"
) -> Delivery:
    """A timer whose lease has expired and which no other worker has taken over."""
    delivery = await running_timer(store, timer_id, body)
    clock.advance(LEASE)
    return delivery


async def timer_owner(store: Inspection, timer_id: str = "reminder") -> list[tuple[int, bytes]]:
    """The waiting message that owns this timer id in the usual queue, if there is one: its id and body."""
    return [(found.id, found.body) for found in await store.peek(QUEUE, timer_id=timer_id)]


async def bury(store: FullStore, message: Message, why: Dead = REJECTED) -> DeadLetter:
    """Publish a message that is due now, claim it, and settle it as dead; its dead letter."""
    await stored(store, message)
    delivery = await claim_one(store, message.queue)
    assert await settle_one(store, delivery, why) is WriteResult.WRITTEN
    (letter,) = await store.dead(DeadFilter(queue=message.queue), limit=1)
    return letter


async def only_letter(store: FullStore) -> DeadLetter:
    """The one dead letter there is."""
    letters = await store.dead(EVERYTHING)
    assert len(letters) == 1, f"expected one dead letter, not {len(letters)}"
    return letters[0]


async def claim_letters(
    store: Store, *queues: str, limit: int = 100, lease: timedelta = LEASE, token: UUID | None = None
) -> list[DeadDelivery]:
    """Claim the available dead letters of these queues (by default the usual one), up to `limit`."""
    claimed = await store.claim_dead(
        queues or (QUEUE,), limit=limit, lease=lease, token=token or fresh_token()
    )
    return [as_letter(delivery) for delivery in claimed.deliveries]


async def claim_letter(
    store: Store, *queues: str, lease: timedelta = LEASE, token: UUID | None = None
) -> DeadDelivery:
    """Claim the one available dead letter, and check that it is the only one."""
    letters = await claim_letters(store, *queues, lease=lease, token=token)
    assert len(letters) == 1, f"expected one dead letter to be had, not {len(letters)}"
    return letters[0]


def as_letter(delivery: Delivery) -> DeadDelivery:
    """This delivery, which must be a dead letter's."""
    assert isinstance(delivery, DeadDelivery), f"a dead letter came as a {type(delivery).__name__}"
    return delivery


def bodies(records: Iterable[WithBody]) -> list[bytes]:
    """The bodies of these, in order."""
    return [record.body for record in records]


def promptly() -> AbstractAsyncContextManager[Any]:
    """Fail instead of hanging when the block waits for a lock it must not wait for.

    Only a failure takes long: a correct store leaves the block at once.
    """
    return asyncio.timeout(30)
