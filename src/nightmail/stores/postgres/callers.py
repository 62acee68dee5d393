"""Work in a caller's transaction, once it is sure that it is one in our database."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar
from uuid import UUID

from nightmail.errors import OtherDatabase, SchemaMissing
from nightmail.stores._sql import Statement
from nightmail.stores.postgres.lane import Lane
from nightmail.stores.postgres.transaction import Direct, Session, join

T = TypeVar("T")


class Callers:
    """Whoever comes with a transaction of their own.

    The identity of our tables is read once, on a connection of ours. Every statement in a caller's transaction
    compares it with what it finds there, and writes nothing if they differ: that costs no round trip.
    """

    def __init__(self, lane: Lane, identity: Statement) -> None:
        self._lane = lane
        self._statement = identity
        self._identity: UUID | None = None

    async def join(self, transaction: object, work: Callable[[Session, UUID], Awaitable[T]]) -> T:
        """Do this in the caller's transaction, or refuse."""
        session = await join(transaction)
        known = self._identity
        try:
            return await work(session, known or await self._read())
        except OtherDatabase:
            # Unless the tables were made anew since we learned which they are.
            if known is None or await self._read() == known:
                raise
            return await work(session, await self._read())

    async def is_ours(self, session: Session, identity: UUID) -> None:
        """Refuse unless this session sees our tables. For statements that do not compare by themselves."""
        found = await session.rows(self._statement, {})
        if not found or found[0]["identity"] != identity:
            raise OtherDatabase

    async def _read(self) -> UUID:
        found = await self._lane.run(lambda connection: Direct(connection).rows(self._statement, {}))
        if not found:
            raise SchemaMissing
        identity: UUID = found[0]["identity"]
        self._identity = identity
        return identity
