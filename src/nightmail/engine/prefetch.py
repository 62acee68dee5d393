"""How far ahead to fetch: by time, not by count.

What is fetched and not yet started is out of every other process's reach. So a worker fetches only as much as it
expects to start within a fraction of a second, judging by how long its recent handlers ran and how many ran at once:
handlers that await nothing run one after the other, whatever the limit. Counting completions per second would not do:
handlers that start together finish together, in bursts.
"""

from __future__ import annotations

from typing import Final

from nightmail.limits import CLAIM_BYTES

AHEAD_SECONDS: Final = 0.2
MOST_AHEAD: Final = 2000
SHORT_CLAIM: Final = 250
"""How many messages a claim asks for at most where others wait for it: until the store has carried it out and its
answer is read, nothing starts that has become due for another worker of the process."""
_NEWEST_COUNTS: Final = 0.1
# Below this nothing is left to decide: any number of workers fetches the maximum.
_SHORTEST_RUN: Final = 0.000_001


class ClaimSize:
    """How much to ask for in one claim.

    Fewer bytes after one that failed, perhaps for its size, then gradually more. And not many more messages than
    fitted into the bytes of the last one: with a limit that is never reached, the share of the oldest would be all
    that is taken, and priorities would count for nothing.
    """

    def __init__(self, batch: int = 1) -> None:
        # A batch handler starts with what one claim brings: a smaller one would make its batches smaller.
        self._short = max(SHORT_CLAIM, batch)
        self.max_bytes = CLAIM_BYTES
        self._fitted: int | None = None

    def limit(self, room: int, *, short: bool = False) -> int:
        """How many messages to ask for when there is room for `room`, and `short` when others wait for the claim."""
        most = min(room, self._short) if short else room
        return most if self._fitted is None else min(most, 2 * self._fitted)

    def failed(self) -> None:
        """A claim got no answer. The size goes down to one message at least, which a claim always takes."""
        self.max_bytes = max(self.max_bytes // 4, 1)

    def went_well(self, taken: int, limit: int, *, full: bool) -> None:
        """A claim asked for `limit` messages and took `taken`."""
        # In small steps: if it doubled, every other claim would fail on a line that cannot carry twice as much.
        self.max_bytes = min(self.max_bytes + CLAIM_BYTES // 16, CLAIM_BYTES)
        if not full:
            self._fitted = None
        elif 0 < taken < limit or self._fitted is not None:
            # A full claim that took nothing was stopped by something else, and says nothing about sizes.
            self._fitted = taken or self._fitted


class Prefetch:
    """How long recent handlers ran, how many at once, and how much to fetch ahead because of it."""

    def __init__(self, batch: int = 1) -> None:
        self._batch = batch
        self._mean: float | None = None
        self._longest = 0.0
        self._longest_before = 0.0
        self._at_once = 1.0
        self._last_start = 0.0
        self._last_size = 1

    def started(self, now: float, running: int, size: int = 1) -> None:
        """A handler starts with `size` messages; `running` handlers run now, this one included."""
        self._last_start = now
        self._last_size = size
        # Rises at once, decays slowly.
        self._at_once = max(running, self._at_once + _NEWEST_COUNTS * (running - self._at_once))

    @property
    def mean(self) -> float | None:
        """How many seconds a message took of late."""
        return self._mean

    def longest_of_late(self) -> float:
        """The longest run of a handler since this was asked for the time before last."""
        longest = max(self._longest, self._longest_before)
        self._longest_before, self._longest = self._longest, 0.0
        return longest

    def ran(self, seconds: float, messages: int = 1) -> None:
        """A handler ended, with so many messages, after so many seconds."""
        if seconds > self._longest:
            self._longest = seconds
        seconds /= messages
        if self._mean is None:
            self._mean = seconds
        else:
            self._mean += _NEWEST_COUNTS * (seconds - self._mean)

    def ahead(self, now: float) -> int:
        """How many messages to have waiting in memory."""
        if self._mean is None:
            return 0
        # Every handler now running has lasted at least since the last start, however short the earlier ones were.
        run = max(self._mean, (now - self._last_start) / self._last_size, _SHORTEST_RUN)
        ahead = int(min(self._at_once * AHEAD_SECONDS / run, MOST_AHEAD))
        # Whole batches only: a handler does not wait for more, and a remainder would run as a small batch.
        return ahead - ahead % self._batch
