"""Verbs in callers' transactions, after checking that these are in our database."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeVar

from nightmail.errors import OtherDatabase, SchemaMissing
from nightmail.store import Blocking
from nightmail.stores.mysql.blocking import blocking_session_of
from nightmail.stores.mysql.callers import session_of
from nightmail.stores.mysql.dialect import Dialect, dialect_of
from nightmail.stores.mysql.errors import is_undefined
from nightmail.stores.mysql.lane import Lane
from nightmail.stores.mysql.link import READ_COMMITTED
from nightmail.stores.mysql.requests import SERVER, AllOrNone, Answer, Question, Sees, Server
from nightmail.stores.mysql.text import Sql
from nightmail.stores.sql.verbs import MakeVerb, Verb, carry_out, carry_out_blocking

T = TypeVar("T")

USUAL_PACKET: Final = 16 * 1024 * 1024
"""What servers accept by default. How a caller's server is configured is not asked."""
_SAVEPOINT: Final = "savepoint nightmail_batch"


@dataclass(frozen=True, slots=True)
class TableIdentity:
    """What identifies our tables, and the server they are on."""

    id: bytes
    dialect: Dialect


class Joining:
    """Carries out verbs in callers' transactions. Our identity is read once, on a connection of ours."""

    def __init__(self, query: Sql, lane: Callable[[], Lane], new_lane: Callable[[], Lane]) -> None:
        """`query` reads the identity; `lane` is that of an open store; `new_lane` makes one more."""
        self._query = query
        self._lane = lane
        self._new_lane = new_lane
        self._known: TableIdentity | None = None
        self.was_opened = False
        """Whether the store ever was: if not, it has no tables of its own yet."""

    async def join(self, transaction: object, make: MakeVerb[T]) -> T:
        """See `sql.store.Joining.join`."""
        if isinstance(transaction, Blocking):
            return self._join_blocking(transaction.session, make)
        lane = self._lane()
        session = await session_of(transaction)
        known = self._known
        try:
            tables = known or await self._learn(lane)
            return await carry_out(self._joined(make(), tables), session.send)
        except OtherDatabase:
            # Unless the tables were recreated since we read their identity.
            if known is None or (learned := await self._learn(lane)) == known:
                raise
            return await carry_out(self._joined(make(), learned), session.send)

    def _join_blocking(self, session: object, make: MakeVerb[T]) -> T:
        """The same in the transaction of synchronous code."""
        send = blocking_session_of(session).send
        if not self.was_opened:
            return carry_out_blocking(self._joined(make(), carry_out_blocking(self._seen(), send)), send)
        known = self._known
        try:
            tables = known or self._learn_apart()
            return carry_out_blocking(self._joined(make(), tables), send)
        except OtherDatabase:
            if known is None or (learned := self._learn_apart()) == known:
                raise
            return carry_out_blocking(self._joined(make(), learned), send)

    # ----------------------------------------------------------------------------------- our identity

    async def learn(self) -> None:
        """Read our identity, and remember it."""
        await self._learn(self._lane())

    async def _learn(self, lane: Lane) -> TableIdentity:
        self._known = found = await lane.carry_out(self._read)
        return found

    def _learn_apart(self) -> TableIdentity:
        """The same on a new connection, on another thread: synchronous code cannot await one."""

        async def learn() -> TableIdentity:
            lane = self._new_lane()
            try:
                return await self._learn(lane)
            finally:
                await lane.close()

        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="nightmail") as thread:
            return thread.submit(asyncio.run, learn()).result()

    def _read(self) -> Verb[TableIdentity]:
        found: Answer = yield self._query
        if not found.rows:
            raise SchemaMissing
        server: Server = yield SERVER
        return TableIdentity(bytes(found.rows[0][0]), server.dialect)

    # ----------------------------------------------------------------------------- a caller's session

    def _seen(self) -> Verb[TableIdentity]:
        """The tables that this session sees, and the kind of server they are on."""
        found = yield from _sent(Sql(f"select identity, version() from ({self._query}) as meta"))  # noqa: S608 - ours
        if not found.rows:
            raise OtherDatabase("the session's database does not have our tables")
        identity, version = found.rows[0]
        return TableIdentity(bytes(identity), dialect_of(str(version)))

    def _joined(self, verb: Verb[T], tables: TableIdentity) -> Verb[T]:
        """The verb in a caller's session: it asks for single statements only, and the rest is answered here."""
        reply: object = None
        error: Exception | None = None
        try:
            while True:
                request = verb.send(reply) if error is None else verb.throw(error)
                try:
                    reply, error = (yield from self._answered(request, tables)), None
                except Exception as raised:  # noqa: BLE001 - the verb decides what it means
                    error = raised
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            verb.close()

    def _answered(self, request: object, tables: TableIdentity) -> Verb[object]:
        match request:
            case str():
                return (yield from _sent(request))
            case Question.SERVER:
                return Server(tables.dialect, USUAL_PACKET)
            case Question.IDENTITY:
                return tables.id
            case Question.CHECK_TABLES:
                return (yield from self._check(tables))
            case AllOrNone(statements):
                return (yield from _all_or_none(statements))
            case _:
                raise TypeError(request)

    def _check(self, tables: TableIdentity) -> Verb[Sees]:
        """Refuse unless this session sees our tables."""
        found = yield from _sent(f"select identity, {tables.dialect.isolation} from ({self._query}) as meta")  # noqa: S608 - ours
        if not found.rows or bytes(found.rows[0][0]) != tables.id:
            raise OtherDatabase
        return Sees.REPORTS_ALL if str(found.rows[0][1]) == READ_COMMITTED else Sees.SNAPSHOT


def _all_or_none(statements: tuple[str, ...]) -> Verb[list[Answer]]:
    if len(statements) == 1:
        return [(yield from _sent(statements[0]))]
    # If one is refused, those before it must not stay in the caller's transaction.
    yield from _sent(_SAVEPOINT)
    try:
        answers: list[Answer] = []
        for statement in statements:
            answers += [(yield from _sent(statement))]
    except Exception:
        with suppress(Exception):
            yield from _sent(f"rollback to {_SAVEPOINT}")
        raise
    yield from _sent(f"release {_SAVEPOINT}")
    return answers


def _sent(statement: str) -> Verb[Answer]:
    try:
        answer: Answer = yield statement
    except Exception as error:
        if is_undefined(error):
            raise OtherDatabase("the session's database does not have our tables") from error
        raise
    return answer
