"""Work in a caller's transaction, after checking that it is in our database."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from nightmail.errors import OtherDatabase, SchemaMissing
from nightmail.stores.mysql.dialect import Dialect
from nightmail.stores.mysql.lane import Lane
from nightmail.stores.mysql.link import READ_COMMITTED, Answer, Link
from nightmail.stores.mysql.text import Sql
from nightmail.stores.mysql.transaction import Session, join

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ours:
    """What identifies our tables, and the server they are on."""

    identity: bytes
    dialect: Dialect


@dataclass(slots=True)
class Known:
    """What a store knows about its own tables, also after it was closed."""

    opened: bool = False
    """Whether the store ever was: if not, it has no tables of its own yet."""
    ours: Ours | None = None


class CallersSession:
    """A session in a caller's transaction, which can be compared with our own database."""

    def __init__(self, session: Session, ours: Ours, identity: Sql) -> None:
        self._session = session
        self._identity = identity
        self.ours = ours

    async def ask(self, statement: str) -> Answer:
        """See `Session.ask`."""
        return await self._session.ask(statement)

    async def look(self) -> bool:
        """Refuse unless this session sees our tables; returns whether it sees them as they are now (read committed)."""
        found = await self.ask(
            f"select identity, {self.ours.dialect.isolation} from ({self._identity}) as meta"  # noqa: S608 - ours
        )
        if not found.rows or bytes(found.rows[0][0]) != self.ours.identity:
            raise OtherDatabase
        return str(found.rows[0][1]) == READ_COMMITTED


class Callers:
    """Callers with a transaction of their own. Our identity is read once, on a connection of ours."""

    def __init__(self, lane: Lane, identity: Sql, known: Known) -> None:
        self._lane = lane
        self._identity = identity
        self._known = known

    async def join(self, transaction: object, work: Callable[[CallersSession], Awaitable[T]]) -> T:
        """Run this in the caller's transaction, or refuse."""
        session = await join(transaction)
        known = self._known.ours
        try:
            return await work(CallersSession(session, known or await self.learn(), self._identity))
        except OtherDatabase:
            # Unless the tables were recreated since we read their identity.
            if known is None or (learned := await self.learn()) == known:
                raise
            return await work(CallersSession(session, learned, self._identity))

    async def learn(self) -> Ours:
        """Read our identity, and remember it."""
        self._known.ours = ours = await self._lane.run(lambda link: who_we_are(link, self._identity))
        return ours


async def who_we_are(link: Link, identity: Sql) -> Ours:
    """Which tables a connection of ours sees."""
    (found,) = await link.ask(identity)
    if not found.rows:
        raise SchemaMissing
    return Ours(bytes(found.rows[0][0]), link.dialect)
