"""Move dead letters back to queues.

Within a slot, and so always on a single server, one script moves them atomically: each is either a dead letter or a
message, never both or neither. To a queue in another slot of a cluster it takes several: see `crossing`.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final

from nightmail.records import DeadLetter
from nightmail.stores.redis.cluster.crossing import Crossing
from nightmail.stores.redis.ids import Ids, digits, following, stored_ids
from nightmail.stores.redis.lane import Lane
from nightmail.stores.redis.nodes import Nodes, by_slot
from nightmail.stores.redis.registry import Registry
from nightmail.stores.redis.requests import Argument
from nightmail.stores.redis.script_calls import ScriptCalls
from nightmail.stores.shared.provenance import redriven_headers

# As in redrive.lua: the dead letter's queue, the queue it goes to, the dead letter's id, the new message's.
_MOVE: Final = Struct(">HH16s16s")


class Redriving:
    """See `Inspection.redrive`, on the connection for publishes."""

    def __init__(self, lane: Lane, registry: Registry, calls: ScriptCalls, nodes: Nodes) -> None:
        self._lane = lane
        self._registry = registry
        self._calls = calls
        self._nodes = nodes
        self._crossing = Crossing(lane, calls, nodes)

    async def redrive(
        self, letters: Sequence[DeadLetter], to: str | None, *, keep_timer_ids: bool
    ) -> list[int]:
        """Move these; returns the ids of those that moved."""
        chosen = list({(letter.queue, letter.id): letter for letter in letters}.values())
        if not chosen:
            return []
        ids = await self._registry.enter({to or letter.queue for letter in chosen})
        slots = {self._nodes.slot(self._calls.keys.tag(queue)) for queue in {each.queue for each in chosen}}
        if to is not None and slots != {self._nodes.slot(self._calls.keys.tag(to))}:
            moved = await self._crossing.redrive(chosen, to, ids, keep_timer_ids=keep_timer_ids)
        else:
            moved = await self._within_slots(chosen, to, ids, keep_timer_ids=keep_timer_ids)
        return [id_ for id_ in moved if id_ is not None]

    async def _within_slots(
        self, letters: Sequence[DeadLetter], to: str | None, ids: Ids, *, keep_timer_ids: bool
    ) -> list[int | None]:
        tags = {queue: self._calls.keys.tag(queue) for queue in {letter.queue for letter in letters}}
        if to is not None:
            tags[to] = self._calls.keys.tag(to)
        first = ids.next(len(letters))
        moved: list[int | None] = [None] * len(letters)
        for group in by_slot(self._nodes, ((tags[letter.queue], at) for at, letter in enumerate(letters))):
            keys = list(dict.fromkeys([tag for tag, _ in group] + ([tags[to]] if to is not None else [])))
            place_of = {tag: place for place, tag in enumerate(keys, 1)}
            arguments: list[Argument] = []
            for tag, at in group:
                letter = letters[at]
                target = tag if to is None else tags[to]
                fixed = _MOVE.pack(
                    place_of[tag], place_of[target], digits(letter.id), digits(following(first, at))
                )
                arguments.append(fixed + new_headers(letter))
            call = self._calls.call("redrive", keys, int(keep_timer_ids), *arguments, letter=ids.next())
            (answer,) = await self._lane.run(call)
            for (_, at), id_ in zip(group, stored_ids(answer), strict=True):
                moved[at] = id_
        return moved


def new_headers(letter: DeadLetter) -> bytes:
    """The headers of the message that the dead letter becomes; empty if they do not change."""
    headers = redriven_headers(letter)
    return b"" if headers == letter.encoded_headers else headers.encode()
