"""Opens our connections: from a URL, or the way an SQLAlchemy engine opens its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import asyncpg

from nightmail.stores.postgres.errors import unreachable
from nightmail.stores.postgres.link import DriverConnection

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

Connect: TypeAlias = Callable[[], Awaitable[DriverConnection]]

_SCHEMES: Final = frozenset({"postgresql", "postgres"})
_LAST_PORT: Final = 65535
# SQLAlchemy's URL options that the driver takes as arguments, and further down those that it does not know.
_ARGUMENTS: Final[dict[str, Callable[[str], Any]]] = {"ssl": str, "statement_cache_size": int}
_MODES: Final = frozenset({"disable", "allow", "prefer", "require", "verify-ca", "verify-full"})
_CERTIFICATES: Final = frozenset({"sslrootcert", "sslcert", "sslkey", "sslcrl"})
_MEANINGLESS: Final = frozenset({"prepared_statement_cache_size", "prepared_statement_name_func"})


class Connector:
    """Opens a new connection to a database, on the event loop that calls it.

    It raises `StoreUnavailable` if that fails, and says where and why.
    """

    def __init__(
        self, connect: Callable[[Mapping[str, Any]], Awaitable[DriverConnection]], where: str
    ) -> None:
        """`connect` takes further arguments for the driver."""
        self._connect = connect
        self.where = where
        """The server, the database and the user, for messages."""
        self._arguments: dict[str, Any] = {}

    async def __call__(self) -> DriverConnection:
        """Open a connection."""
        try:
            return await self._connect(self._arguments)
        except Exception as error:  # noqa: BLE001 - whatever it is, there is no connection
            # A ValueError is about the URL, and may quote the password in it.
            raise unreachable(error, self.where) from (None if isinstance(error, ValueError) else error)

    def forgo_names(self) -> bool:
        """Stop the driver from naming prepared statements; return whether that changes anything."""
        before, self._arguments = self._arguments, {"statement_cache_size": 0}
        return before != self._arguments


def connector(source: str | AsyncEngine) -> Connector:
    """How to connect to this database."""
    if isinstance(source, str):
        return Connector(_from_url(source), _where_of_url(source))
    return Connector(_from_engine(source), _where_of_engine(source))


def _from_url(url: str) -> Callable[[Mapping[str, Any]], Awaitable[DriverConnection]]:
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme.partition("+")[0] not in _SCHEMES or not _has_valid_ports(parts.netloc):
        # Show neither the URL nor the parser's error: both may quote the password.
        raise ValueError("a Postgres URL looks like postgresql://user@host:5432/database")
    query, given = _split_query(parts.query)
    dsn = parts._replace(scheme="postgresql", query=query).geturl()

    async def connect(arguments: Mapping[str, Any]) -> DriverConnection:
        # Prepared statements never expire: we have few, and use them all the time.
        return await asyncpg.connect(dsn, max_cached_statement_lifetime=0, **{**given, **arguments})

    return connect


def _has_valid_ports(netloc: str) -> bool:
    """Of every server: there may be several."""
    for address in netloc.rpartition("@")[2].split(","):
        port = address.rpartition("]")[2].partition(":")[2]
        if port and not (port.isdecimal() and int(port) <= _LAST_PORT):
            return False
    return True


def _split_query(query: str) -> tuple[str, dict[str, Any]]:
    given = parse_qsl(query, keep_blank_values=True)
    _refuse_contradictions(given)
    arguments = {name: _ARGUMENTS[name](value) for name, value in given if name in _ARGUMENTS}
    rest = [pair for pair in given if pair[0] not in _ARGUMENTS and pair[0] not in _MEANINGLESS]
    return urlencode(rest), arguments


def _refuse_contradictions(given: Sequence[tuple[str, str]]) -> None:
    """The driver would silently pick one of them, and the connection be less secure than its URL says."""
    names = [name for name, _ in given]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"a Postgres URL says {', '.join(twice)} more than once: which is meant?")
    values = dict(given)
    modes = {values[name].replace("_", "-") for name in ("ssl", "sslmode") if name in values}
    if len(modes) > 1:
        raise ValueError("a Postgres URL says ssl and sslmode, and not the same: which is meant?")
    if not modes <= _MODES:
        raise ValueError(f"ssl in a Postgres URL must be one of {', '.join(sorted(_MODES))}")
    if modes == {"disable"} and (useless := sorted(_CERTIFICATES & values.keys())):
        raise ValueError(f"a Postgres URL says {', '.join(useless)} and no TLS: which is meant?")
    if not values.get("statement_cache_size", "0").isdecimal():
        raise ValueError("statement_cache_size in a Postgres URL must be a whole number")


def _from_engine(engine: AsyncEngine) -> Callable[[Mapping[str, Any]], Awaitable[DriverConnection]]:
    dialect = engine.dialect
    if (dialect.name, dialect.driver) != ("postgresql", "asyncpg"):
        raise ValueError(
            "the Postgres store needs an engine with asyncpg (postgresql+asyncpg://), "
            f"not {dialect.name}+{dialect.driver}"
        )

    async def connect(_: Mapping[str, Any]) -> DriverConnection:
        from sqlalchemy.util import greenlet_spawn

        # A pool of our own that connects as the engine does: with its arguments, events and credentials.
        pool = engine.sync_engine.pool.recreate()
        fairy = await greenlet_spawn(pool.connect)
        connection: Any = fairy.driver_connection
        # A listener may have run a statement, which begins a transaction that would never be committed.
        # Committed, not rolled back: what it SET must last.
        await greenlet_spawn(fairy.commit)
        fairy.detach()
        return connection  # type: ignore[no-any-return]

    return connect


def _where_of_url(url: str) -> str:
    parts = urlsplit(url)
    given = dict(parse_qsl(parts.query))
    try:
        port: object = parts.port
    except ValueError:
        port = None
    return _where(
        given.get("host", parts.hostname),
        given.get("port", port),
        given.get("dbname", given.get("database", unquote(parts.path.removeprefix("/")))),
        given.get("user", unquote(parts.username or "")),
    )


def _where_of_engine(engine: AsyncEngine) -> str:
    url = engine.url
    return _where(url.host, url.port, url.database, url.username)


def _where(host: object, port: object, database: object, user: object) -> str:
    """For messages, without the password. What is not given the driver takes from the environment."""
    address = f"{host or 'the default host'}:{port or 5432}"
    return ", ".join(
        [address, *(f"{what} {name!r}" for what, name in (("database", database), ("user", user)) if name)]
    )
