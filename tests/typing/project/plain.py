"""The engine alone."""

import asyncio
from collections.abc import Sequence

from nightmail import ConstantRetry, Delivery, Forwarder, Message, Outcome, Worker, WorkerSettings, open_store


async def handle(delivery: Delivery) -> Outcome | None:
    print(delivery.body)
    return None


async def pass_on(batch: Sequence[Delivery]) -> list[Exception | None]:
    return [None] * len(batch)


async def main() -> None:
    store = open_store("sqlite:///plain.db")
    await store.open()
    await store.publish(Message(queue="q", body=b"x"))
    worker = Worker(store, handle, queues=["q"], settings=WorkerSettings(retry=ConstantRetry(delay=1)))
    forwarder = Forwarder(store, pass_on, queues=["r"])
    async with asyncio.TaskGroup() as group:
        group.create_task(worker.run())
        group.create_task(forwarder.run())
    await store.close()
