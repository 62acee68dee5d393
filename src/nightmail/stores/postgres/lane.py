"""The roles of our connections, and how one is opened, judged and given up."""

from __future__ import annotations

import asyncio
from typing import Final

from nightmail.errors import StoreUnavailable
from nightmail.stores.postgres.connect import Connect, Connector
from nightmail.stores.postgres.errors import (
    is_undefined,
    leaves_connection_usable,
    shown_cause,
    translated,
    unreachable,
)
from nightmail.stores.postgres.link import Link, NotSent, Role
from nightmail.stores.postgres.place import Place
from nightmail.stores.sql import lane

CONNECT_SECONDS: Final = 10.0

CLAIM: Final = Role("claim", lock_milliseconds=200)
SETTLE: Final = Role("settle", lock_milliseconds=200)
PUBLISH: Final = Role("publish", statement_seconds=30, lock_milliseconds=100)
# Short: a publish that waits for a timer id keeps those of other timer ids waiting.
TIMERS: Final = Role("timers", statement_seconds=30, lock_milliseconds=20)
# An index of a large table takes its time. A migration that waits for a lock keeps all others from the tables: better
# to give up, and try again later.
MIGRATE: Final = Role("migrate", statement_seconds=24 * 3600, lock_milliseconds=10_000)
LISTEN: Final = Role("listen", statement_seconds=5)
KEEPER: Final = Role("keeper", statement_seconds=5, lock_milliseconds=200)


async def connected(connect: Connect, role: Role, place: Place | None = None) -> Link:
    """A new connection, ready for its role."""
    link: Link | None = None
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            link = Link(await connect(), role, place)
            await link.prepare()
            if link.pooled and isinstance(connect, Connector) and connect.forgo_names():
                link.terminate()
                link = Link(await connect(), role, place)
                await link.prepare()
            await link.find_tables()
    except BaseException as error:
        if link is not None:
            link.terminate()
        if isinstance(error, TimeoutError):
            where = connect.where if isinstance(connect, Connector) else "the server"
            raise unreachable(error, where) from error
        if isinstance(error, Exception):
            better = translated(error, StoreUnavailable)
            if better is not error:
                raise better from shown_cause(error)
        raise
    return link


class Lane(lane.Lane[Link]):
    """One connection to Postgres, used by one caller at a time."""

    _role: Role

    def __init__(self, role: Role, connect: Connect, place: Place | None = None) -> None:
        """`place` knows the schema of our tables; without it, statements are sent as written."""
        super().__init__(role)
        self._open = connect
        self._place = place

    async def _connect(self) -> Link:
        return await connected(self._open, self._role, self._place)

    async def _usable(self) -> Link:
        link = await super()._usable()
        if not link.has_tables:
            await link.find_tables()
        link.begin()
        return link

    def _translated(self, error: Exception, lost: type[StoreUnavailable]) -> Exception:
        return translated(error, lost)

    def _shown(self, error: Exception) -> Exception | None:
        return shown_cause(error)

    async def _clean_up(self, link: Link, error: BaseException) -> bool:
        if self._place is not None and is_undefined(error):
            self._place.found(None)
        return leaves_connection_usable(error) and not link.in_transaction

    async def _tries_again(self, error: Exception, attempt: int) -> bool:
        # The server had closed the connection, and nothing was sent: use a new one.
        return isinstance(error, NotSent) and attempt == 0
