"""Noticing what others have made available: the server sends no wake-ups, so it is polled, once for all listeners.

Whether anything is due is a short question, whatever the number of queues. What of it can be claimed is a long one, and
asked only then.
What this process does itself rings at once. A queue in which something was found is polled again once this process has
claimed from it, or a second later. If that claim found nothing (the row was locked, or another worker was faster), it
is polled less often for a while. Dead letters are polled for where this process claims them.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from nightmail.clock import Clock
from nightmail.errors import StoreUnavailable
from nightmail.stores.mysql.claiming import MOST_IN_LINE
from nightmail.stores.mysql.lane import Lane
from nightmail.stores.mysql.link import Link
from nightmail.stores.mysql.pausing import Pauses
from nightmail.stores.mysql.text import Queries, Sql, Value, union
from nightmail.stores.mysql.times import now
from nightmail.stores.shared.listening import ListeningBells
from nightmail.stores.shared.marks import LEVELS

logger = logging.getLogger(__name__)

ASK_SECONDS: Final = 0.12
"""The poll interval while idle: eight times a second."""
LONGEST_SECONDS: Final = 1.0
WORTH: Final = 10
"""Polling may take a tenth of the time: with many queues it may be slow, and is done less often."""
TOGETHER: Final = 50
"""The most queues in one branch: each adds ten ranges, and with too many a server no longer reads by ranges."""
LETTERS_SECONDS: Final = 15.0
"""How long after a claim of dead letters they are polled for: an idle handler claims again sooner than that."""


@dataclass(frozen=True, slots=True)
class _Watched:
    """What is polled for: the messages of a queue, or its dead letters."""

    queue: str
    letters: bool = False


class WakeupPoller(ListeningBells):
    """The bells of a store. While one hangs, polls the server for what can be claimed, and rings them for it."""

    def __init__(self, lane: Lane, sql: Queries, letters: Queries, clock: Clock, pauses: Pauses) -> None:
        super().__init__()
        self._lane = lane
        self._sql = sql
        self._letters = letters
        self._clock = clock
        self._pauses = pauses
        self._letters_claimed: dict[str, float] = {}
        self._rung: set[_Watched] = set()
        self._fruitless: dict[_Watched, int] = {}
        self._not_before: dict[_Watched, float] = {}
        self._deaf = False

    @property
    def deaf(self) -> bool:
        """Whether polling is on and the server does not answer."""
        return self._deaf

    def ring_each(self, queues: Iterable[str]) -> None:
        """Ring for these queues."""
        for queue in queues:
            self.ring(queue)

    def claimed(self, queues: Iterable[str], *, found: bool) -> None:
        """A claim was made from these queues: they may be polled again."""
        for queue in queues:
            self._claimed(_Watched(queue), found=found)

    def claimed_dead(self, queues: Iterable[str], *, found: bool) -> None:
        """The same for their dead letters."""
        loop_time = asyncio.get_running_loop().time()
        for queue in queues:
            self._letters_claimed[queue] = loop_time
            self._claimed(_Watched(queue, letters=True), found=found)

    def _claimed(self, watched: _Watched, *, found: bool) -> None:
        if found:
            self._fruitless.pop(watched, None)
            self._not_before.pop(watched, None)
        elif watched in self._rung:
            times = self._fruitless[watched] = min(self._fruitless.get(watched, 0) + 1, 10)
            loop_time = asyncio.get_running_loop().time()
            self._not_before[watched] = loop_time + min(ASK_SECONDS * 2**times, LONGEST_SECONDS)
        self._rung.discard(watched)

    async def close(self) -> None:
        """Stop polling for good, and close the connection."""
        await super().close()
        await self._lane.close()

    def terminate(self) -> None:
        """Drop the connection at once, for good."""
        self._lane.terminate()

    async def _listen(self) -> None:
        pause = ASK_SECONDS
        while True:
            # Not in step with other processes: spread out, one of them notices sooner.
            await asyncio.sleep(pause * random.uniform(0.95, 1.05))  # noqa: S311 - jitter is not cryptography
            try:
                pause = await self._look()
            except Exception as error:  # noqa: BLE001 - whatever it is, polling goes on
                if not self._deaf:
                    # Logged once until it works again: this retries for ever. And the workers report an outage.
                    level = logging.DEBUG if isinstance(error, StoreUnavailable) else logging.WARNING
                    logger.log(level, "no wake-ups from the server: %s; looking every second instead", error)
                self._deaf = True
                pause = LONGEST_SECONDS
                continue
            if self._deaf:
                self._deaf = False
                # What became available meanwhile rang no bell.
                self.ring_all()

    async def _look(self) -> float:
        loop_time = asyncio.get_running_loop().time
        began = loop_time()
        asked = [each for each in self._of_interest(began) if self._not_before.get(each, 0.0) <= began]
        if not asked:
            return ASK_SECONDS
        for place in await self._lane.run(partial(self._found, asked)):
            self._rung.add(asked[place])
            self._not_before[asked[place]] = began + LONGEST_SECONDS
            self.ring(asked[place].queue)
        return min(max(ASK_SECONDS, WORTH * (loop_time() - began)), LONGEST_SECONDS)

    async def _found(self, asked: Sequence[_Watched], link: Link) -> list[int]:
        """The places of those in which something can be claimed."""
        moment = now(self._clock)
        (due,) = await link.ask(self._is_anything_due(asked, moment))
        if not due.rows:
            return []
        (found,) = await link.ask(self._question(asked, moment))
        return [place for (place,) in found.rows]

    def _of_interest(self, loop_time: float) -> Iterator[_Watched]:
        for queue in sorted({queue for bell in self._bells for queue in bell.queues}):
            yield _Watched(queue)
            # If nothing here claims dead letters, they would ring for ever.
            claimed = self._letters_claimed.get(queue)
            if claimed is not None and loop_time - claimed < LETTERS_SECONDS:
                yield _Watched(queue, letters=True)

    def _is_anything_due(self, asked: Sequence[_Watched], moment: Sql) -> Sql:
        def branches(sql: Queries, *, letters: bool) -> Iterator[Sql]:
            queues = [each.queue.encode() for each in asked if each.letters is letters]
            for start in range(0, len(queues), TOGETHER):
                yield sql("due", queues=queues[start : start + TOGETHER], levels=LEVELS, now=moment)

        return union([*branches(self._sql, letters=False), *branches(self._letters, letters=True)])

    def _question(self, asked: Sequence[_Watched], moment: Sql) -> Sql:
        values: dict[str, Value] = {
            "levels": LEVELS,
            "now": moment,
            "limit": MOST_IN_LINE,
        }
        plain, beside = (self._pauses.standing(moment, beside=each) for each in (False, True))
        return union(
            (self._letters if each.letters else self._sql)(
                "available",
                **values,
                place=place,
                queue=each.queue.encode(),
                standing=beside if self._pauses.are_known([each.queue]) else plain,
                open=self._pauses.is_open(each.queue, moment),
            )
            for place, each in enumerate(asked)
        )
