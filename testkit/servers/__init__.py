"""Private, throw-away servers: see `base.Server` for what every kind of them can do."""

from testkit.servers.base import Server
from testkit.servers.errors import NotOurs, NotReady, ServerError, ServerFailed, ServerUnavailable
from testkit.servers.install import Package
from testkit.servers.postgres import Postgres

__all__ = [
    "NotOurs",
    "NotReady",
    "Package",
    "Postgres",
    "Server",
    "ServerError",
    "ServerFailed",
    "ServerUnavailable",
]
