"""How a connection of ours is made: from a URL, or in the way an SQLAlchemy engine makes its own."""

from __future__ import annotations

import ssl
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

import asyncmy
from asyncmy.errors import OperationalError

from nightmail.stores.mysql.careful import CLEAR_TEXT, NO_SUCH_PLUGIN, connect_aiomysql

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

_SCHEMES: Final = frozenset({"mysql", "mariadb"})
_DRIVERS: Final = frozenset({"asyncmy", "aiomysql"})
_CONNECT_SECONDS: Final = 10
# The query parameters that a URL may have, and how the driver expects them.
_ARGUMENTS: Final[dict[str, Callable[[str], Any]]] = {
    "unix_socket": str,
    "read_default_file": str,
    "read_default_group": str,
    "connect_timeout": int,
}
_SSL: Final = frozenset({"ssl", "ssl_ca", "ssl_cert", "ssl_key", "ssl_check_hostname"})
_YES: Final = frozenset({"true", "1", "yes", "on", "enabled", "required"})
_NO: Final = frozenset({"false", "0", "no", "off", "disabled"})
# SQLAlchemy parameters that we ignore: our text is always utf8mb4.
_MEANINGLESS: Final = frozenset({"charset", "use_unicode", "collation", "autocommit"})


@dataclass(frozen=True, slots=True)
class Connect:
    """Opens one more connection to a database, on the event loop that calls it."""

    open: Callable[[], Awaitable[Any]]
    where: str
    """The server, the database and the account, in readable form."""
    password: str = field(default="", repr=False)
    """Must never be shown."""

    async def __call__(self) -> Any:
        """One more connection."""
        return await self.open()


_connecting: ContextVar[bool] = ContextVar("nightmail_connecting", default=False)
"""Whether an engine is connecting for us."""


class _Refuses:
    """Replaces an authentication method that sends the password to any server."""

    def __init__(self, connection: object) -> None:
        """The driver makes one when the server asks for that method."""

    def authenticate(self, packet: object) -> None:
        """Refuse."""
        raise OperationalError(NO_SUCH_PLUGIN, CLEAR_TEXT)


IN_CLEAR_TEXT: Final = {"mysql_clear_password": _Refuses, "dialog": _Refuses}


def connector(source: str | AsyncEngine) -> Connect:
    """How one more connection to this database is opened."""
    return _from_url(source) if isinstance(source, str) else _from_engine(source)


def _from_url(url: str) -> Connect:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    database = unquote(parts.path.removeprefix("/"))
    if parts.scheme.partition("+")[0] not in _SCHEMES or not database:
        # Neither the URL nor the parser's error: both may quote the password.
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
    if "ssl" not in arguments and "unix_socket" not in arguments:
        arguments["auth_plugin_map"] = IN_CLEAR_TEXT

    async def connect() -> Any:
        return await asyncmy.connect(**arguments, charset="utf8mb4", autocommit=True)

    server = arguments.get("unix_socket") or f"{arguments['host']}:{arguments['port']}"
    return Connect(connect, _where(server, database, arguments["user"]), arguments["password"])


def _where(server: str, database: str | None, user: str | None) -> str:
    return f"MySQL or MariaDB at {server}, database {database!r}, as user {user!r}"


def _from_query(query: str) -> dict[str, Any]:
    given = parse_qsl(query, keep_blank_values=True)
    names = [name for name, _ in given]
    unknown = set(names) - _ARGUMENTS.keys() - _SSL - _MEANINGLESS
    if unknown:
        raise ValueError(f"a MySQL URL cannot say {', '.join(sorted(unknown))}: pass an AsyncEngine instead")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"a MySQL URL says {', '.join(twice)} more than once: which is meant?")
    values = dict(given)
    if not values.get("connect_timeout", "1").isdecimal():
        raise ValueError("connect_timeout in a MySQL URL must be a whole number of seconds")
    arguments = {name: make(values[name]) for name, make in _ARGUMENTS.items() if name in values}
    if context := _ssl_context(values):
        arguments["ssl"] = context
    return arguments


def _ssl_context(given: dict[str, str]) -> ssl.SSLContext | None:
    details = sorted(given.keys() & (_SSL - {"ssl"}))
    wanted = _yes_or_no("ssl", given.get("ssl", "true" if details else "false"))
    if not wanted:
        if details:
            raise ValueError(f"a MySQL URL says ssl={given['ssl']} and {', '.join(details)}: which is meant?")
        return None
    if "ssl_key" in given and "ssl_cert" not in given:
        raise ValueError("a MySQL URL says ssl_key without ssl_cert: a key alone proves nothing")
    context = ssl.create_default_context(cafile=given.get("ssl_ca"))
    context.check_hostname = _yes_or_no("ssl_check_hostname", given.get("ssl_check_hostname", "true"))
    if "ssl_cert" in given:
        context.load_cert_chain(given["ssl_cert"], given.get("ssl_key"))
    return context


def _yes_or_no(name: str, value: str) -> bool:
    if value.lower() in _YES | {""}:
        return True
    if value.lower() in _NO:
        return False
    raise ValueError(f"{name} in a MySQL URL must be true or false")


def _connect_carefully(dialect: Any, _record: object, args: Sequence[Any], given: Mapping[str, Any]) -> Any:
    """Engine event: its driver sends no password in clear text for our connections. Others are left alone."""
    if not _connecting.get() or "unix_socket" in given:
        return None
    if dialect.driver == "aiomysql":
        return dialect.connect(*args, **{"async_creator_fn": connect_aiomysql, **given})
    if given.get("ssl"):
        return None
    return dialect.connect(*args, **{"auth_plugin_map": IN_CLEAR_TEXT, **given})


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
        ours = _connecting.set(True)
        try:
            fairy = await greenlet_spawn(pool.connect)
        finally:
            _connecting.reset(ours)
        connection: Any = fairy.driver_connection
        fairy.detach()
        return connection

    event = sys.modules["sqlalchemy"].event
    if not event.contains(engine.sync_engine, "do_connect", _connect_carefully):
        event.listen(engine.sync_engine, "do_connect", _connect_carefully)
    url = engine.url
    server = f"{url.host or 'localhost'}:{url.port or 3306}"
    return Connect(connect, _where(server, url.database, url.username), str(url.password or ""))
