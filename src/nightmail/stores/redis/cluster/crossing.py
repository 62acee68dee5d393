"""Move dead letters to a queue in another slot of a cluster, which no single script can do.

    hold    lease the dead letters: nothing else claims, moves or deletes them. Each records its target and its move id
    store   them as messages there, recording the move ids
    end     delete the dead letters that are stored
    forget  the move ids there, now that the move cannot be repeated

Nothing is ever lost: a dead letter is deleted only once its message is stored. A process that dies midway leaves a dead
letter that is held until the lease ends, and perhaps its message, too. Moving it to the same queue again completes the
move and stores nothing twice, whether or not that message was delivered meanwhile. At worst, if something else is done
with the dead letter then, or another worker takes it over because the move outlasted the lease, it is handled twice: as
a message and as a dead letter.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from struct import Struct
from typing import Final
from uuid import uuid4

from redis.exceptions import ResponseError as RedisResponseError

from nightmail.errors import StoreUnavailable
from nightmail.records import DeadLetter
from nightmail.stores.redis.ids import DIGITS, Ids, digits, following, stored_ids
from nightmail.stores.redis.lane import Lane
from nightmail.stores.redis.letter_records import LetterRecord, letter_records
from nightmail.stores.redis.nodes import Nodes, by_slot
from nightmail.stores.redis.requests import Argument, Commands
from nightmail.stores.redis.script_calls import ScriptCalls
from nightmail.stores.redis.times import micros
from nightmail.stores.shared.provenance import redriven_headers

LEASE: Final = timedelta(minutes=1)
"""Longer than three calls that each nearly time out."""

# As in cross_hold.lua: queue, dead letter, move; in cross_store.lua: move, priority, sizes of timer id and ordering
# key; in cross_end.lua: queue, dead letter, whether it is stored.
_HOLD: Final = Struct(">H16s16s")
_STORE: Final = Struct(">16sBII")
_END: Final = Struct(">H16sB")
_HELD: Final = ord("h")


class Crossing:
    """Moves between slots, on the connection for publishes."""

    def __init__(self, lane: Lane, calls: ScriptCalls, nodes: Nodes) -> None:
        self._lane = lane
        self._calls = calls
        self._nodes = nodes

    async def redrive(
        self, letters: Sequence[DeadLetter], to: str, ids: Ids, *, keep_timer_ids: bool
    ) -> list[int | None]:
        """Move these; returns the new id of each, or `None` for one that stays."""
        token = uuid4().bytes
        held = await self._hold(letters, to, ids, token)
        try:
            stored = await self._store(letters, held, to, keep_timer_ids=keep_timer_ids) if held else {}
        except StoreUnavailable as error:
            if isinstance(error.__cause__, RedisResponseError):
                # Nothing was stored, as when the memory is full: release the dead letter before its lease ends.
                with suppress(StoreUnavailable):
                    await self._end(letters, held, {}, token)
            raise
        ended = await self._end(letters, held, stored, token)
        await self._forget(to, {held[at][0]: id_ for at, id_ in stored.items() if at in ended})
        return [stored.get(at) for at in range(len(letters))]

    async def _hold(
        self, letters: Sequence[DeadLetter], to: str, ids: Ids, token: bytes
    ) -> dict[int, tuple[bytes, LetterRecord]]:
        """Hold those that exist and are not leased; returns the move id and the dead letter of each."""
        first = ids.next(len(letters))
        held: dict[int, tuple[bytes, LetterRecord]] = {}
        for tags, places, chosen in self._groups(letters, range(len(letters))):
            facts = [
                _HOLD.pack(place, digits(letters[at].id), digits(following(first, at)))
                for place, at in zip(places, chosen, strict=True)
            ]
            (found,) = await self._lane.run(
                self._calls.call("cross_hold", tags, micros(LEASE), token, to, *facts)
            )
            for at, part in zip(chosen, found, strict=True):
                if part:
                    (record,) = letter_records(part, DIGITS)
                    held[at] = (part[:DIGITS], record)
        return dict(sorted(held.items()))

    async def _store(
        self,
        letters: Sequence[DeadLetter],
        held: dict[int, tuple[bytes, LetterRecord]],
        to: str,
        *,
        keep_timer_ids: bool,
    ) -> dict[int, int]:
        """The ids of the messages; none for a dead letter whose timer id is taken, or goes to a later one."""
        arguments: list[Argument] = []
        for at, (move, record) in held.items():
            message = record.message
            name = message.timer_id if keep_timer_ids else None
            timer = b"" if name is None else name.encode()
            key = b"" if message.ordering_key is None else message.ordering_key.encode()
            fixed = _STORE.pack(move, message.priority, len(timer), len(key))
            headers = redriven_headers(record.letter(letters[at].queue)).encode()
            arguments += [fixed + timer + key + headers, message.body]
        call = self._calls.call("cross_store", [self._calls.keys.tag(to)], *arguments)
        (answer,) = await self._lane.run(call)
        return {at: id_ for at, id_ in zip(held, stored_ids(answer), strict=True) if id_ is not None}

    async def _end(
        self,
        letters: Sequence[DeadLetter],
        held: dict[int, tuple[bytes, LetterRecord]],
        stored: dict[int, int],
        token: bytes,
    ) -> set[int]:
        """Those that no other worker has taken over meanwhile."""
        ended: set[int] = set()
        for tags, places, chosen in self._groups(letters, held):
            facts = [
                _END.pack(place, digits(letters[at].id), at in stored)
                for place, at in zip(places, chosen, strict=True)
            ]
            (answer,) = await self._lane.run(self._calls.call("cross_end", tags, token, *facts))
            ended.update(at for at, letter in zip(chosen, answer, strict=True) if letter == _HELD)
        return ended

    async def _forget(self, to: str, stored: dict[bytes, int]) -> None:
        if stored:
            key = f"{self._calls.keys.tag(to)}:moved"
            # What is left there is swept later, and nothing waits for it.
            with suppress(StoreUnavailable):
                await self._lane.run(
                    Commands(key, ("ZREM", key, *(move + digits(id_) for move, id_ in stored.items())))
                )

    def _groups(
        self,
        letters: Sequence[DeadLetter],
        chosen: Iterable[int],
    ) -> list[tuple[list[str], list[int], list[int]]]:
        """For each slot: the tags, and for each dead letter the index of its tag and its own index."""
        groups: list[tuple[list[str], list[int], list[int]]] = []
        for group in by_slot(self._nodes, ((self._calls.keys.tag(letters[at].queue), at) for at in chosen)):
            tags = list(dict.fromkeys(tag for tag, _ in group))
            groups.append((tags, [tags.index(tag) + 1 for tag, _ in group], [at for _, at in group]))
        return groups
