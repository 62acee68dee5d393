"""TLS that was asked for and is not to be had: nothing is sent without it, and the caller is told."""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from sqlalchemy import URL
from sqlalchemy.ext.asyncio import create_async_engine

from nightmail.errors import StoreUnavailable
from nightmail.store import FullStore
from nightmail.stores import open_store

USER, PASSWORD = "someone", "do-not-tell"


@dataclass
class Plain:
    """A server that speaks no TLS, and would take a password as it is."""

    port: int = 0
    received: bytearray = field(default_factory=bytearray)
    spoken_to: asyncio.Event = field(default_factory=asyncio.Event)


@asynccontextmanager
async def listening(
    greet: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[Plain]:
    """One that greets like this."""
    plain = Plain()
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await greet(reader, writer)
        while data := await reader.read(4096):
            plain.received.extend(data)
            plain.spoken_to.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    plain.port = server.sockets[0].getsockname()[1]
    try:
        yield plain
    finally:
        server.close()
        for writer in writers:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


async def refused(store: FullStore) -> str:
    """What the store says when it cannot connect."""
    await store.open()
    try:
        with pytest.raises(StoreUnavailable) as raised:
            await store.ping()
    finally:
        await store.close()
    return str(raised.value)


@pytest.mark.parametrize("mode", ["require", "verify-ca", "verify-full"])
async def test_postgres_tls_is_never_left_out_in_silence(mode: str) -> None:
    async def no_tls(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert struct.unpack("!ii", await reader.readexactly(8)) == (8, 80877103)
        writer.write(b"N")

    async with listening(no_tls) as plain:
        url = f"postgresql://{USER}:{PASSWORD}@127.0.0.1:{plain.port}/shop?ssl={mode}"
        said = await refused(open_store(url))

        assert plain.received == b""
        assert PASSWORD not in said


async def mysql_without_tls(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    capabilities = 0x000FF7DF & ~0x0800
    greeting = b"\x0a8.0.30\x00" + struct.pack("<I", 1) + b"12345678\x00"
    greeting += struct.pack("<HBHHB", capabilities & 0xFFFF, 0x2D, 2, capabilities >> 16, 21)
    greeting += b"\x00" * 10 + b"123456789012\x00mysql_native_password\x00"
    writer.write(struct.pack("<I", len(greeting))[:3] + b"\x00" + greeting)


@pytest.mark.parametrize("driver", [None, "asyncmy", "aiomysql"])
async def test_mysql_tls_is_never_left_out_in_silence(driver: str | None) -> None:
    async with listening(mysql_without_tls) as plain:
        source: Any = f"mysql://{USER}:{PASSWORD}@127.0.0.1:{plain.port}/shop?ssl=true"
        if driver is not None:
            address = URL.create(f"mysql+{driver}", USER, PASSWORD, "127.0.0.1", plain.port, "shop")
            source = create_async_engine(address, connect_args={"ssl": ssl.create_default_context()})
        said = await refused(open_store(source))
        if driver is not None:
            await source.dispose()

        assert USER.encode() not in plain.received
        assert PASSWORD not in said


async def test_redis_tls_is_never_left_out_in_silence() -> None:
    async def nothing(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        """A server that waits for commands."""

    async with listening(nothing) as plain:
        store = open_store(f"rediss://{USER}:{PASSWORD}@127.0.0.1:{plain.port}/0")
        await store.open()
        asking = asyncio.ensure_future(store.ping())
        async with asyncio.timeout(30):
            await plain.spoken_to.wait()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await store.close()

        # The beginning of a handshake, and nothing in clear text.
        assert plain.received[:2] == b"\x16\x03"
        assert b"AUTH" not in plain.received
        assert USER.encode() not in plain.received
