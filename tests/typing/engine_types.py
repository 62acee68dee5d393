"""The types of what an application without FastStream uses. Nothing here runs: mypy reads it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import assert_type

from nightmail import (
    Batched,
    Cleaner,
    ConstantRetry,
    Dead,
    DeadLetters,
    Delivery,
    Done,
    ExponentialRetry,
    Forwarder,
    LinearRetry,
    Message,
    NoRetry,
    Outcome,
    Retry,
    Store,
    Worker,
    WorkerSettings,
    open_store,
)
from nightmail.message import DeadDelivery
from nightmail.retry import RetryPolicy
from nightmail.store import FullStore


async def stores() -> None:
    store = open_store("sqlite:///shop.db", tables="mail", keep_delivered=True)
    assert_type(store, FullStore)
    plain: Store = store
    message = Message(queue="q", body=b"x", due=timedelta(minutes=5), timer_id="t", on_conflict="latest")
    assert_type(await plain.publish(message), int | None)
    assert_type(await plain.publish_batch([message]), list[int])


async def handle(delivery: Delivery) -> Outcome | None:
    assert_type(delivery.body, bytes)
    assert_type(delivery.attempt, int)
    if isinstance(delivery, DeadDelivery):
        assert_type(delivery.reason, str)
    return Done() if delivery.attempt > 1 else Retry(timedelta(seconds=1))


async def handle_batch(batch: Sequence[Delivery]) -> Sequence[Outcome | Exception | None]:
    return [None, Done(), Dead("no"), ValueError("no")][: len(batch)]


async def workers(store: FullStore) -> None:
    worker = Worker(store, handle, queues=["q"], settings=WorkerSettings(max_workers=5))
    await worker.run()
    await worker.stop()
    Worker(store, Batched(handle_batch, 10), queues=["q"])
    Worker(DeadLetters(store), handle, queues=["q"])


async def pass_on(batch: Sequence[Delivery]) -> Sequence[Exception | None]:
    return [None for _ in batch]


async def forwarders(store: FullStore) -> None:
    forwarder = Forwarder(store, pass_on, queues=["q"], retry=ConstantRetry(delay=1))
    await forwarder.run()
    await forwarder.stop()
    cleaner = Cleaner(store, timedelta(days=7), timedelta(hours=1), batch=100)
    await cleaner.run()
    await cleaner.stop()


def policies() -> None:
    own: RetryPolicy = lambda delivery, error: Dead("no") if error is None else Retry(timedelta(0))  # noqa: E731
    for policy in (
        own,
        NoRetry(),
        ConstantRetry(delay=1),
        LinearRetry(initial=1, step=timedelta(seconds=2)),
        ExponentialRetry(initial=0.5, factor=3, maximum=60, jitter=0, max_attempts=None),
    ):
        WorkerSettings(retry=policy)
