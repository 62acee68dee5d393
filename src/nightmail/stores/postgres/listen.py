"""The connection that receives a notification when something is published.

A notification is a hint, polling is the guarantee: while none can arrive, workers poll every second instead of every
five. Whether they arrive is tested, with a notification sent from another connection: through a pooler LISTEN may seem
to work and yet stay silent for ever.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

from nightmail.errors import StoreUnavailable
from nightmail.stores.postgres.connect import Connect
from nightmail.stores.postgres.lane import LISTEN, Lane, connected
from nightmail.stores.postgres.link import Link
from nightmail.stores.postgres.place import Place
from nightmail.stores.shared.listening import ListeningBells

logger = logging.getLogger(__name__)

PROBE_EVERY: Final = 30.0
PROBE_SECONDS: Final = 5.0
ECHO_SECONDS: Final = 3.0
SHORTEST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 30.0


class _Silent(Exception):
    """LISTEN was accepted, but no notification arrives."""


class _Pooled(Exception):
    """Behind a pooler, LISTEN would stay on a connection that others use, and notifications would reach them."""


class Listener(ListeningBells):
    """Bells that notifications ring. It starts to listen when the first bell is hung."""

    def __init__(
        self,
        connect: Connect,
        place: Place,
        channel: Callable[[Link], Awaitable[str]],
        ring: Callable[[str], Awaitable[None]],
        missed: Callable[[], None],
    ) -> None:
        """`channel` reads the name of the tables' channel; `ring` notifies a channel, on another connection.

        `missed` is called before all bells ring because notifications may have been missed.
        """
        super().__init__()
        self._connect = connect
        self._place = place
        self._channel = channel
        self._ring = ring
        self._missed = missed
        self._connection: Link | None = None
        self._listening = False
        self._warned = False

    @property
    def listening(self) -> bool:
        """Whether notifications arrive."""
        return self._listening

    @property
    def deaf(self) -> bool:
        """Whether they should arrive, but do not."""
        return self._task is not None and not self._listening

    async def close(self) -> None:
        """Stop listening for good, and close the connection."""
        # Taken from the task, which would drop it without closing it properly.
        connection, self._connection = self._connection, None
        try:
            await super().close()
            if connection is not None:
                with suppress(Exception):
                    async with asyncio.timeout(Lane.closing_seconds):
                        await connection.close()
        finally:
            if connection is not None:
                connection.terminate()

    async def _listen(self) -> None:
        pause = SHORTEST_PAUSE
        while True:
            try:
                await self._listen_until_lost()
                pause = SHORTEST_PAUSE
            except _Pooled:
                self._warn("there is a connection pooler, and through it none arrive")
                return
            except _Silent:
                pause = LONGEST_PAUSE
                self._warn("notifications do not arrive (is there a connection pooler?)")
            except StoreUnavailable as error:
                # The workers already log that the server is gone, and that it is back: one line each is enough.
                logger.debug("no wake-ups from Postgres: %s; looking every second instead", error)
            except Exception as error:  # noqa: BLE001 - whatever it is, looking goes on, and so do we
                self._warn(f"listening failed: {type(error).__name__}")
            finally:
                self._listening = False
                self._hang_up()
            # Jitter: all processes may have lost their connections at the same moment.
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - jitter is not cryptography
            pause = min(pause * 2, LONGEST_PAUSE)

    async def _listen_until_lost(self) -> None:
        self._connection = link = await connected(self._connect, LISTEN, self._place)
        if link.pooled:
            raise _Pooled
        lost = asyncio.Event()
        link.driver.add_termination_listener(lambda *_: lost.set())
        async with asyncio.timeout(PROBE_SECONDS):
            channel = await self._channel(link)
            await link.driver.add_listener(channel, self._heard)
        await self._hear_an_echo(link, channel)
        self._listening = True
        self._warned = False
        # Anything published while we were not listening did not ring here.
        self._missed()
        self.ring_all()
        while not await _happens(lost, within=PROBE_EVERY):
            async with asyncio.timeout(PROBE_SECONDS):
                await link.execute("select 1")

    async def _hear_an_echo(self, link: Link, channel: str) -> None:
        channel = f"{channel}_{secrets.token_hex(8)}"
        heard = asyncio.Event()

        def echo(*_: Any) -> None:
            heard.set()

        async with asyncio.timeout(PROBE_SECONDS):
            await link.driver.add_listener(channel, echo)
        await self._ring(channel)
        if not await _happens(heard, within=ECHO_SECONDS):
            raise _Silent
        async with asyncio.timeout(PROBE_SECONDS):
            await link.driver.remove_listener(channel, echo)

    def _heard(self, _connection: object, _pid: int, _channel: str, queue: object) -> None:
        if not self._listening:
            return  # All bells ring once the echo is heard: ringing twice would be one poll too many.
        if isinstance(queue, str) and queue:
            self.ring(queue)
        else:
            self.ring_all()

    def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()

    def _warn(self, what: str) -> None:
        # Once, until it works again: this is retried for ever.
        if not self._warned:
            self._warned = True
            logger.warning("no wake-ups from Postgres: %s; looking every second instead", what)


async def _happens(event: asyncio.Event, *, within: float) -> bool:
    try:
        async with asyncio.timeout(within):
            return await event.wait()
    except TimeoutError:
        return False
