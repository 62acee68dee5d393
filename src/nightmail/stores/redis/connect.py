"""How a connection of ours is made: from a URL, or in the way a client makes its own."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache
from typing import Any, Final, TypeAlias
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit

import redis
from redis.asyncio import ConnectionPool, Redis, RedisCluster
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from nightmail.stores.redis.errors import unreachable
from nightmail.stores.redis.link import Link

Address: TypeAlias = tuple[str, int]

_DATABASE: Final = re.compile(r"/?|/[0-9]+")
_SCHEMES: Final = {"redis": False, "rediss": False, "redis+cluster": True, "rediss+cluster": True}
# Driver options that would repeat a command, time it out on their own, change the form of replies, or refer to the pool
# from which we took only the arguments.
_NOT_OURS: Final = ("maint_", "orig_", "oss_", "himport_", "maintenance_")
_LEFT_OUT: Final = frozenset({"redis_connect_func", "response_callbacks", "client_name", "retry_on_timeout"})
_DRIVER: Final = frozenset({"driver_info", "lib_name", "lib_version"})
"""How a client tells the server which library it is."""

CONNECT_SECONDS: Final = 5.0
LONGEST_WAIT: Final = timedelta(seconds=5)
"""Other publishes queue behind the one that waits."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """How many replicas must confirm a publish, and how long to wait for them."""

    replicas: int = 0
    patience: timedelta = timedelta(seconds=1)

    def __post_init__(self) -> None:
        if self.replicas < 0:
            raise ValueError(f"wait_replicas must be 0 or more, not {self.replicas}")
        if not timedelta(0) < self.patience <= LONGEST_WAIT:
            raise ValueError(f"wait_timeout must be between 0 and {LONGEST_WAIT}, not {self.patience}")


@dataclass(frozen=True, slots=True)
class Connector:
    """How to connect: to the only server, or to a node of a cluster."""

    connect: Callable[[str, Address | None], Link]
    """Makes a new connection, not connected yet, from its client name on the server and the node."""
    cluster: Sequence[Address] | None
    """Start nodes of the cluster; `None` for a single server."""
    database: int
    place: Callable[[Address | None], str]
    """The address for error messages: host, port, database and user, without the password."""
    waiting: Waiting = Waiting()

    async def open(self, role: str, address: Address | None) -> Link:
        """A new connection."""
        link = self.connect(role, address)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await link.connect()
        except BaseException as error:
            link.terminate()
            if isinstance(error, Exception):
                # The driver's text may quote the address, and the URL it came from.
                better = unreachable(error, self.place(address))
                raise better from (None if isinstance(error, ValueError) else error)
            raise
        return link


def connector_of(given: str | Redis | RedisCluster) -> Connector:
    """How to connect as this URL or client does."""
    if isinstance(given, str):
        return _from_url(given)
    if isinstance(given, RedisCluster):
        nodes = list(given.nodes_manager.startup_nodes.values())
        start = [(str(node.host), int(node.port)) for node in nodes]
        return _from_nodes(start, nodes[0].connection_class, nodes[0].connection_kwargs, Waiting())
    if isinstance(given, Redis):
        return _from_pool(given.connection_pool, Waiting())
    raise TypeError(
        f"a Redis store needs a URL or a client of redis.asyncio (Redis, RedisCluster), not {type(given).__name__}"
    )


def _from_url(url: str) -> Connector:
    try:
        parts = urlsplit(url)
        cluster = _SCHEMES[parts.scheme.lower()]
        query, waiting = _split_query(parts.query)
        plain = parts._replace(scheme=parts.scheme.lower().partition("+")[0], query=query).geturl()
        pool = ConnectionPool.from_url(plain)
        if not _DATABASE.fullmatch(parts.path):
            raise ValueError(parts.path)  # The driver would take what is no number for database 0.
    except (KeyError, ValueError):
        # Neither the URL nor the parser's error: both may quote the password.
        raise ValueError(
            "a Redis URL looks like redis://host:6379/0 or redis+cluster://host:6379 (rediss for TLS), with "
            "?wait_replicas= and ?wait_timeout= in numbers"
        ) from None
    _refuse_contradictions(parts, pool)
    if not cluster:
        return _from_pool(pool, waiting)
    arguments = pool.connection_kwargs
    start = (str(arguments.get("host", "localhost")), int(arguments.get("port", 6379)))
    return _from_nodes([start], pool.connection_class, arguments, waiting)


def _refuse_contradictions(parts: SplitResult, pool: Any) -> None:
    """Refuse these early and clearly: the driver would complain of an argument when it first connects."""
    names = [name for name, _ in parse_qsl(parts.query, keep_blank_values=True)]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"a Redis URL says {', '.join(twice)} more than once: which is meant?")
    about_tls = sorted(name for name in names if name.startswith("ssl"))
    if about_tls and not parts.scheme.lower().startswith("rediss"):
        raise ValueError(f"a Redis URL says {', '.join(about_tls)} and no TLS: write rediss://")
    for name in sorted(pool.connection_kwargs.keys() & set(names)):
        try:
            pool.connection_class(**{name: pool.connection_kwargs[name]})
        except TypeError:
            raise ValueError(f"a Redis URL cannot say {name}: pass a client instead") from None


def _split_query(query: str) -> tuple[str, Waiting]:
    given = dict(parse_qsl(query, keep_blank_values=True))
    waiting = Waiting()
    if (replicas := given.pop("wait_replicas", None)) is not None:
        waiting = replace(waiting, replicas=int(replicas))
    if (seconds := given.pop("wait_timeout", None)) is not None:
        waiting = replace(waiting, patience=timedelta(seconds=float(seconds)))
    return urlencode(given), waiting


def _from_pool(pool: Any, waiting: Waiting) -> Connector:
    arguments, kind = pool.connection_kwargs, pool.connection_class

    def connect(name: str, _address: Address | None) -> Link:
        # Read each time: rotated credentials are changed there.
        return Link(kind(**_own_arguments(arguments, name)))

    def place(_address: Address | None) -> str:
        return _place(arguments, arguments.get("host", "localhost"), arguments.get("port", 6379))

    return Connector(connect, None, int(arguments.get("db") or 0), place, waiting)


def _from_nodes(
    start: Sequence[Address], kind: Any, arguments: dict[str, Any], waiting: Waiting
) -> Connector:
    def connect(name: str, address: Address | None) -> Link:
        host, port = address or start[0]
        return Link(kind(**{**_own_arguments(arguments, name), "host": host, "port": port}))

    def place(address: Address | None) -> str:
        return _place(arguments, *(address or start[0]))

    return Connector(connect, start, 0, place, waiting)


def _place(arguments: dict[str, Any], host: object, port: object) -> str:
    where = arguments.get("path") or f"{host}:{port}"
    user = arguments.get("username") or "default"
    return f"Redis at {where}, database {arguments.get('db') or 0}, user {user}"


@cache
def _which_driver() -> dict[str, Any]:
    """What redis-py 7 and later otherwise reads from the files of its package, for every connection."""
    try:
        from redis.driver_info import DriverInfo
    except ImportError:
        return {}
    return {"driver_info": DriverInfo(lib_version=redis.__version__)}


def _own_arguments(arguments: dict[str, Any], name: str) -> dict[str, Any]:
    kept = {
        key: value
        for key, value in arguments.items()
        if not key.startswith(_NOT_OURS) and key not in _LEFT_OUT
    }
    if not kept.keys() & _DRIVER:
        kept |= _which_driver()
    return kept | {
        "client_name": f"nightmail-{name}",
        "retry": Retry(NoBackoff(), 0),
        "retry_on_error": [],
        "health_check_interval": 0,
        "socket_timeout": None,
        "socket_connect_timeout": None,
        "decode_responses": False,
        "encoding": "utf-8",
        "encoding_errors": "strict",
        "protocol": 2,
    }
