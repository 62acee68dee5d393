"""The connection on which the server tells us that something was published; in a cluster one to each node.

A wake-up is a hint, polling is the guarantee: while none can arrive, workers poll every second instead of every five.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from typing import Final

from nightmail.bell import Bell
from nightmail.errors import StoreUnavailable
from nightmail.stores.redis.connect import Address, Connector
from nightmail.stores.redis.keys import Keys
from nightmail.stores.redis.link import Link
from nightmail.stores.redis.nodes import Nodes
from nightmail.stores.shared.listening import ListeningBells

logger = logging.getLogger(__name__)

PROBE_EVERY: Final = 20.0
PROBE_SECONDS: Final = 5.0
SHORTEST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 30.0
ROLE: Final = "listen"


class _Lost(Exception):
    """A connection was lost, or the server stopped telling us about a queue."""


class Listener(ListeningBells):
    """Bells that the server rings. Starts listening when the first bell is added."""

    def __init__(self, connector: Connector, nodes: Nodes, keys: Keys) -> None:
        super().__init__()
        self._connector = connector
        self._nodes = nodes
        self._keys = keys
        self._sharded = connector.cluster is not None
        self._wanted: Counter[str] = Counter()
        self._asked: dict[str, Address | None] = {}
        """The queues that were subscribed to, and at which node."""
        self._heard: set[str] = set()
        """The queues whose subscription the server has confirmed."""
        self._links: dict[Address | None, Link] = {}
        self._changed = asyncio.Event()
        self._warned = False
        self._fresh: set[str] = set()
        """Those confirmed since their bells last rang."""
        self._channels: dict[bytes, str] = {}
        self._last_read: dict[Link, float] = {}
        """When anything was last read: a half-open connection delivers nothing."""

    @property
    def listening(self) -> bool:
        """Whether wake-ups arrive for all wanted queues."""
        return bool(self._links) and self._wanted.keys() <= self._heard

    @property
    def deaf(self) -> bool:
        """Whether they should, and do not."""
        return self._task is not None and not self.listening

    @property
    def links(self) -> list[Link]:
        """The open connections."""
        return list(self._links.values())

    def hang(self, bell: Bell) -> None:
        """Ring this bell from now on."""
        super().hang(bell)
        self._wanted.update(bell.queues)
        self._changed.set()

    def take_down(self, bell: Bell) -> None:
        """Stop ringing this bell."""
        super().take_down(bell)
        self._wanted.subtract(bell.queues)
        self._wanted += Counter()  # Drops counts of zero.
        self._changed.set()

    async def _listen(self) -> None:
        pause = SHORTEST_PAUSE
        while True:
            try:
                await self._listen_until_lost()
            except Exception as error:  # noqa: BLE001 - whatever it is, polling goes on, and we retry
                if self._heard:
                    pause = SHORTEST_PAUSE
                self._tell(_first(error))
            finally:
                self._hang_up()
            # Jitter: all processes lost their connections at the same moment.
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - jitter is not cryptography
            pause = min(pause * 2, LONGEST_PAUSE)

    async def _listen_until_lost(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._probe())
            while True:
                self._changed.clear()
                await self._ask_for_changes(group)
                await self._changed.wait()

    async def _ask_for_changes(self, group: asyncio.TaskGroup) -> None:
        for queue in [queue for queue in self._wanted if queue not in self._asked]:
            address = await self._nodes.holder(self._keys.tag(queue))
            link = self._links.get(address)
            if link is None:
                link = self._links[address] = await self._connector.open(ROLE, address)
                group.create_task(self._read(link))
            self._asked[queue] = address
            self._channels[self._keys.channel(queue).encode()] = queue
            await link.send(("SSUBSCRIBE" if self._sharded else "SUBSCRIBE", self._keys.channel(queue)))
        for queue in [queue for queue in self._asked if queue not in self._wanted]:
            address = self._asked.pop(queue)
            self._heard.discard(queue)
            self._fresh.discard(queue)
            await self._links[address].send(
                ("SUNSUBSCRIBE" if self._sharded else "UNSUBSCRIBE", self._keys.channel(queue))
            )

    async def _read(self, link: Link) -> None:
        try:
            while True:
                kind, *rest = await link.read()
                self._last_read[link] = asyncio.get_running_loop().time()
                self._take(kind, rest[0])
        except Exception as error:
            raise _Lost(f"the connection was lost: {type(error).__name__}") from error

    def _take(self, kind: bytes, channel: bytes) -> None:
        queue = self._channels.get(channel)
        if queue is None or queue not in self._asked:
            return
        if kind in (b"message", b"smessage"):
            # Rung together once all are confirmed: ringing twice would be one poll too many.
            if queue in self._heard and queue not in self._fresh:
                self.ring(queue)
        elif kind in (b"subscribe", b"ssubscribe"):
            self._heard.add(queue)
            self._fresh.add(queue)
            if self._asked.keys() <= self._heard:
                self._all_heard()
        elif kind in (b"unsubscribe", b"sunsubscribe"):
            # Not requested by us: in a cluster the slot went to another node.
            raise _Lost("the slot of a queue was moved")

    def _all_heard(self) -> None:
        fresh, self._fresh = self._fresh, set()
        self._warned = False
        # What was published while we were not listening rang no bell.
        for queue in fresh:
            self.ring(queue)

    async def _probe(self) -> None:
        """Ping, so that a connection that died silently is noticed."""
        while True:
            await asyncio.sleep(PROBE_EVERY)
            asked = asyncio.get_running_loop().time()
            links = list(self._links.values())
            for link in links:
                async with asyncio.timeout(PROBE_SECONDS):
                    await link.send(("PING",))
            await asyncio.sleep(PROBE_SECONDS)
            open_still = set(self._links.values())
            if any(self._last_read.get(link, 0) < asked for link in links if link in open_still):
                raise _Lost("the server does not answer")

    def _hang_up(self) -> None:
        links, self._links = self._links, {}
        if self._sharded and self._asked:
            # It may be lost because another node has the slots now.
            for queue in self._asked:
                self._nodes.moved(self._keys.tag(queue), None)
        self._asked.clear()
        self._last_read.clear()
        self._channels.clear()
        self._heard.clear()
        self._fresh.clear()
        for link in links.values():
            link.terminate()

    def _tell(self, error: Exception) -> None:
        # The workers log that the server is down, and that it is back: one line each is enough.
        away = isinstance(error, _Lost | StoreUnavailable)
        # Once, until it works again: retries never end.
        if away or not self._warned:
            self._warned = self._warned or not away
            what = str(error) if away else f"listening failed: {type(error).__name__}"
            level = logging.DEBUG if away else logging.WARNING
            logger.log(level, "no wake-ups from Redis: %s; looking every second instead", what)


def _first(error: Exception) -> Exception:
    """What went wrong first, among the tasks that ended together."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
