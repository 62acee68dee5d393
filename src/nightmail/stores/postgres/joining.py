"""Carries verbs out in callers' transactions, after checking that they are in our database."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar
from weakref import WeakSet

from nightmail.errors import OtherDatabase
from nightmail.store import Blocking
from nightmail.stores.postgres.blocking import BlockingJoined, joined_blocking
from nightmail.stores.postgres.callers import AsyncJoined, Joined, joined
from nightmail.stores.postgres.errors import chain, is_undefined, without_data
from nightmail.stores.postgres.identity import TableIdentity
from nightmail.stores.postgres.requests import CustomPlan, FirstAsk
from nightmail.stores.postgres.runtime import Runtime
from nightmail.stores.sql.callers_objects import asynchronous_sqlalchemy
from nightmail.stores.sql.verbs import MakeVerb, carry_out, carry_out_blocking

T = TypeVar("T")


class Joining:
    """Runs verbs in callers' transactions.

    That a session sees our tables is checked once for each connection: to query a missing one would abort the caller's
    transaction. Not before a `FirstAsk`, which must be the first statement, nor before a `CustomPlan`, for which more
    is checked anyway.
    """

    def __init__(self, tables: TableIdentity, runtime: Callable[[], Runtime]) -> None:
        """`runtime` raises if the store is not open here."""
        self._tables = tables
        self._runtime = runtime
        self._seen_from: WeakSet[object] = WeakSet()

    async def join(self, transaction: object, make: MakeVerb[T]) -> T:
        """Carry out a verb in the transaction of asynchronous code."""
        if isinstance(transaction, Blocking):
            return self._join_blocking(transaction.session, make)
        runtime = self._runtime()
        sqlalchemy = asynchronous_sqlalchemy(transaction)
        attempt: Callable[[], Awaitable[T]]
        if sqlalchemy is None:
            attempt = partial(self._join, joined(transaction, self._tables), make)
        else:
            # Its asynchronous side calls the synchronous one, each time in a greenlet. One greenlet is enough.
            attempt = partial(sqlalchemy.run_sync, self._join_blocking, make)
        known = self._tables.identity
        if known is None:
            await runtime.learn_identity()
        while True:
            try:
                return await attempt()
            except Exception as error:
                better = _meaning(error)
                # The tables may have been recreated since we read their identity.
                if (
                    isinstance(better, OtherDatabase)
                    and known is not None
                    and await runtime.learn_identity() != known
                ):
                    known = None
                    continue
                if better is not error:
                    raise better from error
                raise

    def _join(self, session: AsyncJoined, make: MakeVerb[T]) -> Awaitable[T]:
        """Carry out a verb in a transaction of an asynchronous driver."""
        seen = session.connection in self._seen_from
        return carry_out(make(), session.send if seen else partial(self._send, session))

    def _join_blocking(self, session: object, make: MakeVerb[T]) -> T:
        """Carry out a verb in the transaction of synchronous code, or in one of SQLAlchemy's."""
        own = joined_blocking(session, self._tables)
        seen = own.connection in self._seen_from
        try:
            return carry_out_blocking(make(), own.send if seen else partial(self._send_blocking, own))
        except Exception as error:
            better = _meaning(error)
            if better is not error:
                raise better from error
            raise

    async def _send(self, session: AsyncJoined, request: Any) -> Any:
        if self._is_unseen(session, request):
            await carry_out(self._tables.refuse_unseen(), session.send)
        reply = await session.send(request)
        self._seen_from.add(session.connection)
        return reply

    def _send_blocking(self, session: BlockingJoined, request: Any) -> Any:
        if self._is_unseen(session, request):
            carry_out_blocking(self._tables.refuse_unseen(), session.send)
        reply = session.send(request)
        self._seen_from.add(session.connection)
        return reply

    def _is_unseen(self, session: Joined, request: Any) -> bool:
        return session.connection not in self._seen_from and not isinstance(request, FirstAsk | CustomPlan)


def _meaning(error: Exception) -> Exception:
    """Callers see errors as their own driver raises them, without what may quote a message."""
    without_data(error)
    if not isinstance(error, OtherDatabase) and any(is_undefined(link) for link in chain(error)):
        return OtherDatabase("the session's database does not have our tables")
    return error
