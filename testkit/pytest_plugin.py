"""The servers as fixtures. Load with `pytest_plugins = ["testkit.pytest_plugin"]`.

A server that cannot be had skips the test on a laptop and fails it on CI, where a skip would go
unnoticed. The same holds for a test that wants to kill a server that is not ours.
"""

import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest

from testkit.servers import NotOurs, Postgres, Server, ServerUnavailable

AnyServer = TypeVar("AnyServer", bound=Server)


def on_ci() -> bool:
    return os.environ.get("CI", "").lower() not in ("", "0", "false")


@contextmanager
def provide(server: AnyServer) -> Iterator[AnyServer]:
    """The server, started, for as long as the block lasts; skips the test if it cannot be had here."""
    with _skip_on(ServerUnavailable):
        server.start()
    with server:
        yield server


@contextmanager
def _skip_on(obstacle: type[Exception]) -> Iterator[None]:
    try:
        yield
    except obstacle as error:
        if on_ci():
            raise
        pytest.skip(str(error))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, None, None]:
    with _skip_on(NotOurs):
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, None, None]:
    with _skip_on(NotOurs):
        yield


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    """One Postgres for the whole session. A test may kill it: the next one finds it running again."""
    with provide(Postgres.from_environment()) as server:
        yield server


@pytest.fixture
def postgres_url(postgres_server: Postgres) -> Iterator[str]:
    """The URL of an empty database that only this test knows."""
    postgres_server.revive()
    url = postgres_server.create_database()
    yield url
    postgres_server.revive()
    postgres_server.drop_database(url)
