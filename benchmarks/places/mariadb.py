"""MariaDB, with a flush at every commit."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from urllib.parse import urlsplit

import asyncmy
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from benchmarks.places.place import Bounds, Place
from benchmarks.places.raw import BATCH, ENCODED, handle_all
from testkit.servers.mariadb import MariaDB as Server


@contextmanager
def mariadb() -> Iterator[Place]:
    """A private server."""
    with Server(durable=True) as server:
        server.start()
        yield MariaDB(server.create_database())


class MariaDB(Place):
    """A database of its own."""

    name = "mariadb"
    bounds = Bounds(
        share=45, batch_share=60, round_trips=0.15, pick_up_ms=150, lateness_ms=40, idle_queries=10
    )

    async def round_trips(self) -> int:
        return await self._ask(
            "select variable_value from information_schema.global_status where variable_name = 'Questions'"
        )

    async def connections(self) -> int:
        return await self._ask(
            "select count(*) from information_schema.processlist where db = database() and id <> connection_id()"
        )

    @asynccontextmanager
    async def transactions(self) -> AsyncIterator[AsyncEngine]:
        engine = create_async_engine(self.url.replace("mysql://", "mysql+asyncmy://"))
        yield engine
        await engine.dispose()

    async def raw_rate(self, count: int) -> float:
        async with self._connected() as (connection, cursor):
            await cursor.execute(
                "create table raw (id bigint auto_increment primary key, due datetime(6) default now(6), "
                "lease datetime(6), body blob, key (due, id))"
            )
            for start in range(0, count, 1000):
                await cursor.executemany(
                    "insert into raw (body) values (%s)", [(ENCODED,)] * min(1000, count - start)
                )
            await connection.commit()
            begun = time.perf_counter()
            while True:
                await cursor.execute(
                    "select id, body from raw where due <= now(6) and lease is null order by due, id limit %s "
                    "for update skip locked",
                    (BATCH,),
                )
                rows = await cursor.fetchall()
                if not rows:
                    break
                ids = ",".join(str(id_) for id_, _ in rows)
                await cursor.execute(
                    f"update raw set lease = now(6) + interval 1 minute where id in ({ids})"  # noqa: S608 - our own ids
                )
                await connection.commit()
                await handle_all(body for _, body in rows)
                await cursor.execute(f"delete from raw where id in ({ids})")  # noqa: S608 - our own ids
                await connection.commit()
            seconds = time.perf_counter() - begun
            await cursor.execute("drop table raw")
            return count / seconds

    async def _ask(self, question: str) -> int:
        async with self._connected() as (_, cursor):
            await cursor.execute(question)
            return int((await cursor.fetchone())[0])

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[tuple[Any, Any]]:
        url = urlsplit(self.url)
        connection = await asyncmy.connect(
            host=url.hostname, port=url.port, user=url.username, password=url.password or "", db=url.path[1:]
        )
        try:
            async with connection.cursor() as cursor:
                await cursor.execute("set session transaction isolation level read committed")
                yield connection, cursor
        finally:
            connection.close()
