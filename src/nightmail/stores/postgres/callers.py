"""Work in a caller's transaction, after checking that it is in our database."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar
from uuid import UUID
from weakref import WeakSet

from nightmail.errors import OtherDatabase, SchemaMissing
from nightmail.stores.postgres.connect import Connection
from nightmail.stores.postgres.lane import Lane
from nightmail.stores.postgres.place import Place
from nightmail.stores.postgres.transaction import Direct, Joined, Session, join
from nightmail.stores.shared.table_names import TableNames
from nightmail.stores.sql.statements import Statement

T = TypeVar("T")


class Tables:
    """Which tables are ours, and which connections see them. Kept for the life of the store, open or not."""

    def __init__(self, statements: Mapping[str, Statement], names: TableNames) -> None:
        self.place = Place(names, statements)
        self.statement = statements["identity"]
        self.identity: UUID | None = None
        """`None` until it was read."""
        self._there = statements["there"]
        self._channel = statements["channel"]
        self._meta = names.quoted("meta")
        self._seen_from: WeakSet[object] = WeakSet()

    async def channel(self, connection: Connection) -> str:
        """The channel of wake-ups: one for these tables, whatever name a store knows them by."""
        (row,) = await Direct(connection).rows(self._channel, {})
        if row["channel"] is None:
            raise SchemaMissing
        return str(row["channel"])

    async def learn(self, connection: Connection) -> UUID:
        """Read the identity, on a connection of ours."""
        found = await Direct(connection).rows(self.statement, {})
        if not found:
            raise SchemaMissing
        identity: UUID = found[0]["identity"]
        self.identity = identity
        await connection.find_tables()
        return identity

    async def refuse_unless_seen(self, session: Joined) -> None:
        """Raise if there are no such tables, and leave the transaction usable. Checked once for each connection.

        Not before `hold` and `ack`: at repeatable read rows are seen as of the first statement, and they would fail if
        the lease is renewed after it.
        """
        if session.connection in self._seen_from:
            return
        meta = self.place.quoted("meta") if session.place is not None else self._meta
        (row,) = await session.rows(self._there, {"meta": meta})
        if not row["there"]:
            raise OtherDatabase("the session's database does not have our tables")
        self._seen_from.add(session.connection)


class Callers:
    """Runs work in callers' transactions.

    The identity of our tables is read once, on a connection of ours. Every statement in a caller's transaction
    compares it with what it finds there, and writes nothing if they differ: that costs no round trip.
    """

    def __init__(self, lane: Lane, tables: Tables) -> None:
        self._lane = lane
        self._tables = tables

    async def join(self, transaction: object, work: Callable[[Joined, UUID], Awaitable[T]]) -> T:
        """Run `work` in the caller's transaction, or raise."""
        session = await join(transaction)
        known = self._tables.identity
        try:
            identity = known or await self._read()
            session.place = self._tables.place
            return await work(session, identity)
        except OtherDatabase:
            # Unless the tables were recreated since we read their identity.
            if known is None or await self._read() == known:
                raise
            return await work(session, await self._read())

    async def is_ours(self, session: Session, identity: UUID) -> None:
        """Raise unless this session sees our tables. For statements that do not compare the identity themselves."""
        found = await session.rows(self._tables.statement, {})
        if not found or found[0]["identity"] != identity:
            raise OtherDatabase

    async def _read(self) -> UUID:
        return await self._lane.run(self._tables.learn)
