"""By hand on asyncmy."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import urlsplit

import asyncmy

from benchmarks.adapters.by_hand import BATCH, ByHand
from benchmarks.adapters.harness import Send, Unsupported, serve

TABLE: Final = (
    "create table if not exists raw (id bigint auto_increment primary key, due datetime(6) default now(6), "
    "lease datetime(6), body blob, key (due, id))"
)
INSERT: Final = "insert into raw (body) values (%s)"
LEASE: Final = (
    "select id, body from raw where due <= now(6) and lease is null order by due, id limit %s "
    "for update skip locked"
)


class ByHandMariaDB(ByHand):
    """One connection."""

    async def open(self, url: str, profile: str) -> None:
        self._url = urlsplit(url)
        self._connection = await self._connect()
        await self._execute(TABLE)

    async def _connect(self) -> Any:
        url = self._url
        connection = await asyncmy.connect(
            host=url.hostname, port=url.port, user=url.username, password=url.password or "", db=url.path[1:]
        )
        async with connection.cursor() as cursor:
            await cursor.execute("set session transaction isolation level read committed")
        return connection

    async def _execute(self, statement: str) -> None:
        async with self._connection.cursor() as cursor:
            await cursor.execute(statement)
        await self._connection.commit()

    @asynccontextmanager
    async def publisher(self, how: str) -> AsyncIterator[Send]:
        if how == "session":
            raise Unsupported("publishing in an AsyncSession")
        connection = await self._connect()

        async def send(body: dict[str, Any], queue: str, due: float | None, timer: str | None) -> object:
            async with connection.cursor() as cursor:
                await cursor.execute(INSERT, (json.dumps(body).encode(),))
            return await connection.commit()

        yield send
        connection.close()

    async def insert(self, bodies: Sequence[bytes]) -> None:
        async with self._connection.cursor() as cursor:
            await cursor.executemany(INSERT, [(body,) for body in bodies])
        await self._connection.commit()

    async def lease(self) -> Sequence[tuple[Any, bytes]]:
        async with self._connection.cursor() as cursor:
            await cursor.execute(LEASE, (BATCH,))
            rows: Sequence[tuple[Any, bytes]] = await cursor.fetchall()
            if rows:
                ids = ",".join(str(id_) for id_, _ in rows)
                await cursor.execute(
                    f"update raw set lease = now(6) + interval 1 minute where id in ({ids})"  # noqa: S608 - our own ids
                )
        await self._connection.commit()
        return rows

    async def delete(self, ids: Sequence[Any]) -> None:
        await self._execute(
            f"delete from raw where id in ({','.join(map(str, ids))})"  # noqa: S608 - our own ids
        )

    async def close(self) -> None:
        await self.stop()
        self._connection.close()


if __name__ == "__main__":
    serve(ByHandMariaDB())
