"""How a connection of ours is made: from a URL, or in the way an SQLAlchemy engine makes its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import parse_qsl, urlencode, urlsplit

import asyncpg

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"
Connect: TypeAlias = Callable[[], Awaitable[Connection]]

_SCHEMES: Final = frozenset({"postgresql", "postgres"})
# SQLAlchemy's words in a URL for what the driver takes as an argument, and those that mean nothing to the driver.
_ARGUMENTS: Final[dict[str, Callable[[str], Any]]] = {"ssl": str, "statement_cache_size": int}
_MEANINGLESS: Final = frozenset({"prepared_statement_cache_size", "prepared_statement_name_func"})


def connector(source: str | AsyncEngine) -> Connect:
    """A function that opens one more connection to this database, on the event loop that calls it."""
    return _from_url(source) if isinstance(source, str) else _from_engine(source)


def _from_url(url: str) -> Connect:
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme.partition("+")[0] not in _SCHEMES:
        # Neither the URL nor the parser's opinion of it: both may quote the password.
        raise ValueError("a Postgres URL looks like postgresql://user@host/database")
    query, arguments = _split_query(parts.query)
    dsn = parts._replace(scheme="postgresql", query=query).geturl()

    async def connect() -> Connection:
        # A statement is prepared once and for good: our few are used all the time.
        return await asyncpg.connect(dsn, max_cached_statement_lifetime=0, **arguments)

    return connect


def _split_query(query: str) -> tuple[str, dict[str, Any]]:
    given = parse_qsl(query, keep_blank_values=True)
    arguments = {name: _ARGUMENTS[name](value) for name, value in given if name in _ARGUMENTS}
    rest = [pair for pair in given if pair[0] not in _ARGUMENTS and pair[0] not in _MEANINGLESS]
    return urlencode(rest), arguments


def _from_engine(engine: AsyncEngine) -> Connect:
    dialect = engine.dialect
    if (dialect.name, dialect.driver) != ("postgresql", "asyncpg"):
        raise ValueError(
            "the Postgres store needs an engine with asyncpg (postgresql+asyncpg://), "
            f"not {dialect.name}+{dialect.driver}"
        )

    async def connect() -> Connection:
        from sqlalchemy.util import greenlet_spawn

        # A pool of our own with the engine's way of connecting: its arguments, its events, its credentials.
        pool = engine.sync_engine.pool.recreate()
        fairy = await greenlet_spawn(pool.connect)
        connection: Any = fairy.driver_connection
        fairy.detach()
        return connection  # type: ignore[no-any-return]

    return connect
