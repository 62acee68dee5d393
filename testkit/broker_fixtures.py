"""RabbitMQ and NATS as fixtures: targets of the relay.

A test file that wants them says `pytest_plugins = ["testkit.broker_fixtures"]`. Not among the other fixtures: RabbitMQ
takes seconds to start, so only tests that ask for it pay for it.

PYTEST_DONT_REWRITE: nothing is asserted here, and a test file may import this before pytest loads it.
"""

import secrets
from collections.abc import Iterator

import pytest

from testkit.pytest_plugin import provide
from testkit.servers.nats import Nats
from testkit.servers.rabbitmq import RabbitMQ


@pytest.fixture(scope="session")
def rabbitmq_server() -> Iterator[RabbitMQ]:
    """One RabbitMQ for the whole session. A test may kill it: the next one finds it running again."""
    with provide(RabbitMQ.from_environment()) as server:
        yield server


@pytest.fixture
def rabbitmq_url(rabbitmq_server: RabbitMQ) -> str:
    """The URL of a RabbitMQ shared with other tests: see `address`."""
    rabbitmq_server.revive()
    return rabbitmq_server.url


@pytest.fixture(scope="session")
def nats_server() -> Iterator[Nats]:
    """One NATS with JetStream for the whole session. A test may kill it: the next one finds it running again."""
    with provide(Nats.from_environment()) as server:
        yield server


@pytest.fixture
def nats_url(nats_server: Nats) -> str:
    """The URL of a NATS shared with other tests: see `address`."""
    nats_server.revive()
    return nats_server.url


@pytest.fixture
def address() -> str:
    """The name of a queue, subject or stream that only this test uses."""
    return f"nightmail_test_{secrets.token_hex(8)}"
