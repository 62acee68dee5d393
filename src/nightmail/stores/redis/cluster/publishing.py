"""Batches in a cluster: one call for each slot."""

from __future__ import annotations

from collections.abc import Sequence

from nightmail.errors import PublishUncertain, StoreUnavailable
from nightmail.message import Message
from nightmail.stores.redis.connect import Waiting
from nightmail.stores.redis.ids import Ids
from nightmail.stores.redis.lane import Lane
from nightmail.stores.redis.nodes import Nodes, by_slot
from nightmail.stores.redis.publishing import Publishing
from nightmail.stores.redis.registry import Registry
from nightmail.stores.redis.script_calls import ScriptCalls
from nightmail.stores.shared.to_the_end import ToTheEnd


class ClusterPublishing(Publishing):
    """See `Publishing`. Of a batch, the first slot may succeed and the next fail."""

    def __init__(
        self,
        lane: Lane,
        registry: Registry,
        calls: ScriptCalls,
        nodes: Nodes,
        waiting: Waiting,
        to_the_end: ToTheEnd,
    ) -> None:
        super().__init__(lane, registry, calls, nodes, waiting)
        self._to_the_end = to_the_end

    async def publish_batch(self, messages: Sequence[Message], *, here: bool = False) -> list[int]:
        """See `Publishing`. Once begun, every slot is written to, whether or not the caller still waits."""
        ids = await self._registry.enter(message.queue for message in messages)
        return await self._to_the_end.run(self._by_slot(messages, ids))

    async def _by_slot(self, messages: Sequence[Message], ids: Ids) -> list[int]:
        tags = {queue: self._calls.keys.tag(queue) for queue in {message.queue for message in messages}}
        stored: dict[int, int] = {}
        for group in by_slot(self._nodes, ((tags[message.queue], at) for at, message in enumerate(messages))):
            places = [place for _, place in group]
            try:
                found = await self._stored_batch([messages[place] for place in places], ids)
            except StoreUnavailable as error:
                if not stored or isinstance(error, PublishUncertain):
                    raise
                raise PublishUncertain(f"only a part of the batch was stored: {error}") from error
            stored.update(zip(places, found, strict=True))
        return [stored[place] for place in range(len(messages))]
