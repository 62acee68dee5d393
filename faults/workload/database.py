"""The application's side of each store: its own transactions, and the table of effects."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, Self

from redis.asyncio import Redis, RedisCluster
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine

from faults.workload.config import TRANSACTIONAL
from nightmail import open_store
from nightmail.stores.redis import RedisStore
from nightmail.stores.sqlite import begin_immediate

_DRIVERS: Final = {"postgresql": "postgresql+asyncpg", "mysql": "mysql+asyncmy", "sqlite": "sqlite+aiosqlite"}

_ARGUMENTS: Final[dict[str, dict[str, Any]]] = {
    # Statements with names do not get through a pooler.
    "postgresql": {"timeout": 10.0, "statement_cache_size": 0, "prepared_statement_name_func": lambda: ""},
    "mysql": {},
    "sqlite": {"timeout": 10.0},
}

_SNAPSHOTS: Final = {
    "postgresql": "begin isolation level repeatable read",
    "mysql": "start transaction with consistent snapshot",
    "sqlite": "begin",
}


class RolledBack(Exception):
    """Ends a transaction that is not to be."""


class Database:
    """Where an application keeps its own data: the same database as the messages."""

    @classmethod
    def at(cls, url: str) -> Database:
        """The one at this URL."""
        return RedisDatabase(url) if url.startswith("redis") else SqlDatabase(url)

    async def prepare(self) -> None:
        """Make what the effects are written to."""

    def transaction(self) -> Any:
        """A transaction of the application's, committed at the end of the block."""
        raise NotImplementedError

    async def effects(self) -> list[str]:
        """The key of each effect."""
        raise NotImplementedError

    async def version(self) -> str:
        """What the server says that it is."""
        raise NotImplementedError

    async def durability(self) -> str:
        """What its acknowledgements wait for, by its own settings, as the server tells them."""
        raise NotImplementedError

    async def close(self) -> None:
        """Give back its connections."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class SqlDatabase(Database):
    """In an SQL database effects are rows, and nothing keeps one from being there twice."""

    def __init__(self, url: str) -> None:
        scheme, _, rest = url.partition("?")[0].partition("://")
        # Servers die here. Without the ping the pool hands out connections that died with one, long after another has
        # taken over: SQLAlchemy's documentation advises it, and an application that means to survive has it.
        self.engine: Final[AsyncEngine] = create_async_engine(
            f"{_DRIVERS[scheme]}://{rest}", connect_args=_ARGUMENTS[scheme], pool_size=10, pool_pre_ping=True
        )
        if scheme == "sqlite":
            begin_immediate(self.engine)
        self.sessions: Final = async_sessionmaker(self.engine)

    async def prepare(self) -> None:
        async with self.engine.begin() as connection:
            await connection.execute(text("create table faults_effects (message varchar(200) not null)"))

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncSession]:
        async with self.sessions() as session, session.begin():
            yield session

    @asynccontextmanager
    async def old_snapshot(self) -> AsyncIterator[None]:
        """A transaction that has read, and goes on seeing what it saw."""
        async with self.engine.connect() as own:
            connection = await own.execution_options(isolation_level="AUTOCOMMIT")
            for statement in (_SNAPSHOTS[self.engine.dialect.name], "select count(*) from faults_effects"):
                await connection.exec_driver_sql(statement)
            try:
                yield
            finally:
                await connection.exec_driver_sql("rollback")

    async def effects(self) -> list[str]:
        async with self.engine.connect() as connection:
            return [row[0] for row in await connection.execute(text("select message from faults_effects"))]

    async def version(self) -> str:
        name = self.engine.dialect.name
        function = "sqlite_version()" if name == "sqlite" else "version()"
        async with self.engine.connect() as connection:
            told = str((await connection.execute(text(f"select {function}"))).scalar_one())
        if name == "postgresql":
            return " ".join(told.split()[:2])
        return f"SQLite {told}" if name == "sqlite" else f"MariaDB {told.partition('-')[0]}"

    async def durability(self) -> str:
        async with self.engine.connect() as connection:

            async def told(question: str) -> str:
                return str((await connection.execute(text(question))).scalar_one())

            match self.engine.dialect.name:
                case "postgresql":
                    standby = ""
                    if await told("show synchronous_standby_names"):
                        standby = ", synchronous standby"
                    elif await told("select count(*) from pg_stat_replication") != "0":
                        standby = ", asynchronous standby"
                    return f"Postgres, `synchronous_commit {await told('show synchronous_commit')}`{standby}"
                case "mysql":
                    flushed = await told("select @@innodb_flush_log_at_trx_commit")
                    is_galera = await told("select @@wsrep_on") in ("1", "True")
                    name = "Galera" if is_galera else "MariaDB"
                    return f"{name}, `innodb_flush_log_at_trx_commit {flushed}`"
                case _:
                    return "SQLite"

    async def close(self) -> None:
        await self.engine.dispose()


async def write_effect(session: AsyncSession, key: str) -> None:
    """The effect of a handler's, in its own session."""
    await session.execute(text("insert into faults_effects (message) values (:key)"), {"key": key})


class RedisDatabase(Database):
    """In Redis effects are entries of a list."""

    def __init__(self, url: str) -> None:
        # No retries: a command whose answer was lost would be carried out twice.
        address, _, self._options = url.partition("?")  # What follows is for the store.
        options: dict[str, Any] = {"socket_timeout": 10.0, "decode_responses": True}
        self.client: Final[Any] = (
            RedisCluster.from_url(
                address.replace("redis+cluster", "redis"), cluster_error_retry_attempts=0, **options
            )
            if url.startswith("redis+cluster")
            else Redis.from_url(address, retry=None, **options)
        )
        store = open_store(url)
        assert isinstance(store, RedisStore)
        # In a cluster it has to be where the messages of the queue are.
        self.effects_key: Final = f"{store.tag(TRANSACTIONAL)}:effects"

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        async with self.client.pipeline(transaction=True) as pipeline:
            yield pipeline
            await pipeline.execute()

    async def effects(self) -> list[str]:
        return [str(entry) for entry in await self.client.lrange(self.effects_key, 0, -1)]

    async def version(self) -> str:
        told = await self.client.info("server")
        # A cluster answers for each of its nodes.
        first = told if "redis_version" in told else next(iter(told.values()))
        return (
            f"Valkey {first['valkey_version']}"
            if "valkey_version" in first
            else f"Redis {first['redis_version']}"
        )

    async def durability(self) -> str:
        is_cluster = isinstance(self.client, RedisCluster)
        name = (await self.version()).partition(" ")[0] + (" Cluster" if is_cluster else "")
        synced = await self._setting("appendfsync")
        said = [
            f"`appendfsync {synced}`" if await self._setting("appendonly") == "yes" else "`appendonly no`"
        ]
        if is_cluster:
            said.append("asynchronous replicas")
        if (copies := await self._setting("min-replicas-to-write")) != "0":
            lag = await self._setting("min-replicas-max-lag")
            said.append(f"`min-replicas-to-write {copies}` and `min-replicas-max-lag {lag}`")
        said += [f"`{option}` in the URL of the store" for option in self._options.split("&") if option]
        return ", ".join((name, *said))

    async def _setting(self, name: str) -> str:
        options = {"target_nodes": RedisCluster.RANDOM} if isinstance(self.client, RedisCluster) else {}
        told = await self.client.execute_command("CONFIG GET", name, **options)
        if isinstance(told, dict):
            # Of a cluster by node, with some versions of the client.
            return str(told[name] if name in told else next(iter(told.values())))
        return str(told[1])

    async def close(self) -> None:
        await self.client.aclose()
