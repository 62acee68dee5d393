"""The database that the shared tests use."""

from __future__ import annotations

import pytest

from testkit.servers.postgres import Postgres
from tests.stores.postgres.support import PostgresBackend


@pytest.fixture
def backend(postgres_server: Postgres, postgres_url: str) -> PostgresBackend:
    return PostgresBackend(postgres_url, postgres_server)
