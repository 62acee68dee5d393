"""Cheap databases on a server that has many: one for each test."""

import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from testkit.servers.errors import ServerFailed

_PREFIX = "nightmail_test_"


class Databases(ABC):
    """A kind of server says how a database is created and dropped."""

    @property
    @abstractmethod
    def url(self) -> str:
        """Where the server is."""

    @contextmanager
    def fresh_database(self) -> Iterator[str]:
        """The URL of an empty database, for as long as the block lasts."""
        url = self.create_database()
        try:
            yield url
        finally:
            self.drop_database(url)

    def create_database(self) -> str:
        """Create an empty database with a name of its own, and return its URL."""
        name = _PREFIX + secrets.token_hex(8)
        self.create(name)
        return urlsplit(self.url)._replace(path=f"/{name}").geturl()

    def drop_database(self, url: str) -> None:
        """Drop a database made by `create_database`, even if clients are still connected to it."""
        name = urlsplit(url).path.removeprefix("/")
        if not name.startswith(_PREFIX) or set(name) & {'"', "`"}:
            raise ServerFailed(f"database {name!r} was not made by a test, so it is not dropped")
        self.drop(name)

    @abstractmethod
    def create(self, name: str) -> None:
        """Create an empty database."""

    @abstractmethod
    def drop(self, name: str) -> None:
        """Drop it, if it is there."""
