"""Publishing in a caller's MULTI.

The message joins the commands that the caller has queued, and is stored when they are executed, or not at all. Nothing
can be read or answered before the end, so the id is made here, and whatever would need an answer is refused. The script
is sent in full: a server that does not know its digest would refuse it alone, and execute the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary

from nightmail.errors import CannotJoin, OtherDatabase, SchemaMissing
from nightmail.message import Delivery, Message
from nightmail.stores.redis.callers import CallersPipeline, joined
from nightmail.stores.redis.ids import following
from nightmail.stores.redis.keys import Keys
from nightmail.stores.redis.lane import Lane
from nightmail.stores.redis.nodes import Nodes
from nightmail.stores.redis.publishing import Publishing
from nightmail.stores.redis.registry import Registry
from nightmail.stores.redis.requests import Commands

_OTHER_SLOT: Final = (
    "keys of this pipeline are in another slot of the cluster than the message: begin your keys with the queue's tag, "
    "`store.tag(queue)`"
)


class Joining:
    """Publishes in callers' pipelines."""

    def __init__(
        self, lane: Lane, registry: Registry, publishing: Publishing, nodes: Nodes, keys: Keys
    ) -> None:
        self._lane = lane
        self._registry = registry
        self._publishing = publishing
        self._nodes = nodes
        self._keys = keys
        self._identities: WeakKeyDictionary[Any, bytes] = WeakKeyDictionary()
        """The identity of the tables that each client was found to have."""

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

    async def _queue(
        self, pipeline: CallersPipeline, messages: Sequence[Message], own: Delivery | None
    ) -> list[int]:
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

    async def _check_ours(self, pipeline: CallersPipeline) -> None:
        # Asked once for each client, and by that client.
        (identity,) = await self._lane.run(Commands(self._keys.meta, ("HGET", self._keys.meta, "identity")))
        if identity is None:
            raise SchemaMissing
        if self._identities.get(pipeline.place) == identity:
            return
        found = await pipeline.read(self._keys.meta, "identity")
        if (found.encode() if isinstance(found, str) else found) != identity:
            raise OtherDatabase("the pipeline belongs to another Redis or another database than the store")
        self._identities[pipeline.place] = identity
