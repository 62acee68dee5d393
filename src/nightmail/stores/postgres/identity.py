"""Which tables are ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from nightmail.errors import OtherDatabase, SchemaMissing
from nightmail.stores.postgres.link import Link
from nightmail.stores.postgres.place import Place
from nightmail.stores.shared.table_names import TableNames
from nightmail.stores.sql.statements import Statement
from nightmail.stores.sql.verbs import Ask, Verb


class TableIdentity:
    """Where our tables are, and their identity. Kept for the life of the store, open or not."""

    def __init__(self, statements: Mapping[str, Statement], names: TableNames) -> None:
        self.place = Place(names, statements)
        self.identity: UUID | None = None
        """`None` until it was read."""
        self._read = Ask(statements["identity"], {})
        self._channel = Ask(statements["channel"], {})
        self._there = statements["there"]
        self._meta = names.quoted("meta")

    # -------------------------------------------------------------------------- on a connection of ours

    async def channel(self, link: Link) -> str:
        """The channel of wake-ups: one for these tables, whatever name a store knows them by."""
        (row,) = await link.send(self._channel)
        if row["channel"] is None:
            raise SchemaMissing
        return str(row["channel"])

    async def learn(self, link: Link) -> UUID:
        """Read the identity."""
        found = await link.send(self._read)
        if not found:
            raise SchemaMissing
        identity: UUID = found[0]["identity"]
        self.identity = identity
        await link.find_tables()
        return identity

    # -------------------------------------------------------------------------- in a caller's transaction

    def bound(self, ask: Ask) -> tuple[Statement, Mapping[str, Any]]:
        """A statement and its values for a caller's session.

        It compares the identity with what it finds there, and writes nothing if they differ: that costs no round
        trip. Its tables are qualified with their schema: the session's own search path does not matter. If the identity
        was never read, as in synchronous code without an open store, the tables are those that the session sees.
        """
        statement = ask.statement if self.identity is None else self.place.statement(ask.statement)
        return statement, {**ask.values, "identity": self.identity}

    def refuse_unseen(self) -> Verb[None]:
        """Raise if a caller's session sees no such tables, and leave its transaction usable."""
        meta = self._meta if self.identity is None else self.place.quoted("meta")
        (row,) = yield Ask(self._there, {"meta": meta})
        if not row["there"]:
            raise OtherDatabase("the session's database does not have our tables")

    def refuse_others(self) -> Verb[None]:
        """Raise unless a caller's session sees our tables. For statements that do not compare the identity."""
        found = yield self._read
        if not found or self.identity not in (None, found[0]["identity"]):
            raise OtherDatabase
