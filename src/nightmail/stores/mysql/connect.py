"""How a connection of ours is made: from a URL, or in the way an SQLAlchemy engine makes its own."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import parse_qsl, unquote, urlsplit

import asyncmy

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

Connect: TypeAlias = Callable[[], Awaitable[Any]]

_SCHEMES: Final = frozenset({"mysql", "mariadb"})
_DRIVERS: Final = frozenset({"asyncmy", "aiomysql"})
_CONNECT_SECONDS: Final = 10
# What a URL may say after the question mark, and how the driver wants it.
_ARGUMENTS: Final[dict[str, Callable[[str], Any]]] = {
    "unix_socket": str,
    "read_default_file": str,
    "read_default_group": str,
    "connect_timeout": int,
}
_SSL: Final = frozenset({"ssl", "ssl_ca", "ssl_cert", "ssl_key", "ssl_check_hostname"})
# SQLAlchemy's words that mean nothing to us: our text is always utf8mb4.
_MEANINGLESS: Final = frozenset({"charset", "use_unicode", "collation", "autocommit"})


def connector(source: str | AsyncEngine) -> Connect:
    """A function that opens one more connection to this database, on the event loop that calls it."""
    return _from_url(source) if isinstance(source, str) else _from_engine(source)


def _from_url(url: str) -> Connect:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    database = unquote(parts.path.removeprefix("/"))
    if parts.scheme.partition("+")[0] not in _SCHEMES or not database:
        # Neither the URL nor the parser's opinion of it: both may quote the password.
        raise ValueError("a MySQL or MariaDB URL looks like mysql://user@host/database")
    arguments = {
        "host": parts.hostname or "localhost",
        "port": port or 3306,
        "user": unquote(parts.username or ""),
        "password": unquote(parts.password or ""),
        "database": database,
        "connect_timeout": _CONNECT_SECONDS,
        **_from_query(parts.query),
    }

    async def connect() -> Any:
        return await asyncmy.connect(**arguments, charset="utf8mb4", autocommit=True)

    return connect


def _from_query(query: str) -> dict[str, Any]:
    given = dict(parse_qsl(query, keep_blank_values=True))
    unknown = given.keys() - _ARGUMENTS.keys() - _SSL - _MEANINGLESS
    if unknown:
        raise ValueError(f"a MySQL URL cannot say {', '.join(sorted(unknown))}: pass an AsyncEngine instead")
    arguments = {name: make(given[name]) for name, make in _ARGUMENTS.items() if name in given}
    if context := _ssl_context(given):
        arguments["ssl"] = context
    return arguments


def _ssl_context(given: dict[str, str]) -> ssl.SSLContext | None:
    if given.get("ssl", "").lower() in ("false", "0", "disabled"):
        return None
    if not given.keys() & _SSL:
        return None
    context = ssl.create_default_context(cafile=given.get("ssl_ca"))
    if given.get("ssl_check_hostname", "").lower() in ("false", "0"):
        context.check_hostname = False
    if "ssl_cert" in given:
        context.load_cert_chain(given["ssl_cert"], given.get("ssl_key"))
    return context


def _from_engine(engine: AsyncEngine) -> Connect:
    dialect = engine.dialect
    if dialect.name not in _SCHEMES or dialect.driver not in _DRIVERS:
        raise ValueError(
            "the MySQL store needs an engine with asyncmy or aiomysql (mysql+asyncmy://), "
            f"not {dialect.name}+{dialect.driver}"
        )

    async def connect() -> Any:
        from sqlalchemy.util import greenlet_spawn

        # A pool of our own with the engine's way of connecting: its arguments, its events, its credentials.
        pool = engine.sync_engine.pool.recreate()
        fairy = await greenlet_spawn(pool.connect)
        connection: Any = fairy.driver_connection
        fairy.detach()
        return connection

    return connect
