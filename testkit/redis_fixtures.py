"""Redis as fixtures."""

from collections.abc import Iterator
from itertools import cycle
from urllib.parse import urlsplit

import pytest

from testkit.pytest_plugin import provide
from testkit.servers.redis import Redis

_DATABASES = cycle(range(1, 16))


@pytest.fixture(scope="session")
def redis_server() -> Iterator[Redis]:
    """One Redis for the whole session. A test may kill it: the next one finds it running again."""
    with provide(Redis.from_environment()) as server:
        yield server


@pytest.fixture
def redis_url(redis_server: Redis) -> Iterator[str]:
    """The URL of an empty database that only this test uses."""
    redis_server.revive()
    database = next(_DATABASES)
    redis_server.flush(database)
    yield urlsplit(redis_server.url)._replace(path=f"/{database}").geturl()
    redis_server.revive()
    redis_server.flush(database)
