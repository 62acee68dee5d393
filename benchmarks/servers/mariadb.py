"""MariaDB, with a flush at every commit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final
from urllib.parse import urlsplit

import asyncmy

from benchmarks.servers.base import Server, copied, used_by
from testkit.servers.mariadb import MariaDB as Private
from testkit.servers.mariadb import connect_arguments

SETTINGS: Final[dict[str, str | int | None]] = {
    "innodb-buffer-pool-size": "512M",
    "innodb-log-file-size": "512M",
}
SHOWN: Final = (
    "innodb_flush_log_at_trx_commit",
    "innodb_buffer_pool_size",
    "innodb_log_file_size",
    "log_bin",
)


class MariaDB(Server):
    """A database for each system."""

    name = "mariadb"

    def __init__(self) -> None:
        self._server = Private(durable=True, settings=SETTINGS)

    def start(self) -> None:
        self._server.start()

    def close(self) -> None:
        self._server.close()

    def processor_seconds(self) -> float:
        return used_by(self._server.processes)

    async def describe(self) -> dict[str, str]:
        shown = {name: str(await self._value(f"select @@{name}")) for name in SHOWN}
        return {"version": str(await self._value("select version()")), **shown}

    @contextmanager
    def database(self) -> Iterator[str]:
        with self._server.fresh_database() as url:
            yield url

    async def requests(self, url: str) -> int:
        return int(
            await self._value(
                "select variable_value from information_schema.global_status where variable_name = 'Questions'"
            )
        )

    async def connections(self, url: str) -> int:
        database = urlsplit(url).path[1:]
        return int(
            await self._value(
                f"select count(*) from information_schema.processlist where db = '{database}'"  # noqa: S608 - our own name
            )
        )

    @asynccontextmanager
    async def held_snapshot(self, url: str) -> AsyncIterator[None]:
        connection = await asyncmy.connect(**connect_arguments(url))
        try:
            async with connection.cursor() as cursor:
                await cursor.execute("start transaction with consistent snapshot")
                await cursor.execute("select count(*) from nightmail_messages")
                yield
        finally:
            await connection.ensure_closed()

    async def multiply(self, url: str, table: str, times: int) -> None:
        await asyncio.to_thread(self._multiply, urlsplit(url).path[1:], table, times)

    def _multiply(self, database: str, table: str, times: int) -> None:
        described = self._server.sql(f"show columns from {database}.{table}")
        names = [str(row[0]) for row in described if row[0] != "id" and "GENERATED" not in row[5]]
        ((last,),) = self._server.sql(f"select max(id) from {database}.{table}")  # noqa: S608 - our own names
        for number in range(2, times + 1):
            self._server.sql(
                f"insert into {database}.{table} ({', '.join(names)}) "  # noqa: S608
                f"select {copied(names, number)} from {database}.{table} where id <= {last}"
            )

    async def _value(self, question: str) -> Any:
        return (await asyncio.to_thread(self._server.sql, question))[0][0]
