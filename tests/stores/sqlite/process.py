"""What other processes do in the tests: `process.py <file> <part> [arguments]`, told to go by a line on stdin."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import TypeVar
from uuid import uuid4

from nightmail.errors import PublishUncertain, StoreUnavailable, WrongProcess
from nightmail.message import Message
from nightmail.outcome import Done, WriteResult
from nightmail.store import Settlement
from nightmail.stores.sqlite import SQLiteStore

T = TypeVar("T")
LEASE = timedelta(seconds=30)


async def patiently(verb: Callable[[], Awaitable[T]]) -> T:
    """Ask again when the store says that nothing was written: on a busy disk a lock can take longer than we wait."""
    while True:
        try:
            return await verb()
        except PublishUncertain:
            raise
        except StoreUnavailable as error:
            print(error, file=sys.stderr)


async def migrate(store: SQLiteStore) -> None:
    """Make the tables and use them."""
    await store.migrate()
    await store.check()
    await store.publish(Message(queue="orders", body=b"migrated"))


async def publish(store: SQLiteStore, name: str, count: str) -> None:
    """Publish so many, eight at a time; tell each that is stored."""

    async def some(lane: int) -> None:
        for number in range(lane, int(count), 8):
            text = f"{name} {number}"
            _ = await patiently(partial(store.publish, Message(queue="orders", body=text.encode())))
            print(text, flush=True)

    await asyncio.gather(*(some(lane) for lane in range(8)))


async def work(store: SQLiteStore) -> None:
    """Claim and settle until killed; tell each message that was settled."""
    while True:
        claimed = await patiently(partial(store.claim, ["orders"], limit=7, lease=LEASE, token=uuid4()))
        ended = [Settlement(delivery, Done()) for delivery in claimed.deliveries]
        results = await patiently(partial(store.settle, ended))
        for delivery, result in zip(claimed.deliveries, results, strict=True):
            assert result is WriteResult.WRITTEN, result
            print(delivery.body.decode(), flush=True)


async def hold(store: SQLiteStore) -> None:
    """Claim one message, say so, and never come back."""
    claimed = await store.claim(["orders"], limit=1, lease=LEASE, token=uuid4())
    print(claimed.deliveries[0].body.decode(), flush=True)
    await asyncio.Event().wait()


async def fork(store: SQLiteStore) -> None:
    """Fork with the store open; the child tells what it may and what not, then the parent goes on."""
    await store.publish(Message(queue="orders", body=b"parent before"))
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        in_a_child(store, writing)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as told:
        print(told.read(), end="", flush=True)
    os.waitpid(child, 0)
    await store.publish(Message(queue="orders", body=b"parent after"))


def in_a_child(store: SQLiteStore, writing: int) -> None:
    """On a thread: here the child still is inside a step of its parent's event loop."""

    async def use() -> None:
        try:
            await store.publish(Message(queue="orders", body=b"never"))
        except WrongProcess as error:
            os.write(writing, f"{error}\n".encode())
        await store.open()
        await store.publish(Message(queue="orders", body=b"child"))
        await store.close()

    thread = threading.Thread(target=lambda: asyncio.run(use()))
    thread.start()
    thread.join()
    os.close(writing)


async def main(file: str, part: str, *arguments: str) -> None:
    store = SQLiteStore(file)
    if part != "migrate":
        await store.open()
    print("ready", flush=True)
    sys.stdin.readline()
    await store.open()
    await PARTS[part](store, *arguments)
    await store.close()


PARTS: dict[str, Callable[..., Awaitable[None]]] = {
    "migrate": migrate,
    "publish": publish,
    "work": work,
    "hold": hold,
    "fork": fork,
}

if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
