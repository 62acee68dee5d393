"""Pipelines of callers, as they can carry a message: on one server, and in a cluster."""

from __future__ import annotations

from typing import Any, Final, Protocol

import redis
from redis.asyncio import Redis, RedisCluster
from redis.asyncio.client import Pipeline
from redis.asyncio.cluster import ClusterPipeline

from nightmail.errors import CannotJoin, NotInTransaction
from nightmail.store import Blocking
from nightmail.stores.redis.requests import Call

_NO_MULTI: Final = (
    "this pipeline has no MULTI, so nothing keeps its commands together: "
    "make it with pipeline(transaction=True)"
)


class CallersPipeline(Protocol):
    """A pipeline that can carry a message."""

    @property
    def place(self) -> Any:
        """Its client's identity: checked once for being our database."""
        ...

    @property
    def slots(self) -> set[int]:
        """The slots of its commands, in a cluster."""
        ...

    async def read(self, key: str, field: str) -> Any:
        """A field of a hash, as the pipeline's own client sees it."""
        ...

    def queue(self, call: Call) -> None:
        """Add this to the commands."""
        ...


class _OnOneServer:
    """A pipeline of a `Redis` client."""

    def __init__(self, pipeline: Pipeline) -> None:
        if not (pipeline.is_transaction or pipeline.explicit_transaction):
            raise NotInTransaction(_NO_MULTI)
        if pipeline.watching and not pipeline.explicit_transaction:
            raise NotInTransaction(
                "this pipeline watches keys and carries out each command at once: call multi() first"
            )
        self._pipeline: Any = pipeline
        self.place: Any = pipeline.connection_pool
        self.slots: set[int] = set()

    async def read(self, key: str, field: str) -> Any:
        if self._pipeline.watching:
            # It already has a connection, perhaps the pool's only one.
            return await self._pipeline.immediate_execute_command("HGET", key, field)
        client: Any = Redis(connection_pool=self.place)
        return await client.hget(key, field)

    def queue(self, call: Call) -> None:
        self._pipeline.pipeline_execute_command(*call.for_old_servers.in_full)


class _InACluster:
    """A pipeline of a `RedisCluster` client."""

    def __init__(self, pipeline: ClusterPipeline) -> None:
        # Older drivers do not support MULTI in a cluster.
        if not getattr(pipeline, "_transaction", False):
            raise NotInTransaction(_NO_MULTI)
        self._pipeline: Any = pipeline
        self.place: Any = pipeline.cluster_client
        self.slots: set[int] = set(getattr(pipeline._execution_strategy, "_pipeline_slots", ()))

    async def read(self, key: str, field: str) -> Any:
        return await self.place.hget(key, field)

    def queue(self, call: Call) -> None:
        self._pipeline.execute_command(*call.for_old_servers.in_full)


def refuse_synchronous(transaction: object) -> None:
    """Refuse a synchronous pipeline, for which we could ask nothing on our own connections."""
    if isinstance(transaction, Blocking | redis.client.Pipeline):
        raise CannotJoin(
            "a pipeline of synchronous code cannot be joined. Publish in a pipeline of redis.asyncio, or without one, "
            "once yours is executed"
        )


def joined(transaction: object) -> CallersPipeline:
    """The caller's pipeline, if it can carry a message."""
    if isinstance(transaction, ClusterPipeline):
        return _InACluster(transaction)
    if isinstance(transaction, Pipeline):
        return _OnOneServer(transaction)
    refuse_synchronous(transaction)
    if isinstance(transaction, Redis | RedisCluster):
        raise CannotJoin("a client is not a transaction: pass a pipeline(transaction=True) of it")
    raise CannotJoin(
        f"a {type(transaction).__name__} is not a transaction of Redis: pass a pipeline of redis.asyncio"
    )
