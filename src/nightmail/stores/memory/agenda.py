"""A priority queue of keys by time."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Final, Generic, TypeVar

Time = TypeVar("Time")
Key = TypeVar("Key", int, str)

_SLACK: Final = 64


class Agenda(Generic[Time, Key]):
    """Keys, each with its time; the earliest comes first, and of equals the lowest key.

    The dictionary is the truth. Moving or dropping a key leaves its old entry in the heap, to be skipped when it
    comes up: a timer moved a thousand times costs no search. Once most of the heap is stale it is rebuilt.
    """

    __slots__ = ("_heap", "_times")

    def __init__(self) -> None:
        self._times: dict[Key, Time] = {}
        self._heap: list[tuple[Time, Key]] = []

    def __len__(self) -> int:
        return len(self._times)

    def __contains__(self, key: Key) -> bool:
        return key in self._times

    def time(self, key: Key) -> Time | None:
        """The time of this key, if it is here."""
        return self._times.get(key)

    def put(self, key: Key, time: Time) -> None:
        """Add this key, or move it to this time."""
        self._times[key] = time
        heappush(self._heap, (time, key))
        if len(self._heap) > 2 * len(self._times) + _SLACK:
            self._heap = [(time, key) for key, time in self._times.items()]
            heapify(self._heap)

    def drop(self, key: Key) -> None:
        """Forget this key, if it is here."""
        self._times.pop(key, None)

    def first(self) -> tuple[Time, Key] | None:
        """The earliest time with its key."""
        heap = self._heap
        while heap:
            time, key = heap[0]
            if self._times.get(key) == time:
                return heap[0]
            heappop(heap)
        return None

    def take_until(self, time: Time) -> Iterator[Key]:
        """Take out what is at this time or earlier, in order."""
        while (first := self.first()) is not None and first[0] <= time:  # type: ignore[operator]
            heappop(self._heap)
            del self._times[first[1]]
            yield first[1]

    def drop_until(self, time: Time) -> None:
        """Forget what is at this time or earlier."""
        for _ in self.take_until(time):
            pass
