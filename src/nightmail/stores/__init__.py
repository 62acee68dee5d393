"""The one place that knows which URL means which store. Drivers are imported only when their store is asked for."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from weakref import WeakSet

from nightmail.clock import Clock, StoreClock
from nightmail.errors import DriverMissing
from nightmail.limits import MAX_BODY_BYTES
from nightmail.store import FullStore
from nightmail.stores.shared.table_names import TableNames
from nightmail.stores.sql import schema

if TYPE_CHECKING:
    from redis.asyncio import Redis, RedisCluster
    from sqlalchemy.ext.asyncio import AsyncEngine

    StoreSource: TypeAlias = str | AsyncEngine | Redis | RedisCluster

__all__ = ["DEFAULT_URL", "TableNames", "open_store", "public_url", "schema"]

DEFAULT_URL: Final = "sqlite:///nightmail.db"
logger = logging.getLogger(__name__)
_in_memory: Final[WeakSet[FullStore]] = WeakSet()
"""The stores of `memory://`, while they are in use."""


def open_store(
    source: StoreSource = DEFAULT_URL,
    *,
    tables: str | None = None,
    clock: Clock | None = None,
    keep_delivered: bool = False,
    max_body_bytes: int = MAX_BODY_BYTES,
) -> FullStore:
    """A store for a URL, an SQLAlchemy `AsyncEngine`, or a `Redis` or `RedisCluster` client of redis-py.

    Nothing connects before `open`. `tables` is the prefix of the tables' (in Redis, the keys') names, or
    `schema.prefix`. With `keep_delivered` a message that is done goes into the delivered history instead of being
    deleted. A body over `max_body_bytes` is refused at publish; give every process the same limit.
    """
    dialect = _dialect(source)
    build = _STORES.get(dialect)
    if build is None:
        known = ", ".join(f"{name}://" for name in _STORES)
        raise ValueError(f"no store for {dialect!r}: the URL must start with one of {known}")
    return build(
        source,
        tables=tables,
        clock=clock or StoreClock(),
        keep_delivered=keep_delivered,
        max_body_bytes=max_body_bytes,
    )


def public_url(source: object, store: FullStore) -> str:
    """The store's URL for display: no user, no password, and no options, which may contain a password too."""
    url = source if isinstance(source, str) else str(getattr(source, "url", f"{store.capabilities.name}://"))
    scheme, separator, rest = url.partition("://")
    shown, *options = _OPTIONS.split(rest, maxsplit=1)
    if shown.startswith("/"):
        return f"{scheme}{separator}{shown}"  # A file: it has no user.
    hosts, slash, path = shown.rpartition("@")[2].partition("/")
    if not _HOSTS.fullmatch(hosts) or any("@" in each for each in options if "@" not in shown):
        # An unescaped character in a password may end it too early: show nothing rather than half of it.
        return f"{scheme}{separator}"
    return f"{scheme}{separator}{hosts}{slash}{path}"


_OPTIONS: Final = re.compile(r"[?#]")
_HOSTS: Final = re.compile(r"(?:(?:[\w.-]*|\[[0-9a-fA-F:.]+\])(?::\d+)?(?:,|$))*")


def _dialect(source: StoreSource) -> str:
    if isinstance(source, str):
        scheme, separator, _ = source.partition("://")
        if not separator:
            # Not echoed: it may contain a password.
            raise ValueError(f"a store's URL looks like {DEFAULT_URL} or postgresql://host/database")
        return scheme.partition("+")[0].lower()
    # By module and attribute names: neither SQLAlchemy nor redis-py need be installed.
    if type(source).__module__.startswith("redis."):
        return "redis"
    dialect = getattr(getattr(source, "dialect", None), "name", None)
    if not isinstance(dialect, str):
        raise TypeError(
            f"a store is a URL, an AsyncEngine, a Redis client or a Store, not {type(source).__name__}"
        )
    return dialect


def _sqlite(source: Any, **options: Any) -> FullStore:
    from nightmail.stores.sqlite import SQLiteStore

    return SQLiteStore(source, **options)


def _postgres(source: Any, **options: Any) -> FullStore:
    try:
        from nightmail.stores.postgres import PostgresStore
    except ModuleNotFoundError as error:
        raise _missing(error, "asyncpg", "postgres") from error
    return PostgresStore(source, **options)


def _mysql(source: Any, **options: Any) -> FullStore:
    try:
        from nightmail.stores.mysql import MySQLStore
    except ModuleNotFoundError as error:
        raise _missing(error, "asyncmy", "mysql") from error
    return MySQLStore(source, **options)


def _redis(source: Any, **options: Any) -> FullStore:
    try:
        from nightmail.stores.redis import RedisStore
    except ModuleNotFoundError as error:
        raise _missing(error, "redis", "redis") from error
    return RedisStore(source, **options)


def _memory(source: Any, *, tables: str | None, **options: Any) -> FullStore:
    from nightmail.stores.memory import MemoryStore

    store = MemoryStore(**options)
    if len(_in_memory) == 1:
        logger.warning(
            "a second memory:// store in this process: each has messages of its own, and what is published to one is "
            "not delivered by the other. To share one, make a store with open_store() and give it to both brokers"
        )
    _in_memory.add(store)
    return store


def _missing(error: ModuleNotFoundError, driver: str, extra: str) -> Exception:
    return DriverMissing(driver, extra) if error.name == driver else error


_STORES: Final[dict[str, Callable[..., FullStore]]] = {
    "sqlite": _sqlite,
    "postgresql": _postgres,
    "postgres": _postgres,
    "mysql": _mysql,
    "mariadb": _mysql,
    "redis": _redis,
    "rediss": _redis,
    "memory": _memory,
}
