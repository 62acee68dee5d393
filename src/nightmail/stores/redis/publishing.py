"""What a publish sends, and what the reply means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from nightmail.errors import LeaseLost, PublishUncertain, TimerExists
from nightmail.message import Delivery, Message
from nightmail.stores.redis.connect import Waiting
from nightmail.stores.redis.errors import translated
from nightmail.stores.redis.ids import Ids, following, stored_ids
from nightmail.stores.redis.keys import key_suffix
from nightmail.stores.redis.lane import Lane
from nightmail.stores.redis.nodes import Nodes
from nightmail.stores.redis.records import facts
from nightmail.stores.redis.registry import Registry
from nightmail.stores.redis.requests import Argument, Call, Commands
from nightmail.stores.redis.script_calls import ScriptCalls
from nightmail.stores.redis.times import micros

_ARGUMENTS_A_SECOND: Final = 2_000


class Publishing:
    """Publishes on our own connection."""

    def __init__(
        self, lane: Lane, registry: Registry, calls: ScriptCalls, nodes: Nodes, waiting: Waiting
    ) -> None:
        self._lane = lane
        self._registry = registry
        self._calls = calls
        self._nodes = nodes
        self._waiting = waiting

    async def publish(self, message: Message, own: Delivery | None) -> int | None:
        """Store one message."""
        ids = await self._registry.enter([message.queue])
        fence = await self.fence(message.queue, own)
        (id_,) = await self._stored(self.prepared([message], fence, ids.next(), final=False), own)
        if id_ is None and message.on_conflict == "raise" and message.timer_id is not None:
            raise TimerExists(message.queue, message.timer_id)
        return id_

    async def publish_batch(self, messages: Sequence[Message], *, here: bool = False) -> list[int]:
        """Store messages without timer ids; returns their ids, in order. `here`: in this task, never cancelled."""
        ids = await self._registry.enter([message.queue for message in messages])
        return await self._stored_batch(messages, ids, here=here)

    async def _stored_batch(self, messages: Sequence[Message], ids: Ids, *, here: bool = False) -> list[int]:
        call = self.prepared(messages, None, ids.next(len(messages)), final=False)
        return [id_ for id_ in await self._stored(call, None, here=here) if id_ is not None]

    async def fence(self, queue: str, own: Delivery | None) -> Delivery | None:
        """The delivery that the script is to fence with.

        In a cluster the handler's own message may be in another slot, where the script cannot see it: then its lease
        is checked first, and one that is lost between the two calls goes unnoticed.
        """
        if own is None:
            return None
        tag, own_tag = self._calls.keys.tag(queue), self._calls.keys.tag(own.queue)
        if self._nodes.slot(tag) == self._nodes.slot(own_tag):
            return own
        await self.check_held(own)
        return None

    async def check_held(self, own: Delivery) -> None:
        """Raise `LeaseLost` unless this lease holds."""
        key = self._calls.keys.of(own)
        (token,) = await self._lane.run(Commands(key, ("HGET", key, "token")))
        if token != own.token.bytes:
            raise LeaseLost((own.id,))

    def prepared(self, messages: Sequence[Message], own: Delivery | None, first: int, *, final: bool) -> Call:
        """The call that stores these, all in one slot, under ids from `first` on."""
        queues: dict[str, None] = dict.fromkeys([message.queue for message in messages])
        fence: tuple[Argument, ...] = (b"", b"", b"")
        if own is not None:
            queues[own.queue] = None
        place_of = {queue: place for place, queue in enumerate(queues, 1)}
        if own is not None:
            fence = (place_of[own.queue], key_suffix(own), own.token.bytes)
        # What joins a caller's MULTI waits for no replica: see `Waiting`.
        arguments: list[Argument] = [*fence, int(final), 0 if final else self._waiting.replicas]
        for at, message in enumerate(messages):
            arguments.append(facts(message, following(first, at), place_of[message.queue]))
            arguments.append(message.body)
        tags = [self._calls.keys.tag(queue) for queue in queues]
        # Two arguments for each message: a batch of fifty thousand takes seconds on a busy server.
        more_seconds = len(arguments) / _ARGUMENTS_A_SECOND
        return self._calls.call("publish", tags, *arguments, letter=first, more_seconds=more_seconds)

    async def _stored(self, call: Call, own: Delivery | None, *, here: bool = False) -> list[int | None]:
        if self._waiting.replicas:
            wait = ("WAIT", self._waiting.replicas, micros(self._waiting.patience) // 1000)
            call = replace(call, then=(wait,))
        run = self._lane.run_here if here else self._lane.run
        answers = await run(call, lost=PublishUncertain)
        if answers[0] == b"lost":
            raise LeaseLost(() if own is None else (own.id,))
        ids = stored_ids(answers[0])
        if not call.then:
            return ids
        # Also where the timer id was taken: its owner may be what an earlier try stored, and no replica have it yet.
        if isinstance(answers[1], Exception):
            better = translated(answers[1], PublishUncertain)
            raise PublishUncertain(f"the message is stored, but not confirmed: {better}") from answers[1]
        if answers[1] < self._waiting.replicas:
            raise PublishUncertain(
                f"the message is stored, but only {answers[1]} of {self._waiting.replicas} replicas confirmed it in "
                "time: a failover now may lose it"
            )
        return ids
