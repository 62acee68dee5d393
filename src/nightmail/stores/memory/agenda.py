"""A priority queue of keys by time."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Final, Generic, TypeVar

Moment = TypeVar("Moment")
Key = TypeVar("Key", int, str)

_SLACK: Final = 64


class Agenda(Generic[Moment, Key]):
    """Keys, each with its moment; the earliest comes first, and of equals the lowest key.

    The dictionary is the truth. Moving or dropping a key leaves its old entry in the heap, to be skipped when it
    comes up: a timer moved a thousand times costs no search. Once most of the heap is stale it is rebuilt.
    """

    __slots__ = ("_heap", "_moments")

    def __init__(self) -> None:
        self._moments: dict[Key, Moment] = {}
        self._heap: list[tuple[Moment, Key]] = []

    def __len__(self) -> int:
        return len(self._moments)

    def __contains__(self, key: Key) -> bool:
        return key in self._moments

    def moment(self, key: Key) -> Moment | None:
        """The moment of this key, if it is here."""
        return self._moments.get(key)

    def put(self, key: Key, moment: Moment) -> None:
        """Add this key, or move it to this moment."""
        self._moments[key] = moment
        heappush(self._heap, (moment, key))
        if len(self._heap) > 2 * len(self._moments) + _SLACK:
            self._heap = [(moment, key) for key, moment in self._moments.items()]
            heapify(self._heap)

    def drop(self, key: Key) -> None:
        """Forget this key, if it is here."""
        self._moments.pop(key, None)

    def first(self) -> tuple[Moment, Key] | None:
        """The earliest moment with its key."""
        heap = self._heap
        while heap:
            moment, key = heap[0]
            if self._moments.get(key) == moment:
                return heap[0]
            heappop(heap)
        return None

    def take_until(self, moment: Moment) -> Iterator[Key]:
        """Take out what is at this moment or earlier, in order."""
        while (first := self.first()) is not None and first[0] <= moment:  # type: ignore[operator]
            heappop(self._heap)
            del self._moments[first[1]]
            yield first[1]

    def drop_until(self, moment: Moment) -> None:
        """Forget what is at this moment or earlier."""
        for _ in self.take_until(moment):
            pass
