"""Publishing in a caller's MULTI.

The message joins the commands that the caller has queued, and is stored when they are executed, or not at all. Nothing
can be read or answered before the end, so the id is made here, and whatever would need an answer is refused. The script
is sent in full: a server that does not know its digest would refuse it alone, and execute the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol
from weakref import WeakKeyDictionary

import redis
from redis.asyncio import Redis, RedisCluster
from redis.asyncio.client import Pipeline
from redis.asyncio.cluster import ClusterPipeline

from nightmail.errors import CannotJoin, NotInTransaction, OtherDatabase, SchemaMissing
from nightmail.message import Delivery, Message
from nightmail.store import Blocking
from nightmail.stores.redis.ids import following
from nightmail.stores.redis.keys import Keys
from nightmail.stores.redis.lane import Lane
from nightmail.stores.redis.nodes import Nodes
from nightmail.stores.redis.publishing import Publishing
from nightmail.stores.redis.registry import Registry
from nightmail.stores.redis.scripts import Call

_NO_MULTI: Final = (
    "this pipeline has no MULTI, so nothing keeps its commands together: "
    "make it with pipeline(transaction=True)"
)

_OTHER_SLOT: Final = (
    "keys of this pipeline are in another slot of the cluster than the message: begin your keys with the queue's tag, "
    "`store.tag(queue)`"
)


class _Joined(Protocol):
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


def joined(transaction: object) -> _Joined:
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


class Pipelines:
    """Publishes in callers' pipelines."""

    def __init__(
        self, lane: Lane, registry: Registry, publishing: Publishing, nodes: Nodes, keys: Keys
    ) -> None:
        self._lane = lane
        self._registry = registry
        self._publishing = publishing
        self._nodes = nodes
        self._keys = keys
        self._ours: WeakKeyDictionary[Any, bytes] = WeakKeyDictionary()

    async def publish(self, transaction: object, message: Message, own: Delivery | None) -> int:
        """Queue one message; returns the id that it gets if it is new."""
        pipeline = joined(transaction)
        if message.on_conflict == "raise":
            raise CannotJoin(
                'on_conflict="raise" cannot be used in a pipeline: whether the timer id is taken is known only when '
                "the pipeline is executed. Use skip or replace"
            )
        return (await self._queue(pipeline, [message], own))[0]

    async def publish_batch(self, transaction: object, messages: Sequence[Message]) -> list[int]:
        """Queue messages; returns their ids."""
        return await self._queue(joined(transaction), messages, None)

    async def _queue(self, pipeline: _Joined, messages: Sequence[Message], own: Delivery | None) -> list[int]:
        slots = {self._nodes.slot(self._keys.tag(message.queue)) for message in messages}
        if len(slots | pipeline.slots) > 1:
            raise CannotJoin(_OTHER_SLOT)
        await self._check_ours(pipeline)
        ids = await self._registry.enter(message.queue for message in messages)
        fence = None
        if own is not None:
            # Checked now, while the caller can still be told; and again by the script, which then stores nothing.
            await self._publishing.check_held(own)
            fence = await self._publishing.fence(messages[0].queue, own)
        first = ids.next(len(messages))
        pipeline.queue(self._publishing.prepared(messages, fence, first, final=True))
        return [following(first, place) for place in range(len(messages))]

    async def check_ours(self, transaction: object) -> None:
        """Refuse a pipeline to another database."""
        await self._check_ours(joined(transaction))

    def check_slots(self, transaction: object) -> None:
        """Refuse a pipeline whose keys are not all on one node."""
        if len(joined(transaction).slots) > 1:
            raise CannotJoin(_OTHER_SLOT)

    async def _check_ours(self, pipeline: _Joined) -> None:
        # Asked once for each client, and by that client.
        (identity,) = await self._lane.ask(self._keys.meta, ("HGET", self._keys.meta, "identity"))
        if identity is None:
            raise SchemaMissing
        if self._ours.get(pipeline.place) == identity:
            return
        found = await pipeline.read(self._keys.meta, "identity")
        if (found.encode() if isinstance(found, str) else found) != identity:
            raise OtherDatabase("the pipeline belongs to another Redis or another database than the store")
        self._ours[pipeline.place] = identity
