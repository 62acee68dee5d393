"""What a publish sends, and what the reply means."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from nightmail.errors import LeaseLost, PublishUncertain, StoreUnavailable, TimerExists
from nightmail.message import Delivery, Message
from nightmail.stores.redis.connect import Waiting
from nightmail.stores.redis.errors import translated
from nightmail.stores.redis.ids import following, stored_ids
from nightmail.stores.redis.keys import behind_the_tag
from nightmail.stores.redis.lane import Lane
from nightmail.stores.redis.link import Argument, Command
from nightmail.stores.redis.nodes import Nodes, by_slot
from nightmail.stores.redis.records import facts
from nightmail.stores.redis.registry import Registry
from nightmail.stores.redis.script_calls import ScriptCalls
from nightmail.stores.redis.scripts import Call
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
        call = self.prepared([message], fence, ids.next(), final=False)
        (id_,) = await self._stored(call, own)
        if id_ is None and message.on_conflict == "raise" and message.timer_id is not None:
            raise TimerExists(message.queue, message.timer_id)
        return id_

    async def publish_batch(self, messages: Sequence[Message]) -> list[int]:
        """Store messages without timer ids; returns their ids, in order.

        In a cluster each slot is a separate call: the first may succeed and the next fail.
        """
        ids = await self._registry.enter(message.queue for message in messages)
        tags = {queue: self._calls.keys.tag(queue) for queue in {message.queue for message in messages}}
        stored: dict[int, int] = {}
        for group in by_slot(self._nodes, ((tags[message.queue], at) for at, message in enumerate(messages))):
            places = [place for _, place in group]
            call = self.prepared(
                [messages[place] for place in places], None, ids.next(len(places)), final=False
            )
            try:
                found = await self._stored(call, None)
            except StoreUnavailable as error:
                if not stored or isinstance(error, PublishUncertain):
                    raise
                raise PublishUncertain(f"only a part of the batch was stored: {error}") from error
            stored.update((place, id_) for place, id_ in zip(places, found, strict=True) if id_ is not None)
        return [stored[place] for place in range(len(messages))]

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
        (token,) = await self._lane.ask(key, ("HGET", key, "token"))
        if token != own.token.bytes:
            raise LeaseLost((own.id,))

    def prepared(self, messages: Sequence[Message], own: Delivery | None, first: int, *, final: bool) -> Call:
        """The call that stores these, all in one slot, under ids from `first` on."""
        queues = dict.fromkeys(message.queue for message in messages)
        fence: tuple[Argument, ...] = (b"", b"", b"")
        if own is not None:
            queues[own.queue] = None
        place_of = {queue: place for place, queue in enumerate(queues, 1)}
        if own is not None:
            fence = (place_of[own.queue], behind_the_tag(own), own.token.bytes)
        arguments: list[Argument] = [*fence, int(final)]
        for at, message in enumerate(messages):
            arguments.append(facts(message, following(first, at), place_of[message.queue]))
            arguments.append(message.body)
        tags = [self._calls.keys.tag(queue) for queue in queues]
        return self._calls.call("publish", tags, *arguments, letter=first)

    async def _stored(self, call: Call, own: Delivery | None) -> list[int | None]:
        also: list[Command] = []
        if self._waiting.replicas:
            also.append(("WAIT", self._waiting.replicas, micros(self._waiting.patience) // 1000))
        # Two arguments for each message: a batch of fifty thousand takes seconds on a busy server.
        more_seconds = len(call.arguments) / _ARGUMENTS_A_SECOND
        answers = await self._lane.call(call, also=also, lost=PublishUncertain, more_seconds=more_seconds)
        if answers[0] == b"lost":
            raise LeaseLost(() if own is None else (own.id,))
        ids = stored_ids(answers[0])
        if not also or all(id_ is None for id_ in ids):
            return ids
        if isinstance(answers[1], Exception):
            better = translated(answers[1], PublishUncertain)
            raise PublishUncertain(f"the message is stored, but not confirmed: {better}") from answers[1]
        if answers[1] < self._waiting.replicas:
            raise PublishUncertain(
                f"the message is stored, but only {answers[1]} of {self._waiting.replicas} replicas confirmed it in "
                "time: a failover now may lose it"
            )
        return ids
