"""An application in a process of its own, run by FastStream's command line."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

START: Final = 30.0
"""How many seconds a process may take to say something: importing takes a while where others are at work."""

APP: Final = """
import os

from faststream import FastStream
from nightmail import OutboxBroker

broker = OutboxBroker("sqlite:///{database}", graceful_timeout=2)
app = FastStream(broker)


def say(*words: object) -> None:
    # One write: of two processes on one pipe, `print` without a buffer mixes the words.
    os.write(1, " ".join(map(str, words)).encode() + b"\\n")


@broker.subscriber("orders")
async def take(order: dict[str, int]) -> None:
    if order["id"] < 0:
        raise LookupError("no such order")
    say("{says}", order["id"])


@app.on_startup
async def ready(worker_id: int | None = None) -> None:
    say("ready", worker_id)
"""


def write_app(directory: Path, *, says: str = "took") -> str:
    """Write the application; the url of its store."""
    database = directory / "messages.db"
    (directory / "shop.py").write_text(APP.format(database=database, says=says), "utf-8")
    return f"sqlite:///{database}"


class Running:
    """The process, and what it says."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.said: list[str] = []

    async def says(self, line: str, *, within: float = START) -> None:
        """Wait until it has said this, and nothing else on that line."""
        await self.says_like(re.escape(line), within=within)

    async def says_like(self, pattern: str, *, within: float = START) -> None:
        """Wait until a whole line is like this."""
        assert self._process.stdout is not None
        like = re.compile(pattern)
        try:
            async with asyncio.timeout(within):
                while not any(map(like.fullmatch, self.said)):
                    read = await self._process.stdout.readline()
                    assert read, f"it ended without saying {pattern!r}:\n" + "\n".join(self.said)
                    self.said.append(_plain(read).rstrip())
        except TimeoutError:
            raise AssertionError(f"it did not say {pattern!r}, only:\n" + "\n".join(self.said)) from None

    async def stop(self) -> int:
        """Ask it to end; how it did."""
        self._process.send_signal(signal.SIGTERM)
        return await self.ends()

    async def ends(self) -> int:
        """Wait for its end; how it ended."""
        async with asyncio.timeout(START):
            rest, _ = await self._process.communicate()
        self.said += _plain(rest).splitlines()
        assert self._process.returncode is not None
        return self._process.returncode


def _plain(said: bytes) -> str:
    """The text without its colours."""
    return re.sub(r"\x1b\[\d+m", "", said.decode())


@asynccontextmanager
async def faststream(directory: Path, *arguments: str) -> AsyncIterator[Running]:
    """`faststream` with these arguments, in this directory."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "faststream",
        *arguments,
        cwd=directory,
        # Nothing of it may stay when the test is over, and its own children are in this group too.
        start_new_session=True,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    running = Running(process)
    try:
        yield running
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await running.ends()
