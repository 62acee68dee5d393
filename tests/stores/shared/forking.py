"""A program that forks with a store open: `python -m tests.stores.shared.forking <url>`. It tells what it saw."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any
from uuid import uuid4

from nightmail.errors import NightmailError
from nightmail.message import Delivery, Message
from nightmail.outcome import Done
from nightmail.records import DeadFilter
from nightmail.store import FullStore, Settlement
from nightmail.stores import open_store

QUEUE = "orders"
LEASE = timedelta(minutes=5)
SECONDS = 60


def message(body: bytes, **options: Any) -> Message:
    return Message(queue=QUEUE, body=body, **options)


def verbs(store: FullStore, delivery: Delivery) -> dict[str, Callable[[], Awaitable[object]]]:
    """Everything that would use the parent's connections."""

    async def listen() -> None:
        with store.listen([QUEUE]):
            pass

    async def run_on_keeper_thread() -> None:
        async with store.run_on_keeper_thread(lambda extend: extend([delivery], LEASE)):  # type: ignore[arg-type, return-value]
            pass

    return {
        "ping": store.ping,
        "check": store.check,
        "publish": lambda: store.publish(message(b"never")),
        "timer": lambda: store.publish(message(b"never", timer_id="t")),
        "batch": lambda: store.publish_batch([message(b"never")]),
        "claim": lambda: store.claim([QUEUE], limit=1, lease=LEASE, token=uuid4()),
        "settle": lambda: store.settle([Settlement(delivery, Done())]),
        "extend": lambda: store.extend([delivery], LEASE),
        "cancel": lambda: store.cancel(QUEUE, "t"),
        "peek": store.peek,
        "dead": lambda: store.dead(DeadFilter()),
        "listen": listen,
        "keeper": run_on_keeper_thread,
    }


async def parent(url: str) -> dict[str, Any]:
    """Publish and claim, fork, and go on."""
    store = open_store(url)
    await store.open()
    await store.migrate()
    await store.publish(message(b"held"))
    (delivery,) = (await store.claim([QUEUE], limit=1, lease=LEASE, token=uuid4())).deliveries
    await store.publish(message(b"parent before", timer_id="before"))
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        # On a thread: here the child still is inside a step of its parent's event loop.
        thread = threading.Thread(target=lambda: asyncio.run(in_child(store, delivery, writing)))
        thread.start()
        thread.join()
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as told:
        refused = json.loads(told.read() or "null")
    os.waitpid(child, 0)
    await store.publish(message(b"parent after"))
    settled = await store.settle([Settlement(delivery, Done())])
    waiting = sorted(found.body.decode() for found in await store.peek(QUEUE))
    await store.close()
    return {"refused": refused, "settled": settled[0].name, "waiting": waiting}


async def in_child(store: FullStore, delivery: Delivery, writing: int) -> None:
    """Try every verb of the inherited store; then open it here, and use it."""
    refused: dict[str, str] = {}
    for name, verb in verbs(store, delivery).items():
        try:
            await verb()
        except NightmailError as error:
            refused[name] = type(error).__name__
        except Exception as error:  # noqa: BLE001 - told to the test
            refused[name] = repr(error)
        else:
            refused[name] = "done"
    await store.close()
    await store.open()
    await store.publish(message(b"child"))
    await store.close()
    os.write(writing, json.dumps(refused).encode())
    os.close(writing)


def check_forking(url: str) -> None:
    """The test: a child is refused before it touches anything of its parent's, and may open the store itself."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.stores.shared.forking", url],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    assert set(seen["refused"].values()) == {"WrongProcess"}, seen["refused"]
    assert seen["settled"] == "WRITTEN"
    assert seen["waiting"] == ["child", "parent after", "parent before"]


if __name__ == "__main__":
    print(json.dumps(asyncio.run(parent(sys.argv[1]))), flush=True)
