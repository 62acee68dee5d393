"""Work in a caller's transaction, once it is sure that it is one in our database."""

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
    """How our tables, and the server they are on, are told from others."""

    identity: bytes
    dialect: Dialect


class CallersSession:
    """A session in a caller's transaction, which can be compared with our own database."""

    def __init__(self, session: Session, ours: Ours) -> None:
        self._session = session
        self.ours = ours

    async def ask(self, statement: str) -> Answer:
        """See `Session.ask`."""
        return await self._session.ask(statement)


class Callers:
    """Whoever comes with a transaction of their own. Who we are is read once, on a connection of ours."""

    def __init__(self, lane: Lane, identity: Sql) -> None:
        self._lane = lane
        self._statement = identity
        self._ours: Ours | None = None

    async def join(self, transaction: object, work: Callable[[CallersSession], Awaitable[T]]) -> T:
        """Do this in the caller's transaction, or refuse."""
        session = await join(transaction)
        known = self._ours
        try:
            return await work(CallersSession(session, known or await self._read()))
        except OtherDatabase:
            # Unless the tables were made anew since we learned which they are.
            if known is None or (read := await self._read()) == known:
                raise
            return await work(CallersSession(session, read))

    async def look(self, session: CallersSession) -> bool:
        """Refuse unless this session sees our tables; whether it sees them as they are now: at read committed."""
        found = await session.ask(
            f"select identity, {session.ours.dialect.isolation} from ({self._statement}) as meta"  # noqa: S608 - ours
        )
        if not found.rows or bytes(found.rows[0][0]) != session.ours.identity:
            raise OtherDatabase
        return str(found.rows[0][1]) == READ_COMMITTED

    async def _read(self) -> Ours:
        async def read(link: Link) -> Ours:
            (found,) = await link.ask(self._statement)
            if not found.rows:
                raise SchemaMissing
            return Ours(bytes(found.rows[0][0]), link.dialect)

        self._ours = ours = await self._lane.run(read)
        return ours
