"""Runs commands as a script does, and on a terminal as a person does."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fcntl import ioctl
from typing import Any, Final, TypeVar
from uuid import uuid4

from typer.testing import CliRunner

from nightmail.cli.commands import app
from nightmail.cli.which_store import URL_VARIABLE
from nightmail.message import Message
from nightmail.outcome import Dead
from nightmail.store import FullStore, Settlement
from nightmail.stores import open_store
from nightmail.testing.conformance.build import LEASE

T = TypeVar("T")
PATIENCE_SECONDS: Final = 60.0


@dataclass(frozen=True)
class Ran:
    """How a command ended, and what it said."""

    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[list[str]]:
        """The lines of a table, without its heading."""
        return [line.split("\t") for line in self.out.splitlines()[1:]]

    @property
    def answer(self) -> Any:
        """What it said as JSON."""
        return json.loads(self.out)

    @property
    def refusal(self) -> str:
        """The one line that says why not."""
        (line,) = self.err.splitlines()
        assert line.startswith("nightmail: ")
        assert self.out == ""
        return line.removeprefix("nightmail: ")


def nightmail(*arguments: str, url: str | None = None, typed: str | bytes | None = None) -> Ran:
    """Run a command without a terminal; `typed` is its standard input."""
    ended = CliRunner().invoke(
        app,
        arguments,
        input=typed,
        env={URL_VARIABLE: url} if url is not None else None,
        prog_name="nightmail",
    )
    if ended.exception is not None and not isinstance(ended.exception, SystemExit):
        raise ended.exception
    return Ran(ended.exit_code, ended.stdout, ended.stderr)


def on_store(url: str, work: Callable[[FullStore], Awaitable[T]]) -> T:
    """Do this with the store at this URL, as an application would."""

    async def run() -> T:
        store = open_store(url)
        await store.open()
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(run())


def migrated(url: str) -> str:
    """This URL, with tables there."""
    on_store(url, lambda store: store.migrate())
    return url


def publish(url: str, *messages: Message) -> list[int]:
    """Publish these, one by one; their ids."""

    async def work(store: FullStore) -> list[int]:
        return [id_ for each in messages if (id_ := await store.publish(each)) is not None]

    return on_store(url, work)


def bury(
    url: str, *errors: str | None, queue: str = "orders", reason: str = "rejected", **options: Any
) -> None:
    """A dead letter with each of these errors."""

    async def work(store: FullStore) -> None:
        for error in errors:
            await store.publish(Message(queue=queue, body=b"secret tea", **options))
            claimed = await store.claim([queue], limit=1, lease=LEASE, token=uuid4())
            (delivery,) = claimed.deliveries
            await store.settle([Settlement(delivery, Dead(reason, error))])

    on_store(url, work)


class Terminal:
    """A command on a terminal, and a person who reads and types."""

    def __init__(self, process: subprocess.Popen[bytes], master: int) -> None:
        self._process = process
        self._master = master
        self.seen = ""

    def until(self, text: str) -> str:
        """Read until this appears; all that was seen so far."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while text not in self.seen:
            assert time.monotonic() < deadline, f"{text!r} did not appear in {self.seen!r}"
            if not self._read(deadline):
                raise AssertionError(f"it ended without {text!r}: {self.seen!r}")
        return self.seen

    def more(self) -> None:
        """Read what comes next."""
        assert self._read(time.monotonic() + PATIENCE_SECONDS), f"it ended: {self.seen!r}"

    def glance(self) -> None:
        """Read what is there within a moment, if anything."""
        assert self._read(time.monotonic() + 0.2), f"it ended: {self.seen!r}"

    def until_hidden(self) -> None:
        """Wait until the terminal no longer shows what is typed."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.echoes():
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    @property
    def pid(self) -> int:
        return self._process.pid

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def interrupt(self) -> None:
        """Press Ctrl-C: the terminal sends the signal."""
        os.write(self._master, b"\x03")

    def interrupt_until_it_ends(self) -> int:
        """Press Ctrl-C at a question; its exit code.

        Pressed again each second, as a person would: if it comes just before `input` begins to wait, Python notes it
        and waits all the same.
        """
        deadline = time.monotonic() + PATIENCE_SECONDS
        self.interrupt()
        pressed = time.monotonic()
        while self._read(pressed + 1):
            assert time.monotonic() < deadline, self.seen
            if time.monotonic() >= pressed + 1:
                self.interrupt()
                pressed = time.monotonic()
        return self._process.wait(PATIENCE_SECONDS)

    def end(self) -> int:
        """Read on until it ends; its exit code."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self._read(deadline):
            assert time.monotonic() < deadline, self.seen
        return self._process.wait(PATIENCE_SECONDS)

    def echoes(self) -> bool:
        """Whether the terminal shows what is typed."""
        return bool(termios.tcgetattr(self._master)[3] & termios.ECHO)

    def _read(self, deadline: float) -> bool:
        readable, _, _ = select.select([self._master], [], [], max(deadline - time.monotonic(), 0))
        if not readable:
            return True
        try:
            read = os.read(self._master, 65536)
        except OSError:
            return False  # Linux: the other side is closed.
        self.seen += read.decode(errors="replace").replace("\r\n", "\n")
        return bool(read)


def _hear_the_terminal() -> None:
    """Let Ctrl-C reach the command, also where the tests themselves run in the background and ignore it."""
    ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def terminal(*arguments: str, url: str | None = None, columns: int = 160) -> Iterator[Terminal]:
    """A command on a terminal of its own; killed if it is still there at the end."""
    master, slave = pty.openpty()
    ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", URL_VARIABLE)}
    environment |= {"TERM": "xterm-256color"} | ({} if url is None else {URL_VARIABLE: url})
    process = subprocess.Popen(
        [sys.executable, "-m", "nightmail", *arguments],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=environment,
        start_new_session=True,
        preexec_fn=_hear_the_terminal,  # noqa: PLW1509 - it calls nothing that a lock could hold up
    )
    os.close(slave)
    try:
        yield Terminal(process, master)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            process.wait()
        os.close(master)
