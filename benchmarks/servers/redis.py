"""Redis, with an append-only file that is flushed every second, as it is usually run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from redis.asyncio import Redis as Client

from benchmarks.servers.base import Server, used_by
from testkit.servers.redis import Redis as Private

MULTIPLY: Final = Path(__file__).with_name("multiply.lua")
BULK: Final = 1000
SHOWN: Final = ("appendonly", "appendfsync", "save", "maxmemory")


class Redis(Server):
    """A numbered database for each system."""

    name = "redis"

    def __init__(self) -> None:
        self._server = Private(durable=True, options={"appendfsync": "everysec"})
        self._free = list(range(1, 60))

    def start(self) -> None:
        self._server.start()

    def close(self) -> None:
        self._server.close()

    def processor_seconds(self) -> float:
        return used_by(self._server.processes)

    async def describe(self) -> dict[str, str]:
        async with _connected(self._server.url) as client:
            settings = await client.config_get(*SHOWN)
            return {
                "version": (await client.info("server"))["redis_version"],
                **{name: str(settings[name]) or '""' for name in SHOWN},
            }

    @contextmanager
    def database(self) -> Iterator[str]:
        number = self._free.pop(0)
        try:
            yield urlsplit(self._server.url)._replace(path=f"/{number}").geturl()
        finally:
            self._server.flush(number)
            self._free.append(number)

    async def requests(self, url: str) -> int:
        async with _connected(url) as client:
            # Each request is read in one go. Commands would count what scripts call inside of the server.
            return int((await client.info("stats"))["total_reads_processed"])

    async def connections(self, url: str) -> int:
        number = int(urlsplit(url).path[1:])
        async with _connected(self._server.url) as client:
            return sum(int(entry["db"]) == number for entry in await client.client_list())

    async def multiply(self, url: str, table: str, times: int) -> None:
        kind = "d" if table.endswith("dead") else "m"
        async with _connected(url) as client:
            copy = client.register_script(MULTIPLY.read_text())
            queues: Any = await client.zrange("{nightmail}:queues", 0, -1)
            for queue in queues:
                tag = f"{{nightmail:{queue.decode()}}}"
                ids = [
                    key.rpartition(b":")[2] async for key in client.scan_iter(f"{tag}:{kind}:*", count=BULK)
                ]
                for start in range(0, len(ids), BULK):
                    for number in range(1, times):
                        await copy(keys=[tag], args=[kind, number, *ids[start : start + BULK]])


@asynccontextmanager
async def _connected(url: str) -> AsyncIterator[Client]:
    client = Client.from_url(url)
    try:
        yield client
    finally:
        await client.aclose()
