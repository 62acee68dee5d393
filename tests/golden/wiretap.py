"""A way to the server that notes what goes through it.

On the wire, and not inside of a driver: so it sees what the store's and the callers' drivers really send, and does not
care how the store is written. What is sent before anything was answered is one round trip. It has a thread of its own,
since synchronous code blocks the event loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeAlias
from urllib.parse import urlsplit

from tests.golden.record import Line, Record
from tests.golden.wire_formats import WireFormat

MakeFormat: TypeAlias = Callable[[], WireFormat]
PIECE = 1 << 16


@contextmanager
def tapped(url: str, record: Record, wire_format: MakeFormat) -> Iterator[str]:
    """The URL under which the same server is reached while its clients are recorded."""
    tap = _Tap(url, record, wire_format)
    thread = threading.Thread(target=tap.run, name="wiretap")
    thread.start()
    try:
        assert tap.ready.wait(30)
        yield tap.url
    finally:
        tap.stop()
        thread.join()


class _Tap:
    def __init__(self, url: str, record: Record, wire_format: MakeFormat) -> None:
        self._server = urlsplit(url)
        self._record = record
        self._wire_format = wire_format
        self._loop = asyncio.new_event_loop()
        self._end = asyncio.Event()
        self._open: set[asyncio.Task[object]] = set()
        self.ready = threading.Event()
        self.url = ""

    def run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._end.set)

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        account, at, _ = self._server.netloc.rpartition("@")
        self.url = self._server._replace(netloc=f"{account}{at}127.0.0.1:{port}").geturl()
        self.ready.set()
        await self._end.wait()
        server.close()
        if self._open:  # The clients have hung up. The tasks that served them may not know it yet.
            await asyncio.wait(self._open, timeout=10)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = Line(self._record)
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        task.add_done_callback(self._open.discard)
        assert self._server.hostname is not None
        with suppress(OSError), line.open():
            from_server, to_server = await asyncio.open_connection(self._server.hostname, self._server.port)
            try:
                there = asyncio.create_task(self._to_server(reader, to_server, line))
                back = asyncio.create_task(self._to_client(from_server, writer, line))
                await asyncio.wait({there, back}, return_when=asyncio.FIRST_COMPLETED)
                there.cancel()
                back.cancel()
                await asyncio.gather(there, back, return_exceptions=True)
            finally:
                to_server.close()
                writer.close()

    async def _to_server(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, line: Line
    ) -> None:
        wire_format = self._wire_format()
        while piece := await reader.read(PIECE):
            if sent := wire_format.read(piece):
                line.sends(*sent)
            writer.write(piece)
            await writer.drain()

    async def _to_client(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, line: Line
    ) -> None:
        while piece := await reader.read(PIECE):
            line.is_answered()
            writer.write(piece)
            await writer.drain()
