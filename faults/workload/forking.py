"""A handler that forks: its child inherits the store's connections, and must not touch them."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from typing import Final

from nightmail import Message
from nightmail.errors import WrongProcess
from nightmail.store import FullStore

CHILD_SECONDS: Final = 10.0
"""How long a child may take."""
LOOK_SECONDS: Final = 0.02


INHERITED: Final = 70
"""The exit code of a process whose child could use its store."""


class Inherited(Exception):
    """A child could use the store of its parent."""


async def refused_in_a_child(store: FullStore, seconds: float) -> None:
    """Fork. The child tries to publish, keeps what it inherited open for so long, and ends."""
    child = os.fork()
    if child == 0:
        _in_child(store, seconds)
    deadline = time.monotonic() + CHILD_SECONDS
    try:
        while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0):  # noqa: ASYNC222 - it does not wait
            if time.monotonic() > deadline:
                raise Inherited("the child hangs")
            await asyncio.sleep(LOOK_SECONDS)
    except BaseException:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)  # noqa: ASYNC222 - it is dead
        raise
    if os.waitstatus_to_exitcode(ended[1]) != 0:
        raise Inherited("the store was not refused in the child")


def _in_child(store: FullStore, seconds: float) -> None:
    code = 1
    # If its parent ends first, nothing else ends a child that hangs.
    signal.alarm(int(2 * CHILD_SECONDS))

    async def try_to_publish() -> None:
        nonlocal code
        try:
            await store.publish(Message(queue="plain", body=b'{"key": "forked"}'))
        except WrongProcess:
            code = 0

    # On a thread: here the child still is inside a step of its parent's event loop.
    thread = threading.Thread(target=lambda: asyncio.run(try_to_publish()))
    thread.start()
    thread.join()
    time.sleep(seconds)
    os._exit(code)
