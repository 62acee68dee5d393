"""The proxy does to a connection what it says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from faults.journal import Journal, read
from faults.proxy import Kind, Proxy


class Echo:
    """A server that answers what it is asked, and remembers that."""

    def __init__(self) -> None:
        self.heard = b""
        self.tasks: set[asyncio.Task[None]] = set()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.tasks.add(asyncio.create_task(self.serve(reader, writer)))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while asked := await reader.read(100):
                self.heard += asked
                writer.write(asked)
                await writer.drain()
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


@asynccontextmanager
async def proxied(directory: Path, echo: Echo) -> AsyncIterator[tuple[Proxy, int]]:
    """A proxy in front of this server, and the port of a process's door."""
    server = await asyncio.start_server(echo.accept, "127.0.0.1", 0)
    journal = Journal(directory / "journal.jsonl", "nemesis")
    proxy = Proxy(server.sockets[0].getsockname()[:2], 1, journal)
    try:
        yield proxy, await proxy.door("worker-1")
    finally:
        await proxy.close()
        server.close()
        await asyncio.wait(echo.tasks)
        journal.close()


async def ask(port: int, what: bytes) -> bytes:
    """What is answered before the connection ends, or until the answer is complete."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(what)
    answer = b""
    with suppress(OSError):
        while len(answer) < len(what) and (more := await reader.read(100)):
            answer += more
    writer.transport.abort()
    with suppress(OSError):
        await writer.wait_closed()
    return answer


async def test_without_faults_it_passes_everything_on(tmp_path: Path) -> None:
    async with proxied(tmp_path, Echo()) as (_, port):
        assert await ask(port, b"hello") == b"hello"

    assert read(tmp_path / "journal.jsonl") == []


@pytest.mark.parametrize(
    ("kind", "heard"),
    [("lost reply", b"hello!"), ("cut", b""), ("half a packet", b"hel"), ("black hole", b"")],
)
async def test_each_fault_lets_through_what_it_should(kind: Kind, heard: bytes, tmp_path: Path) -> None:
    echo = Echo()
    async with proxied(tmp_path, echo) as (proxy, port):
        proxy.rates = {kind: 1.0}

        assert await ask(port, b"hello!") == b""

    (line,) = read(tmp_path / "journal.jsonl")
    assert (line.kind, line.target) == (kind, "worker-1")
    assert echo.heard == heard


async def test_the_reply_of_a_commit_is_noted_as_such(tmp_path: Path) -> None:
    echo = Echo()
    async with proxied(tmp_path, echo) as (proxy, port):
        proxy.rates = {"lost reply": 1.0}

        assert await ask(port, b"COMMIT;") == b""

    assert [line.kind for line in read(tmp_path / "journal.jsonl")] == ["lost reply of a commit"]
    assert echo.heard == b"COMMIT;"
