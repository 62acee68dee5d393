"""Noticing what others have made available: the server tells nobody, so it is asked, once for all who listen.

What this process does itself rings at once. A queue in which something was found is asked about again once somebody has
claimed from it, or a second later. If that claim found nothing (somebody has the row locked, or was quicker), it is
asked about less often for a while.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable, Mapping
from typing import Final

from nightmail.bell import Bell, BellTower
from nightmail.clock import Clock
from nightmail.stores._sql import Statement
from nightmail.stores.mysql.lane import Lane
from nightmail.stores.mysql.marks import LEVELS
from nightmail.stores.mysql.moments import now
from nightmail.stores.mysql.text import Sql, filled, union

logger = logging.getLogger(__name__)

ASK_SECONDS: Final = 0.12
"""How often to ask while idle: eight times a second."""
LONGEST_SECONDS: Final = 1.0
WORTH: Final = 10
"""Asking may take a tenth of the time: with a long line of blocked followers it may be slow, and is done less often."""


class WatchedTower(BellTower):
    """The bells of a store. While one hangs, the server is asked what can be claimed, and they are rung for it."""

    def __init__(self, lane: Lane, statements: Mapping[str, Statement], clock: Clock) -> None:
        super().__init__()
        self._lane = lane
        self._statements = statements
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self._rung: set[str] = set()
        self._fruitless: dict[str, int] = {}
        self._not_before: dict[str, float] = {}
        self._deaf = False
        self._closed = False

    @property
    def deaf(self) -> bool:
        """Whether the server should be asked, and does not answer."""
        return self._deaf

    def hang(self, bell: Bell) -> None:
        """From now on this bell rings too."""
        super().hang(bell)
        if self._task is None and not self._closed:
            self._task = asyncio.create_task(self._watch())

    def ring_each(self, queues: Iterable[str]) -> None:
        """Ring for these queues."""
        for queue in queues:
            self.ring(queue)

    def claimed(self, queues: Iterable[str], *, found: bool) -> None:
        """Somebody has claimed from these queues: they may be asked about again."""
        loop_time = asyncio.get_running_loop().time()
        for queue in queues:
            if found:
                self._fruitless.pop(queue, None)
                self._not_before.pop(queue, None)
            elif queue in self._rung:
                times = self._fruitless[queue] = min(self._fruitless.get(queue, 0) + 1, 10)
                self._not_before[queue] = loop_time + min(ASK_SECONDS * 2**times, LONGEST_SECONDS)
            self._rung.discard(queue)

    async def close(self) -> None:
        """Stop asking for good. Bells that still hang ring no more."""
        self._closed = True
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        await self._lane.close()

    async def _watch(self) -> None:
        pause = ASK_SECONDS
        while True:
            # Not in step with other processes: together they would notice sooner than each alone.
            await asyncio.sleep(pause * random.uniform(0.95, 1.05))  # noqa: S311 - jitter is not cryptography
            try:
                pause = await self._look()
            except Exception as error:  # noqa: BLE001 - whatever it is, looking goes on, and so do we
                if not self._deaf:
                    # Once, until it works again: this is tried for ever.
                    logger.warning("no wake-ups from the server: %s; looking every second instead", error)
                self._deaf = True
                pause = LONGEST_SECONDS
                continue
            if self._deaf:
                self._deaf = False
                # Whatever came meanwhile rang nobody.
                self.ring_all()

    async def _look(self) -> float:
        loop_time = asyncio.get_running_loop().time
        began = loop_time()
        named = {queue for bell in self._bells for queue in bell.queues}
        queues = sorted(queue for queue in named if self._not_before.get(queue, 0.0) <= began)
        if not queues:
            return ASK_SECONDS
        (found,) = await self._lane.run(lambda link: link.ask(self._question(queues)))
        for (place,) in found.rows:
            self._rung.add(queues[place])
            self._not_before[queues[place]] = began + LONGEST_SECONDS
            self.ring(queues[place])
        return min(max(ASK_SECONDS, WORTH * (loop_time() - began)), LONGEST_SECONDS)

    def _question(self, queues: list[str]) -> Sql:
        moment = now(self._clock)
        in_line = filled(self._statements["in_line"], {"now": moment})
        return union(
            filled(
                self._statements["available"],
                {
                    "place": place,
                    "queue": queue.encode(),
                    "levels": LEVELS,
                    "now": moment,
                    "in_line": in_line,
                },
            )
            for place, queue in enumerate(queues)
        )
