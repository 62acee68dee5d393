"""Cheap databases on a server that has many: one for each test."""

import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from testkit.servers.errors import ServerFailed

_PREFIX = "nightmail_test_"


def new_name() -> str:
    """A name for a database that no other has."""
    return _PREFIX + secrets.token_hex(8)


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
        name = new_name()
        self.create(name)
        return self.url_of(name)

    def url_of(self, name: str) -> str:
        """The URL of the database with this name."""
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
